// SPDX-License-Identifier: MIT
#include "headwise/attend/attend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "support/format_names.hpp"
#include "support/refused.hpp"
#include "support/sequence.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::any_compensation;
using headwise::attend_schedule;
using headwise::attention_params;
using headwise::bfloat16;
using headwise::element_type;
using headwise::fixed_budget;
using headwise::float16;
using headwise::float32;
using headwise::head_plan;
using headwise::head_role;
using headwise::model_shape;
using headwise::when_to_compress;
using headwise::test::exact_layer;
using headwise::test::order;
using headwise::test::sequence;
using headwise::test::sizes;
using headwise::test::summary_kind;

model_shape layer_of(std::size_t kv_heads, std::size_t group, std::size_t dim, std::size_t value_dim = 0) {
  return {1, kv_heads * group, kv_heads, dim, value_dim};
}

any_compensation compensation_of(summary_kind kind) {
  if (kind == summary_kind::mean) return headwise::mean_compensation{};
  if (kind == summary_kind::moment) return headwise::moment_compensation{};
  return headwise::no_compensation{};
}

/// A cache of one layer whose local heads keep sinks and a fixed window.
template <class Format>
auto cache_of(const model_shape& shape, std::size_t sinks, std::size_t window, summary_kind kind,
              when_to_compress when = when_to_compress::after_prompt) {
  return headwise::make_cache<Format>(head_plan(shape, head_role::local, sinks), fixed_budget{window},
                                      compensation_of(kind), when);
}

template <class Cache>
void append(Cache& cache, const sequence& tokens, std::size_t first, std::size_t count) {
  cache.append(0, tokens.k.view(first, count), tokens.v.view(first, count));
}

template <class Format>
class attend : public testing::Test {};
using formats = testing::Types<float32, float16, bfloat16>;
TYPED_TEST_SUITE(attend, formats, headwise::test::format_names);

/// All lengths and groups, shared out among the formats; head sizes, element types and orders of the caller's tensors
/// in turn. One query and a chunk.
TYPED_TEST(attend, of_every_length_and_group_equals_the_reference) {
  const sizes dims{64, 80, 96, 128, 256};
  const element_type types[] = {element_type::f32, element_type::f16, element_type::bf16};
  const order orders[] = {order::packed, order::heads_first, order::odd};
  const std::size_t share = TypeParam::bytes(1) == 4 ? 0 : (TypeParam::name()[0] == 'f' ? 1 : 2);
  for (std::size_t length = 1; length <= 130; ++length)
    for (std::size_t group = 1 + (length + share) % 3; group <= 8; group += 3) {
      const std::size_t turn = length + 3 * group;
      const model_shape shape = layer_of(group < 4 ? 2 : 1, group, dims[turn % 5]);
      const sequence tokens(shape, length, static_cast<std::uint32_t>(turn), types[turn % 3], orders[turn / 3 % 3], 4);
      auto cache = cache_of<TypeParam>(shape, 4, 1000, summary_kind::mean);
      append(cache, tokens, 0, length);
      exact_layer<TypeParam> exact(tokens);
      exact.append(length);
      exact.expect(cache, length - 1, 1);
      const std::size_t chunk = 1 + turn % std::min<std::size_t>(length, 4);
      exact.expect(cache, length - chunk, chunk);
      if (testing::Test::HasFatalFailure()) return;
    }
}

TYPED_TEST(attend, of_a_chunk_of_a_whole_prompt_equals_the_reference) {
  for (const std::size_t group : sizes{1, 3, 8})  // 130 queries are 2, 5 and 11 blocks of queries
    for (const std::size_t length : sizes{1, 64, 65, 130}) {
      const model_shape shape = layer_of(2, group, 20, 12);
      const sequence tokens(shape, length, 5);
      auto cache = cache_of<TypeParam>(shape, 4, 1000, summary_kind::mean);
      append(cache, tokens, 0, length);
      exact_layer<TypeParam> exact(tokens);
      exact.append(length);
      exact.expect(cache, 0, length);
    }
}

/// Rows that leave one by one, at every length from nothing to well behind the window.
TYPED_TEST(attend, while_every_append_folds_equals_the_reference) {
  for (const summary_kind kind : {summary_kind::none, summary_kind::mean, summary_kind::moment})
    for (const std::size_t sinks : sizes{0, 4, 65})
      for (const std::size_t window : sizes{1, 5, 64}) {
        const model_shape shape = layer_of(1, 2, 24, 16);
        const std::size_t length = 140;
        const sequence tokens(shape, length, 6);
        auto cache = cache_of<TypeParam>(shape, sinks, window, kind, when_to_compress::every_append);
        exact_layer<TypeParam> exact(tokens);
        for (std::size_t n = 0; n < length; ++n) {
          append(cache, tokens, n, 1);
          exact.append(1);
          exact.fold(sinks, window, kind);
          exact.expect(cache, n, 1, kind, {}, 2e-5);
          if (testing::Test::HasFatalFailure()) return;
        }
        EXPECT_EQ(cache.kept_positions(0, 0), exact.lists[0].kept);
      }
}

