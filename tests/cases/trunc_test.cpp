// SPDX-License-Identifier: MIT
// Cases TRUNC: taking tokens back is exact, or refused with nothing changed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

template <class Format = float32, class Budget = fixed_budget, class Compensation = mean_compensation>
kv_cache<Format, Budget, Compensation> rolling(const head_plan& plan, Budget budget, std::size_t reserve = 0,
                                               Compensation compensation = {}) {
  cache_options options;
  options.rollback_reserve = reserve;
  return kv_cache<Format, Budget, Compensation>(plan, budget, compensation, when_to_compress::every_append, Format{},
                                                options);
}

/// The rows of a fresh run: tokens [0, n) one by one.
template <class Cache>
void one_by_one(Cache& cache, const tokens& rows, std::size_t first, std::size_t n) {
  for (std::size_t i = first; i < first + n; ++i) append(cache, rows, i, 1);
}

template <class Cache>
void expect_same(const Cache& a, const Cache& b) {
  ASSERT_EQ(a.length(), b.length());
  ASSERT_TRUE(visible_state(a) == visible_state(b));
  const cache_report x = a.report(), y = b.report();
  EXPECT_EQ(x.row_bytes, y.row_bytes);
  EXPECT_EQ(x.rows + x.folded + x.dropped, y.rows + y.folded + y.dropped);
}

tokens token_of(float value) {
  tokens row(one_head(), 1);
  row.v[0] = value;
  row.q[0] = 1.0F;
  return row;
}

TEST(trunc, TRUNC_01_to_nothing_to_all_and_to_more) {
  for (const std::size_t window : {1000U, 1U}) {
    const tokens rows = counting_tokens(one_head(), 10);
    auto cache = rolling(one_local(2), fixed_budget{window});
    one_by_one(cache, rows, 0, 3);
    const auto state = visible_state(cache);
    EXPECT_TRUE(cache.truncate(3));
    EXPECT_FALSE(cache.truncate(4));
    EXPECT_FALSE(cache.truncate(static_cast<std::size_t>(-2)));  // 3 - 5
    EXPECT_TRUE(visible_state(cache) == state);
    EXPECT_TRUE(cache.truncate(0));
    EXPECT_EQ(cache.length(), 0U);
    EXPECT_EQ(cache.report().row_bytes, 0U);
    one_by_one(cache, rows, 7, 1);
    EXPECT_EQ(cache.length(), 1U);
    EXPECT_EQ(answer(cache), 7.0F);
  }
}

TEST(trunc, TRUNC_02_a_window_that_has_wrapped) {
  const tokens rows = counting_tokens(one_head(), 20);
  auto refusing = rolling(one_local(2), fixed_budget{8});
  one_by_one(refusing, rows, 0, 20);
  const auto state = visible_state(refusing);
  EXPECT_FALSE(refusing.truncate(19));
  EXPECT_TRUE(visible_state(refusing) == state);

  for (const std::size_t reserve : {1U, 2U, 7U, 100U}) {
    auto exact = rolling(one_local(2), fixed_budget{8}, reserve),
         fresh = rolling(one_local(2), fixed_budget{8}, reserve);
    one_by_one(exact, rows, 0, 20);
    ASSERT_TRUE(exact.truncate(19));
    one_by_one(fresh, rows, 0, 19);
    expect_same(exact, fresh);
    append(exact, token_of(500.0F), 0, 1);
    append(fresh, token_of(500.0F), 0, 1);
    expect_same(exact, fresh);
    EXPECT_NEAR(answer(exact), (171.0 + 500.0) / 20.0, 1e-4);
  }
}

TEST(trunc, TRUNC_04_rejected_drafts_leave_no_trace) {
  const tokens rows = counting_tokens(one_head(), 100);
  auto cache = rolling(one_local(4), fixed_budget{8}, 4);
  auto stubborn = rolling(one_local(4), fixed_budget{8});
  for (auto* each : {&cache, &stubborn}) one_by_one(*each, rows, 0, 100);
  for (int round = 0; round < 200; ++round) {
    for (int draft = 0; draft < 4; ++draft) {
      append(cache, token_of(draft == 0 ? 50.0F : 1e6F), 0, 1);
      append(stubborn, token_of(50.0F), 0, 1);
    }
    ASSERT_TRUE(cache.truncate(cache.length() - 3));
    ASSERT_LT(answer(cache), 1000.0F);
    ASSERT_LE(folded_means(cache.head(0, 0)).second[0], 99.0F);
    const auto state = visible_state(stubborn);
    ASSERT_FALSE(stubborn.truncate(stubborn.length() - 3));
    ASSERT_TRUE(visible_state(stubborn) == state);
  }
  EXPECT_EQ(cache.length(), 300U);
}

