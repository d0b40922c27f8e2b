// SPDX-License-Identifier: MIT
// Cases FORK: copies share pages, but no side sees the other's rows or summary, and none needs the other to live.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "headwise/cache/gather.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(fork, FORK_01_copies_outlive_each_other_in_any_order) {
  const tokens rows = counting_tokens(one_head(), 5000);
  std::array<int, 3> order = {0, 1, 2};
  do {
    std::array<std::optional<kv_cache<float32>>, 3> caches;
    caches[0].emplace(one_local(4));
    append(*caches[0], rows, 0, 5000);
    caches[0]->compress();
    caches[1] = caches[0];
    caches[2] = caches[1];
    const auto state = visible_state(*caches[0]);
    for (const int freed : order) {
      caches[static_cast<std::size_t>(freed)].reset();
      for (const auto& survivor : caches)
        if (survivor) {
          EXPECT_NEAR(answer(*survivor), 2499.5, 2499.5e-5);
          EXPECT_TRUE(visible_state(*survivor) == state);
        }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(fork, FORK_02_branches_do_not_see_each_others_rows) {
  tokens rows = counting_tokens(one_head(), 10);
  auto a = make_cache<float32>(one_local(2), fixed_budget{100});
  append(a, rows, 0, 10);
  auto b = a;
  tokens a_rows(one_head(), 21), b_rows(one_head(), 21);
  a_rows.v.assign(21, 100.0F);
  b_rows.v.assign(21, 200.0F);
  append(a, a_rows, 0, 1);
  append(b, b_rows, 0, 1);
  EXPECT_NEAR(answer(a), 13.18182, 1e-5);
  EXPECT_NEAR(answer(b), 22.27273, 2e-5);

  // On past the point where rows leave: each mean is that of its own rows.
  auto a_short = a.with(a.plan(), fixed_budget{4}, mean_compensation{});
  auto b_short = b.with(b.plan(), fixed_budget{4}, mean_compensation{});
  const auto check = [](auto& cache, const tokens& branch) {
    cache.compress();
    for (std::size_t i = 1; i < 21; ++i) append(cache, branch, i, 1);
    ASSERT_EQ(cache.report().folded, 25U);  // 31 tokens; rows 2..9 of both, and 17 of the branch
    EXPECT_NEAR(folded_means(cache.head(0, 0)).second[0], (44.0 + 17.0 * static_cast<double>(branch.v[0])) / 25.0,
                1e-4);
  };
  check(a_short, a_rows);
  check(b_short, b_rows);
}

/// A sequence is a value and has no id; what is named by a number are layers, heads, positions and the places of
/// gather().
TEST(fork, FORK_04_numbers_that_name_nothing_are_refused_and_nothing_changes) {
  const tokens rows = counting_tokens(one_head(), 40);
  std::vector<kv_cache<float32, fixed_budget>> sequences(
      2, make_cache<float32>(one_local(2), fixed_budget{4}, mean_compensation{}, when_to_compress::every_append));
  for (std::size_t i = 0; i < 30; ++i) append(sequences[0], rows, i, 1);
  const auto state = visible_state(sequences[0]), empty = visible_state(sequences[1]);
  auto& cache = sequences[0];
  for (const std::size_t wrong : {static_cast<std::size_t>(-1), std::size_t{2147483647}, std::size_t{2}}) {
    EXPECT_THROW(cache.append(wrong, rows.keys(30, 1), rows.values(30, 1)), error);
    EXPECT_THROW(cache.append(0, rows.keys(30, 1), rows.values(30, 1), wrong), error);
    EXPECT_THROW(attended(cache, wrong, rows.queries(29, 1)), error);
    EXPECT_THROW(cache.compress(wrong), error);
    EXPECT_THROW(cache.retain(wrong, 0, {0}), error);
    EXPECT_THROW(cache.retain(0, wrong, {0}), error);
    EXPECT_THROW(static_cast<void>(cache.head(wrong, 0)), error);
    EXPECT_THROW(static_cast<void>(cache.kept_positions(0, wrong)), error);
    EXPECT_THROW(static_cast<void>(gather(sequences, {0, wrong})), error);
    if (wrong > 30) {
      EXPECT_FALSE(cache.truncate(wrong));
    }
  }
  EXPECT_TRUE(visible_state(sequences[0]) == state);
  EXPECT_TRUE(visible_state(sequences[1]) == empty);
  auto moved = std::move(sequences[0]);                                        // a moved-from cache has no layer
  EXPECT_THROW(cache.append(0, rows.keys(30, 1), rows.values(30, 1)), error);  // NOLINT: on purpose
  EXPECT_TRUE(visible_state(moved) == state);
}

TEST(fork, FORK_07_a_child_cut_below_the_fork_leaves_the_parent_whole) {
  const tokens rows = counting_tokens(one_head(), 25);
  std::optional<kv_cache<float32, fixed_budget>> parent(make_cache<float32>(one_local(2), fixed_budget{1000}));
  append(*parent, rows, 0, 20);
  auto child = *parent;
  append(child, rows, 20, 5);
  ASSERT_TRUE(child.truncate(3));
  tokens row = counting_tokens(one_head(), 1, 99.0);
  append(child, row, 0, 1);
  EXPECT_NEAR(answer(*parent), 9.5, 1e-5);
  EXPECT_NEAR(answer(child), 25.5, 1e-5);
  parent.reset();
  EXPECT_NEAR(answer(child), 25.5, 1e-5);
}

TEST(fork, FORK_06_a_copy_is_not_answered_from_the_state_of_another) {
  const tokens rows = counting_tokens(one_head(), 90);
  auto parent = make_cache<float32>(one_local(4), fixed_budget{8}, mean_compensation{}, when_to_compress::every_append);
  for (std::size_t i = 0; i < 50; ++i) append(parent, rows, i, 1);
  auto first = parent;
  for (std::size_t i = 50; i < 90; ++i) append(parent, rows, i, 1);
  auto second = parent;
  EXPECT_NEAR(answer(first), 24.5, 24.5e-5);
  EXPECT_EQ(first.report().folded, 38U);
  const auto state = visible_state(parent);
  const auto unchanged = [&] {
    for (const auto* cache : {&parent, &second}) {
      EXPECT_NEAR(answer(*cache), 44.5, 44.5e-5);
      EXPECT_EQ(cache->report().folded, 78U);
      EXPECT_TRUE(visible_state(*cache) == state);
    }
  };
  unchanged();
  tokens other(one_head(), 40);
  other.v.assign(40, -1.0F);
  for (std::size_t i = 0; i < 40; ++i) append(first, other, i, 1);
  EXPECT_NEAR(answer(first), (1225.0 - 40.0) / 90.0, 1e-4);
  unchanged();
}

}  // namespace
}  // namespace headwise::test
