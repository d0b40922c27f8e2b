// SPDX-License-Identifier: MIT
#include "headwise/policy/budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "headwise/cache/kv_cache.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::test::sizes;

using headwise::head_id;

constexpr std::size_t folded(std::size_t seen, std::size_t sinks, std::size_t window) {
  return seen > sinks + window ? seen - sinks - window : 0;
}

// WIN-06
TEST(razor_budget, gives_the_table_of_window_and_folded_rows) {
  struct {
    std::size_t seen, window, folded, rows;  // rows: kept ones and the compensation row
  } const table[] = {{4004, 4000, 0, 4004},      {20004, 4000, 16000, 4005}, {20005, 4001, 16000, 4006},
                     {20006, 4001, 16001, 4006}, {25000, 5000, 19996, 5005}, {131072, 26214, 104854, 26219}};
  const headwise::razor_budget budget;
  for (const auto& line : table) {
    const std::size_t window = budget(head_id{}, line.seen);
    EXPECT_EQ(window, line.window) << line.seen;
    const std::size_t d = folded(line.seen, 4, window);
    EXPECT_EQ(d, line.folded) << line.seen;
    EXPECT_EQ(line.seen - d + (d > 0 ? 1 : 0), line.rows) << line.seen;
  }
}

TEST(razor_budget, folded_rows_never_fall_as_tokens_are_added) {
  const headwise::razor_budget budget;
  for (std::size_t seen = 1; seen < 60000; ++seen)
    ASSERT_LE(folded(seen - 1, 4, budget(head_id{}, seen - 1)), folded(seen, 4, budget(head_id{}, seen))) << seen;
}

TEST(razor_budget, divisor_zero_is_a_fixed_window) {
  const headwise::razor_budget budget{100, 0};
  for (const std::size_t seen : sizes{1, 100, 100000}) EXPECT_EQ(budget(head_id{}, seen), 100U);
}

TEST(budgets, the_named_members_do_what_they_say) {
  for (const std::size_t seen : sizes{std::size_t{0}, std::size_t{1}, std::size_t{1} << 40}) {
    EXPECT_EQ(headwise::fixed_budget{17}(head_id{1, 2}, seen), 17U);
    EXPECT_EQ(headwise::unlimited_budget{}(head_id{1, 2}, seen), (std::numeric_limits<std::size_t>::max)());
  }
}

/// Appends `tokens` rows of zeros and folds; the rows kept per head.
template <class Budget>
std::vector<std::size_t> kept_rows(Budget budget, std::size_t tokens) {
  const headwise::head_plan plan({1, 2, 2, 1, 0}, headwise::head_role::local, 3);
  headwise::kv_cache<headwise::float32, Budget> cache(plan, budget);
  const std::vector<float> zeros(tokens * 2);
  const auto rows = headwise::packed_rows(zeros.data(), tokens, 2, 1);
  cache.append(0, rows, rows);
  cache.compress();
  return {cache.kept_positions(0, 0).size(), cache.kept_positions(0, 1).size()};
}

TEST(budgets, a_lambda_is_a_budget_and_knows_its_head) {
  std::size_t base = 10;
  const auto lambda = [base](head_id head, std::size_t seen) { return base + head.kv_head + seen / 50; };
  EXPECT_EQ(kept_rows(lambda, 100), (std::vector<std::size_t>{3 + 12, 3 + 13}));
  EXPECT_EQ(kept_rows([](head_id, std::size_t) { return 0; }, 100), (std::vector<std::size_t>{4, 4}));  // at least one
  EXPECT_EQ(kept_rows(headwise::unlimited_budget{}, 100), (std::vector<std::size_t>{100, 100}));
  EXPECT_EQ(kept_rows(headwise::fixed_budget{96}, 100), (std::vector<std::size_t>{99, 99}));
  EXPECT_EQ(kept_rows(headwise::fixed_budget{97}, 100), (std::vector<std::size_t>{100, 100}));
}

}  // namespace