TEST(trunc, TRUNC_05_the_length_asked_for_is_the_length_got) {
  const tokens rows = counting_tokens(one_head(), 500);
  auto cache = rolling(one_local(4), fixed_budget{1000});
  append(cache, rows, 0, 50);
  append(cache, rows, 50, 4);
  ASSERT_TRUE(cache.truncate(53));
  EXPECT_EQ(cache.length(), 53U);
  EXPECT_EQ(cache.kept_positions(0, 0).back(), 52U);
  ASSERT_TRUE(cache.truncate(50));
  auto list = rolling(one_local(4), fixed_budget{1000});
  append(list, rows, 0, 50);
  for (std::size_t round = 1; round <= 100; ++round) {
    append(cache, rows, round, 4);
    ASSERT_TRUE(cache.truncate(cache.length() - 2));
    append(list, rows, round, 2);
    ASSERT_EQ(cache.length(), 50 + 2 * round);
    expect_same(cache, list);
  }
}

template <class Format>
void sixteen_bit_and_others() {
  const model_shape shape{1, 2, 1, 64, 0};
  const tokens rows = random_tokens(shape, 45, 3);
  const head_plan plan(shape);
  auto base = rolling<Format>(plan, fixed_budget{1000});
  append(base, rows, 0, 40);
  for (const std::size_t n : {39U, 33U, 32U, 31U, 8U, 1U, 0U}) {
    auto cut = base;
    ASSERT_TRUE(cut.truncate(n));
    auto fresh = rolling<Format>(plan, fixed_budget{1000});
    append(fresh, rows, 0, n);
    expect_same(cut, fresh);
    append(cut, rows, 40, 5);
    append(fresh, rows, 40, 5);
    expect_same(cut, fresh);
    EXPECT_EQ(cut.report().slack_bytes, fresh.report().slack_bytes);
    EXPECT_EQ(cut.report().summary_bytes, fresh.report().summary_bytes);
    EXPECT_EQ(attended(cut, 0, rows.queries(40, 5)), attended(fresh, 0, rows.queries(40, 5)));
  }
}
TEST(trunc, TRUNC_06_every_format) {
  sixteen_bit_and_others<float32>();
  sixteen_bit_and_others<float16>();
  sixteen_bit_and_others<bfloat16>();
}

TEST(trunc, TRUNC_08_a_length_counts_tokens_and_not_rows) {
  const tokens rows = counting_tokens(one_head(), 30);
  auto cache = rolling(one_local(2), fixed_budget{8}, 6);
  one_by_one(cache, rows, 0, 30);
  ASSERT_EQ(cache.report().rows, 10U);
  auto cut = cache;
  ASSERT_TRUE(cut.truncate(25));
  EXPECT_EQ(cut.kept_positions(0, 0), sinks_and(2, 17, 25));
  const auto state = visible_state(cache);
  EXPECT_FALSE(cache.truncate(11));
  EXPECT_FALSE(cache.truncate(10));
  EXPECT_TRUE(visible_state(cache) == state);
}

TEST(trunc, TRUNC_10_what_is_in_a_mean_does_not_come_back) {
  const tokens rows = counting_tokens(one_head(), 100);
  for (const std::size_t reserve : {0U, 5U}) {
    auto cache = rolling(one_local(4), fixed_budget{8}, reserve);
    one_by_one(cache, rows, 0, 100);
    ASSERT_EQ(cache.report().folded, 88U);
    auto sinks = cache;
    ASSERT_TRUE(sinks.truncate(4));
    EXPECT_EQ(sinks.report().folded, 0U);
    EXPECT_NEAR(answer(sinks), 1.5, 1e-6);
    auto fresh = rolling(one_local(4), fixed_budget{8}, reserve);
    one_by_one(fresh, rows, 0, 4);
    expect_same(sinks, fresh);
    one_by_one(sinks, rows, 4, 60);
    one_by_one(fresh, rows, 4, 60);
    expect_same(sinks, fresh);
    const auto state = visible_state(cache);
    EXPECT_FALSE(cache.truncate(12));
    EXPECT_FALSE(cache.truncate(5));
    EXPECT_TRUE(visible_state(cache) == state);
    ASSERT_TRUE(cache.truncate(0));
    one_by_one(cache, rows, 0, 3);
    EXPECT_NEAR(answer(cache), 1.0, 1e-6);
  }
}