/// A prompt, compress(), then chunks and single tokens: a chunk attends to all that was stored before it and to itself.
TYPED_TEST(attend, of_chunks_behind_folded_rows_equals_the_reference) {
  for (const summary_kind kind : {summary_kind::none, summary_kind::mean, summary_kind::moment}) {
    const std::size_t sinks = 3;
    const std::size_t window = 40;
    const model_shape shape = layer_of(2, 3, 32);
    const sequence tokens(shape, 400, 7);
    auto cache = headwise::make_cache<TypeParam>(
        [&] {
          head_plan plan(shape, head_role::local, sinks);
          plan.set({0, 1}, head_role::retrieval);
          return plan;
        }(),
        fixed_budget{window}, compensation_of(kind));
    exact_layer<TypeParam> exact(tokens);
    const auto fold = [&] {  // head 1 keeps everything
      exact.lists[0].fold(sinks, window, headwise::test::folded_together(kind));
    };
    append(cache, tokens, 0, 200);
    exact.append(200);
    exact.expect(cache, 150, 50, kind);  // the prompt is attended to exactly
    cache.compress();
    fold();
    std::size_t length = 200;
    for (const std::size_t chunk : sizes{1, 1, 30, 1, 70, 64, 2, 1}) {
      if (chunk > 1) fold();
      append(cache, tokens, length, chunk);
      exact.append(chunk);
      length += chunk;
      if (chunk == 1) fold();
      exact.expect(cache, length - chunk, chunk, kind, {}, 2e-5);
    }
    for (std::size_t head = 0; head < 2; ++head) EXPECT_EQ(cache.kept_positions(0, head), exact.lists[head].kept);
  }
}

TYPED_TEST(attend, with_softcap_and_scale_equals_the_reference) {
  for (const float softcap : {0.0F, 0.5F, 20.0F})
    for (const float scale : {0.0F, 1.0F, 0.03F, -0.25F}) {
      const model_shape shape = layer_of(1, 4, 32);
      const sequence tokens(shape, 100, 8);
      for (const summary_kind kind : {summary_kind::mean, summary_kind::moment}) {
        auto cache = cache_of<TypeParam>(shape, 4, 30, kind);
        append(cache, tokens, 0, 100);
        cache.compress();
        exact_layer<TypeParam> exact(tokens);
        exact.append(100);
        exact.fold(4, 30, kind);
        attention_params params;
        params.softcap = softcap;
        params.scale = scale;
        exact.expect(cache, 99, 1, kind, params, 1e-4);  // logits up to 30: the last place of e^30 is 30 * 2^-24
        exact.expect(cache, 80, 20, kind, params, 1e-4);
      }
    }
}

/// Long enough for several ranges of rows per head, which are merged.
TYPED_TEST(attend, over_many_ranges_of_rows_equals_the_reference) {
  const model_shape shape = layer_of(1, 2, 64);
  const sequence tokens(shape, 5000, 9);
  auto cache = cache_of<TypeParam>(shape, 4, 3000, summary_kind::mean);
  append(cache, tokens, 0, 5000);
  exact_layer<TypeParam> exact(tokens);
  exact.append(5000);
  exact.expect(cache, 4999, 1);
  exact.expect(cache, 4990, 10);
  cache.compress();
  exact.fold(4, 3000);
  exact.expect(cache, 4999, 1, summary_kind::mean);
}

TEST(attend_at, positions_in_the_past_sees_what_was_there_then) {
  const model_shape shape = layer_of(1, 2, 16);
  const sequence tokens(shape, 150, 10);
  auto cache = cache_of<float32>(shape, 4, 50, summary_kind::mean);
  append(cache, tokens, 0, 150);
  exact_layer<float32> exact(tokens);
  exact.append(150);
  for (const std::size_t first : sizes{0, 1, 63, 64, 65, 100, 140}) exact.expect(cache, first, 10);
}

