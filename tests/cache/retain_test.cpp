// SPDX-License-Identifier: MIT
// Any ragged list of rows to keep, and layers whose model has a window.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "headwise/attend/mask.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/random.hpp"
#include "support/sequence.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(retain, K0_the_folded_rows_keep_their_weight_and_the_dropped_ones_lose_it) {
  const tokens rows = counting_tokens(one_head(), 101);
  for (const auto& plan : {one_local(4), one_retrieval()}) {
    auto cache = make_cache<float32>(plan, fixed_budget{1000});
    append(cache, rows, 0, 100);
    auto dropping = cache;
    const std::vector<std::size_t> positions = {0, 7, 8, 63, 64, 65, 90};
    cache.retain(0, 0, positions);
    EXPECT_EQ(cache.kept_positions(0, 0), positions);
    EXPECT_EQ(cache.report().folded, 93U);
    EXPECT_NEAR(answer(cache), 49.5, 1e-4);
    dropping.retain(0, 0, positions, other_rows::drop);
    EXPECT_EQ(dropping.report().dropped, 93U);
    EXPECT_EQ(dropping.report().folded, 0U);
    EXPECT_NEAR(answer(dropping), (0 + 7 + 8 + 63 + 64 + 65 + 90) / 7.0, 1e-4);
    for (auto* each : {&cache, &dropping}) {
      append(*each, rows, 100, 1);
      EXPECT_EQ(each->length(), 101U);
      EXPECT_EQ(each->kept_positions(0, 0).back(), 100U);
    }
    EXPECT_NEAR(answer(cache), 50.0, 1e-4);
  }
}

/// Random lists, one after another, with rows that come in between and windows that slide, against lists of rows.
template <class Format, class Compensation>
void random_lists(summary_kind kind, std::uint32_t seed) {
  random_numbers random(seed);
  const model_shape shape{1, 4, 2, 16, 0};
  const std::size_t most = 500;
  const sequence rows(shape, most, seed);
  const std::size_t sinks = 3, window = 120;
  auto cache = make_cache<Format>(head_plan(shape, head_role::local, sinks), fixed_budget{window}, Compensation{},
                                  when_to_compress::every_append);
  exact_layer<Format> exact(rows);
  std::size_t n = 0;
  while (n + 70 < most) {
    const std::size_t step = 1 + random.below(60);
    cache.append(0, rows.k.view(n, step), rows.v.view(n, step));
    n += step;
    for (std::size_t head = 0; head < 2; ++head) {
      auto& list = exact.lists[head];
      list.append(step);
      const auto found = cache.kept_positions(0, head);  // rows that the window pushed out: only ever more
      std::vector<std::size_t> left;
      std::set_difference(list.kept.begin(), list.kept.end(), found.begin(), found.end(), std::back_inserter(left));
      for (const std::size_t position : left) {
        ASSERT_GE(position, sinks);
        ASSERT_LT(position + window, n);
      }
      list.kept = found;
      list.left.insert(list.left.end(), left.begin(), left.end());
      if (random.below(3) != 0) continue;
      std::vector<std::size_t> keep;
      const std::size_t share = 1 + random.below(5);
      for (const std::size_t position : found)
        if (random.below(share) == 0 || position + random.below(30) >= n) keep.push_back(position);
      if (keep.empty()) keep.push_back(found.back());
      std::set_difference(found.begin(), found.end(), keep.begin(), keep.end(), std::back_inserter(list.left));
      list.kept = keep;
      cache.retain(0, head, keep);
      ASSERT_EQ(cache.kept_positions(0, head), keep);
    }
    exact.expect(cache, n - 1, 1, kind, {}, 3e-5);
    if (testing::Test::HasFatalFailure()) return;
  }
}
TEST(retain, any_list_after_any_other) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    random_lists<float32, mean_compensation>(summary_kind::mean, seed);
    random_lists<float16, moment_compensation>(summary_kind::moment, seed);
    random_lists<bfloat16, no_compensation>(summary_kind::none, seed);
  }
}

TEST(retain, refuses_what_is_no_list_of_kept_positions) {
  const tokens rows = counting_tokens(one_head(), 100);
  auto cache = make_cache<float32>(one_local(4), fixed_budget{20}, mean_compensation{}, when_to_compress::every_append);
  for (std::size_t i = 0; i < 100; ++i) append(cache, rows, i, 1);
  const auto state = visible_state(cache);
  using list = std::vector<std::size_t>;
  for (const list& positions : {list{0, 0}, list{1, 0}, list{0, 50}, list{100}, list{static_cast<std::size_t>(-1)}})
    EXPECT_THROW(cache.retain(0, 0, positions), error);
  EXPECT_THROW(cache.retain(1, 0, {0}), error);
  EXPECT_THROW(cache.retain(0, 1, {0}), error);
  EXPECT_TRUE(visible_state(cache) == state);
  cache.retain(0, 0, {});  // nothing at all is a list too
  EXPECT_EQ(cache.report().rows, 0U);
  EXPECT_NEAR(answer(cache), 49.5, 1e-4);
}