/// Every length within the reserve, from a copy each time: the state, what it answers, and how it goes on.
template <class Compensation>
void within_the_reserve(std::size_t sinks, std::size_t reserve, when_to_compress when, std::size_t chunk) {
  const model_shape shape{2, 2, 1, 16, 0};
  const tokens rows = random_tokens(shape, 420, 5);
  cache_options options;
  options.rollback_reserve = reserve;
  const auto make = [&] {
    return kv_cache<float16, razor_budget, Compensation>(head_plan(shape, head_role::local, sinks), razor_budget{20, 5},
                                                         Compensation{}, when, float16{}, options);
  };
  auto cache = make();
  std::size_t n = 0;
  const auto go_on = [&](auto& of, std::size_t to) {
    for (std::size_t i = of.length(); i < to;) {
      const std::size_t step = std::min(chunk, to - i);
      append(of, rows, i, step);
      if (i + step >= 100 && i < 100) of.compress();
      i += step;
    }
  };
  for (; n < 400; n += 67) {
    go_on(cache, n + 67);
    for (std::size_t back = 0; back <= std::min(reserve, cache.length()); ++back) {
      auto cut = cache;
      ASSERT_TRUE(cut.truncate(cache.length() - back)) << cache.length() << " - " << back;
      auto fresh = make();
      for (std::size_t i = 0; i < cut.length(); ++i) {
        append(fresh, rows, i, 1);
        if (i + 1 == std::min<std::size_t>(100, cut.length()) && cache.length() >= 100) fresh.compress();
      }
      // The last chunk of either may still be whole; the next token makes them equal.
      append(cut, rows, 410, 1);
      append(fresh, rows, 410, 1);
      expect_same(cut, fresh);
      ASSERT_EQ(attended(cut, 1, rows.queries(410, 1)), attended(fresh, 1, rows.queries(410, 1)));
    }
  }
}
TEST(trunc, within_the_reserve_it_is_a_run_that_never_saw_them) {
  for (const std::size_t sinks : {0U, 4U, 65U})
    for (const std::size_t reserve : {1U, 8U, 64U})
      for (const std::size_t chunk : {1U, 9U}) {
        SCOPED_TRACE(testing::Message() << "sinks " << sinks << ", reserve " << reserve << ", chunks of " << chunk);
        within_the_reserve<mean_compensation>(sinks, reserve, when_to_compress::every_append, chunk);
        within_the_reserve<mean_compensation>(sinks, reserve, when_to_compress::after_prompt, chunk);
        within_the_reserve<moment_compensation>(sinks, reserve, when_to_compress::every_append, chunk);
        within_the_reserve<no_compensation>(sinks, reserve, when_to_compress::every_append, chunk);
      }
}

/// A chunk leaves with the token behind it. More of it than the reserve holds: then it does not come back whole, but
/// the state is that of tokens that came one by one.
TEST(trunc, a_token_behind_a_chunk_is_taken_back_however_long_the_chunk_was) {
  const tokens rows = counting_tokens(one_head(), 60);
  for (const std::size_t reserve : {1U, 7U, 64U}) {
    auto cache = rolling(one_local(4), fixed_budget{8}, reserve);
    append(cache, rows, 0, 50);
    auto whole = cache;
    append(cache, rows, 50, 1);
    ASSERT_TRUE(cache.truncate(50));
    if (reserve < 64) whole.compress();
    expect_same(cache, whole);
    one_by_one(cache, rows, 50, 10);
    one_by_one(whole, rows, 50, 10);
    expect_same(cache, whole);
  }
}

/// What a list keeps among the sinks, and the sinks behind it, no window lets go.
TEST(trunc, tokens_are_taken_back_where_a_list_has_a_gap_among_the_sinks) {
  const tokens rows = counting_tokens(one_head(), 80);
  constexpr std::size_t more = 30;
  for (const std::size_t sinks : {4U, 20U})
    for (const std::size_t n : {3U, 11U, 12U, 14U, 30U}) {
      auto cache = rolling(one_local(sinks), fixed_budget{10}, more);
      one_by_one(cache, rows, 0, n);
      std::vector<std::size_t> positions = cache.kept_positions(0, 0);
      positions.erase(positions.begin() + 1);
      cache.retain(0, 0, positions);
      auto longer = cache;
      one_by_one(longer, rows, n, more);
      for (std::size_t stay = 0; stay <= more; ++stay) {
        auto cut = longer, fresh = cache;
        ASSERT_TRUE(cut.truncate(n + stay)) << sinks << " sinks, " << n << " + " << stay;
        one_by_one(fresh, rows, n, stay);
        expect_same(cut, fresh);
        one_by_one(cut, rows, n, more);
        one_by_one(fresh, rows, n, more);
        expect_same(cut, fresh);
      }
    }
}

TEST(trunc, a_step_that_failed_at_some_layer_is_taken_back) {
  const model_shape shape{3, 1, 1, 1, 0};
  const tokens rows = counting_tokens(shape, 100);
  for (const std::size_t reserve : {0U, 4U})
    for (const std::size_t chunk : {1U, 5U}) {
      auto cache = rolling(head_plan(shape, head_role::local, 2), fixed_budget{8}, reserve);
      auto fresh = cache;
      for (auto* each : {&cache, &fresh}) one_by_one(*each, rows, 0, 50);
      cache.append(0, rows.keys(50, chunk), rows.values(50, chunk));
      cache.append(1, rows.keys(50, chunk), rows.values(50, chunk));
      EXPECT_EQ(cache.length(), 50U);
      ASSERT_TRUE(cache.truncate(cache.length()));
      EXPECT_EQ(cache.layer_length(0), 50U);
      for (auto* each : {&cache, &fresh}) one_by_one(*each, rows, 60, 20);
      expect_same(cache, fresh);
    }
}

}  // namespace
}  // namespace headwise::test