TEST(attend_at, positions_whose_rows_have_left_is_refused) {
  const model_shape shape = layer_of(1, 2, 16);
  const sequence tokens(shape, 150, 10);
  auto cache = cache_of<float32>(shape, 4, 50, summary_kind::mean);
  append(cache, tokens, 0, 150);
  cache.compress();  // keeps 0..3 and 100..149
  exact_layer<float32> exact(tokens);
  exact.append(150);
  exact.fold(4, 50);
  for (const std::size_t first : sizes{100, 101, 140}) exact.expect(cache, first, 10, summary_kind::mean);
  for (const std::size_t first : sizes{0, 4, 98})
    EXPECT_REFUSED(exact.expect(cache, first, 10, summary_kind::mean), "KV head 0.0", "99",
                   std::to_string(first).c_str());
}

/// Also where an earlier head would have allowed it.
TEST(attend_at, positions_that_one_head_refuses_leaves_no_tasks) {
  const model_shape shape = layer_of(2, 1, 8);
  const sequence tokens(shape, 100, 14);
  head_plan plan(shape);
  plan.set({0, 0}, head_role::retrieval);
  auto cache = headwise::make_cache<float32>(plan, fixed_budget{10});
  append(cache, tokens, 0, 100);
  cache.compress();
  attend_schedule schedule;
  std::vector<float> out(2 * 8, -7777.0F);
  attention_params params;
  params.first_position = 20;
  EXPECT_REFUSED(headwise::attend(cache, 0, tokens.q.view(20, 1), headwise::packed_output(out.data(), 1, 2, 8),
                                  schedule, headwise::serial{}, params),
                 "position 20", "KV head 0.1", "89");
  EXPECT_EQ(schedule.tasks(), 0U);
  EXPECT_EQ(out, std::vector<float>(2 * 8, -7777.0F));
}

TEST(attend_at, a_position_that_sees_no_row_gives_zeros) {
  const model_shape shape = layer_of(2, 2, 8);
  const sequence tokens(shape, 20, 11);
  auto cache = cache_of<float32>(shape, 0, 5, summary_kind::none);
  append(cache, tokens, 0, 20);
  cache.compress();  // keeps 15..19, and nothing stands for the others
  exact_layer<float32> exact(tokens);
  exact.append(20);
  exact.fold(0, 5);
  exact.expect(cache, 14, 1);
  exact.expect(cache, 14, 6);
}

TEST(attend_views, output_may_lie_anywhere_and_nothing_beside_it_is_written) {
  const model_shape shape = layer_of(2, 3, 24, 10);
  const sequence tokens(shape, 70, 12);
  auto cache = cache_of<float16>(shape, 4, 20, summary_kind::moment);
  append(cache, tokens, 0, 70);
  attend_schedule schedule;
  std::vector<float> packed(9 * 6 * 10);
  headwise::attend(cache, 0, tokens.q.view(61, 9), headwise::packed_output(packed.data(), 9, 6, 10), schedule);
  struct {
    std::size_t token_stride, head_stride;
  } const strides[] = {{60, 10}, {10, 90}, {101, 13}, {17, 153}};
  for (const auto& stride : strides) {
    const float canary = -7777.0F;
    const std::size_t extent = 8 * stride.token_stride + 5 * stride.head_stride + 10;
    std::vector<float> found(5 + extent + 5, canary);
    std::vector<float> expected = found;
    for (std::size_t t = 0, n = 0; t < 9; ++t)
      for (std::size_t head = 0; head < 6; ++head)
        for (std::size_t i = 0; i < 10; ++i, ++n)
          expected[5 + t * stride.token_stride + head * stride.head_stride + i] = packed[n];
    headwise::attend(cache, 0, tokens.q.view(61, 9),
                     {found.data() + 5, 9, 6, 10, stride.token_stride, stride.head_stride, extent}, schedule);
    EXPECT_EQ(found, expected) << stride.token_stride << " " << stride.head_stride;  // bit for bit, gaps included
  }
}

TEST(attend_views, no_queries_are_no_work_and_null_is_fine) {
  const model_shape shape = layer_of(1, 1, 8);
  auto cache = cache_of<float16>(shape, 4, 20, summary_kind::mean);
  attend_schedule schedule;
  EXPECT_NO_THROW(headwise::attend(cache, 0, headwise::packed_rows(nullptr, 0, 1, 8),
                                   headwise::packed_output(nullptr, 0, 1, 8), schedule));
  EXPECT_NO_THROW(headwise::attend(cache, 0, {}, {}, schedule));
  EXPECT_EQ(schedule.tasks(), 0U);
}