TEST(retain, rows_that_are_alone_do_not_hold_a_page_each) {
  const model_shape shape{1, 1, 1, 128, 0};
  const tokens rows = random_tokens(shape, 4096, 1);
  auto cache = make_cache<float16>(head_plan(shape), unlimited_budget{});
  append(cache, rows, 0, 4096);
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < 4096; i += 64) positions.push_back(i);
  cache.retain(0, 0, positions);
  const cache_report report = cache.report();
  EXPECT_EQ(report.row_bytes, positions.size() * 512);
  EXPECT_LE(report.slack_bytes, 64 * 512 + positions.size() * 16 + 128);
}

TEST(retain, tokens_after_it_can_be_taken_back_and_those_before_it_cannot) {
  const tokens rows = counting_tokens(one_head(), 200);
  cache_options options;
  options.rollback_reserve = 10;
  auto cache = make_cache<float32>(one_local(4), fixed_budget{50}, mean_compensation{}, when_to_compress::every_append,
                                   float32{}, options);
  for (std::size_t i = 0; i < 100; ++i) append(cache, rows, i, 1);
  cache.retain(0, 0, {0, 1, 2, 3, 60, 80});
  auto fresh = cache;
  for (std::size_t i = 100; i < 120; ++i) append(cache, rows, i, 1);
  for (std::size_t i = 100; i < 110; ++i) append(fresh, rows, i, 1);
  ASSERT_TRUE(cache.truncate(110));
  EXPECT_TRUE(visible_state(cache) == visible_state(fresh));
  EXPECT_FALSE(cache.truncate(99));
  EXPECT_TRUE(visible_state(cache) == visible_state(fresh));
  EXPECT_TRUE(cache.truncate(4));
  EXPECT_NEAR(answer(cache), 1.5, 1e-6);
}

/// A layer with a window of the model's own gives what full attention under that mask gives, and holds no more.
TEST(windowed, rows_outside_are_dropped_and_nobody_misses_them) {
  const model_shape shape{2, 4, 2, 32, 0};
  const tokens rows = random_tokens(shape, 400, 7);
  for (const std::size_t window : {1U, 5U, 64U, 100U})
    for (const std::size_t chunk : {1U, 3U, 64U, 150U})
      for (const std::size_t reserve : {0U, 10U})
        for (const auto when :
             {when_to_compress::after_prompt, when_to_compress::every_append, when_to_compress::frozen}) {
          head_plan plan(shape);
          plan.set_window(1, window);
          cache_options options;
          options.rollback_reserve = reserve;
          auto cache = make_cache<float32>(plan, unlimited_budget{}, mean_compensation{}, when, float32{}, options);
          kv_cache<float32> full(head_plan(shape, head_role::retrieval));
          for (std::size_t i = 0; i < 400; i += chunk) {
            const std::size_t n = std::min<std::size_t>(chunk, 400 - i);
            append(cache, rows, i, n);
            append(full, rows, i, n);
            if (i == 100) cache.compress();
            const auto found = attended(cache, 1, rows.queries(i, n));
            std::vector<float> exact(found.size());
            attend_schedule schedule;
            headwise::attend(full, 1, rows.queries(i, n), packed_output(exact.data(), n, 4, 32), schedule, serial{}, {},
                             headwise::windowed{window});
            for (std::size_t j = 0; j < exact.size(); ++j) ASSERT_NEAR(found[j], exact[j], 1e-5);
            ASSERT_LE(cache.head(1, 0).rows().kept(), window + chunk);
            ASSERT_EQ(cache.head(1, 0).folded(), 0U);
            ASSERT_LE(cache.head(1, 0).rows().pages(), (window + chunk + reserve) / 64 + 2);
          }
          for (std::size_t back = 1; back <= reserve; ++back) {
            auto cut = cache;
            ASSERT_TRUE(cut.truncate(400 - back));
            append(cut, rows, 0, 1);
            auto other = full;
            ASSERT_TRUE(other.truncate(400 - back));
            append(other, rows, 0, 1);
            std::vector<float> exact(128);
            attend_schedule schedule;
            headwise::attend(other, 1, rows.queries(0, 1), packed_output(exact.data(), 1, 4, 32), schedule, serial{},
                             {}, headwise::windowed{window});
            const auto found = attended(cut, 1, rows.queries(0, 1));
            for (std::size_t j = 0; j < exact.size(); ++j) ASSERT_NEAR(found[j], exact[j], 1e-5);
          }
          if (reserve == 0 && chunk == 1) {
            EXPECT_FALSE(cache.truncate(398));
          }
        }
}