/// Each refusal names what was found, writes nothing, and leaves the schedule as good as new.
TEST(attend_refuses, what_does_not_fit_and_changes_nothing) {
  const model_shape shape = layer_of(2, 3, 16, 8);
  const sequence tokens(shape, 40, 13);
  auto cache = cache_of<float16>(shape, 4, 20, summary_kind::mean);
  append(cache, tokens, 0, 40);
  std::vector<float> out(5 * 6 * 8, -7777.0F);
  const std::vector<float> canaries = out;
  attend_schedule schedule;
  struct call {
    std::size_t layer;
    headwise::token_view q;
    headwise::output_view out;
    attention_params params;
  };
  const auto good = [&] {
    call c{0, tokens.q.view(35, 5), headwise::packed_output(out.data(), 5, 6, 8), {}};
    c.out.extent = out.size();
    return c;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  struct {
    void (*spoil)(call&, float);
    float number;
    const char* first;
    const char* second;
  } const cases[] = {
      {[](call& c, float) { c.layer = 1; }, 0, "layer 1", "1 layers"},
      {[](call& c, float) { c.layer = static_cast<std::size_t>(-1); }, 0, "layer 18446744073709551615", ""},
      {[](call& c, float) { c.q.heads = 5; }, 0, "queries: 5 heads", "expected 6"},
      {[](call& c, float) { c.q.heads = 2; }, 0, "queries: 2 heads", "expected 6"},
      {[](call& c, float) { c.q.dim = 8; }, 0, "of 8 elements", "of 16"},
      {[](call& c, float) { c.q.data = nullptr; }, 0, "queries", "null"},
      {[](call& c, float) { c.q.head_stride = 15; }, 0, "head stride 15", "16"},
      {[](call& c, float) { c.q.token_stride = 15; }, 0, "token stride 15", "16"},
      {[](call& c, float) { --c.q.extent; }, 0, "queries: reaches 480", "479"},
      {[](call& c, float) { c.q.tokens = std::size_t{1} << 31; }, 0, "2147483648 tokens", ""},
      {[](call& c, float) { c.q.tokens = static_cast<std::size_t>(-1); }, 0, "18446744073709551615", ""},
      {[](call& c, float) { c.q.tokens = 4; }, 0, "4 queries", "5 outputs"},
      {[](call& c, float) { c.out.tokens = 4; }, 0, "5 queries", "4 outputs"},
      {[](call& c, float) { c.out.heads = 2; }, 0, "output: 2 heads", "expected 6"},
      {[](call& c, float) { c.out.dim = 16; }, 0, "of 16 elements", "of 8"},
      {[](call& c, float) { c.out.data = nullptr; }, 0, "output", "null"},
      {[](call& c, float) { c.out.head_stride = 7; }, 0, "output: head stride 7", "8"},
      {[](call& c, float) { c.out.token_stride = 7; }, 0, "output: token stride 7", "8"},
      {[](call& c, float) { --c.out.extent; }, 0, "output: reaches 240", "239"},
      {[](call& c, float) { c.params.first_position = 36; }, 0, "36 to 40", "40 tokens"},
      {[](call& c, float) { c.params.first_position = static_cast<std::size_t>(-2); }, 0, "18446744073709551614", ""},
      {[](call& c, float x) { c.params.scale = x; }, nan, "scale", ""},
      {[](call& c, float x) { c.params.scale = x; }, infinity, "scale", ""},
      {[](call& c, float x) { c.params.softcap = x; }, nan, "softcap", ""},
      {[](call& c, float x) { c.params.softcap = x; }, -1.0F, "softcap", ""},
  };
  for (const auto& bad : cases) {
    call c = good();
    bad.spoil(c, bad.number);
    EXPECT_REFUSED(headwise::attend(cache, c.layer, c.q, c.out, schedule, headwise::serial{}, c.params), bad.first,
                   bad.second);
    EXPECT_EQ(out, canaries) << bad.first;
    EXPECT_EQ(schedule.tasks(), 0U) << bad.first;
  }

  auto empty = cache_of<float16>(shape, 4, 20, summary_kind::mean);
  call c = good();
  EXPECT_REFUSED(headwise::attend(empty, c.layer, c.q, c.out, schedule), "5 queries", "0 tokens");
  append(empty, tokens, 0, 4);
  EXPECT_REFUSED(headwise::attend(empty, c.layer, c.q, c.out, schedule), "5 queries", "4 tokens");
  EXPECT_EQ(out, canaries);

  headwise::attend(cache, c.layer, c.q, c.out, schedule);
  std::vector<float> fresh(out.size());
  attend_schedule other;
  headwise::attend(cache, 0, c.q, headwise::packed_output(fresh.data(), 5, 6, 8), other);
  EXPECT_EQ(out, fresh);
}

}  // namespace