/// Policies change while a windowed layer has let rows go: what it holds is what it would hold anyway.
TEST(windowed, layers_stay_as_they_are_when_policies_change) {
  const model_shape shape{3, 4, 2, 32, 0};
  const tokens rows = random_tokens(shape, 300, 3);
  head_plan plan(shape, head_role::retrieval);
  plan.set_window(1, 20);
  cache_options options;
  options.rollback_reserve = 8;
  auto cache = make_cache<float32>(plan, unlimited_budget{}, no_compensation{}, when_to_compress::after_prompt,
                                   float32{}, options);
  for (std::size_t i = 0; i < 200; i += 50) append(cache, rows, i, 50);
  EXPECT_EQ(cache.report().folded, 0U);
  EXPECT_GT(cache.head(1, 0).dropped(), 0U);
  head_plan smaller(shape);
  smaller.set_window(1, 20);
  auto changed = cache.with(smaller, fixed_budget{30}, moment_compensation{});
  auto direct = make_cache<float32>(smaller, fixed_budget{30}, moment_compensation{}, when_to_compress::after_prompt,
                                    float32{}, options);
  for (std::size_t i = 0; i < 200; i += 50) append(direct, rows, i, 50);
  const auto expect_same = [&] {
    for (std::size_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(changed.kept_positions(layer, 1), direct.kept_positions(layer, 1)) << layer;
      EXPECT_EQ(attended(changed, layer, rows.queries(0, 1)), attended(direct, layer, rows.queries(0, 1))) << layer;
    }
  };
  expect_same();
  EXPECT_EQ(cache.head(1, 0).rows().pages(), changed.head(1, 0).rows().pages());
  changed.compress();
  direct.compress();
  for (std::size_t i = 200; i < 220; ++i) append(changed, rows, i, 1), append(direct, rows, i, 1);
  EXPECT_EQ(changed.head(1, 1).dropped(), 200U);
  expect_same();
  ASSERT_TRUE(changed.truncate(213));
  ASSERT_TRUE(direct.truncate(213));
  expect_same();

  head_plan other(shape);
  EXPECT_THROW(cache.with(other, fixed_budget{30}, no_compensation{}), error);  // rows would have to come back
  other.set_window(1, 19);
  EXPECT_THROW(cache.with(other, fixed_budget{30}, no_compensation{}), error);
  EXPECT_EQ(cache.length(), 200U);
}

/// Rows that a list has dropped are missed by no window; rows that the window has let go are, by queries from before.
TEST(windowed, tokens_behind_a_list_are_answered) {
  const model_shape shape{1, 1, 1, 1, 0};
  const tokens rows = counting_tokens(shape, 40);
  head_plan plan(shape);
  plan.set_window(0, 16);
  auto cache = make_cache<float32>(plan);
  append(cache, rows, 0, 20);
  cache.retain(0, 0, {2, 5, 10, 19}, other_rows::drop);
  EXPECT_NEAR(answer(cache), (5 + 10 + 19) / 3.0, 1e-5);  // sees 4 to 19
  append(cache, rows, 20, 1);
  EXPECT_NEAR(answer(cache), (5 + 10 + 19 + 20) / 4.0, 1e-5);
  append(cache, rows, 21, 3);
  EXPECT_NEAR(answer(cache), (10 + 19 + 20 + 21 + 22 + 23) / 6.0, 1e-5);  // sees 8 to 23
  attention_params params;
  params.first_position = 18;  // before the list
  EXPECT_THROW(attended(cache, 0, rows.queries(0, 1), serial{}, params), error);
  for (std::size_t i = 24; i < 40; ++i) append(cache, rows, i, 1);
  EXPECT_NEAR(answer(cache), (24 + 39) / 2.0, 1e-4);
  params.first_position = 38;  // sees 23
  EXPECT_THROW(attended(cache, 0, rows.queries(0, 1), serial{}, params), error);
}

TEST(windowed, is_a_matter_of_layers) {
  head_plan plan(model_shape{2, 2, 2, 8, 0});
  plan.set_window(1, 16);
  EXPECT_EQ(plan.window(0), 0U);
  EXPECT_EQ(plan.window(1), 16U);
  EXPECT_EQ(plan.role({1, 1}), head_role::windowed);
  EXPECT_THROW(plan.set_window(0, 0), error);
  EXPECT_THROW(plan.set_window(2, 16), error);
  EXPECT_THROW(plan.set({0, 0}, head_role::windowed), error);
  EXPECT_THROW(plan.set({1, 0}, head_role::local), error);
  EXPECT_THROW(head_plan(plan.shape(), head_role::windowed), error);
  auto cache = make_cache<float32>(plan);
  append(cache, random_tokens(plan.shape(), 10, 1), 0, 10);
  EXPECT_THROW(cache.retain(1, 0, {1, 2}), error);
  cache.retain(1, 0, {1, 2}, other_rows::drop);
  EXPECT_EQ(cache.kept_positions(1, 0), (std::vector<std::size_t>{1, 2}));
}

}  // namespace
}  // namespace headwise::test
