// SPDX-License-Identifier: MIT
// What attention tells beside its output: the log of its sum, and what each row received.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/core/thread_pool.hpp"
#include "support/exact_attention.hpp"
#include "support/kernel_case.hpp"
#include "support/refused.hpp"
#include "support/sizes.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::attend_schedule;
using headwise::attention_extras;
using headwise::attention_params;
using headwise::key_range;
using headwise::model_shape;
using headwise::received_attention;
using headwise::serial;
using headwise::test::exact_answer;
using headwise::test::exact_attention;
using headwise::test::sizes;
using headwise::test::tokens;

constexpr float lowest = std::numeric_limits<float>::lowest();

template <class Cache, class Mask = headwise::causal, class Executor = serial>
std::vector<float> attended(const Cache& cache, const tokens& rows, std::size_t first, std::size_t count,
                            const attention_extras& extras, const Mask& mask = {}, const Executor& executor = {}) {
  const model_shape& shape = rows.shape;
  std::vector<float> out(count * shape.query_heads * shape.value_size(), -7777.0F);
  attend_schedule schedule;
  attention_params params;
  params.first_position = first;
  headwise::attend(cache, 0, rows.queries(first, count),
                   headwise::packed_output(out.data(), count, shape.query_heads, shape.value_size()), schedule,
                   executor, params, mask, extras);
  return out;
}

auto cache_of(const tokens& rows, std::size_t length, std::size_t window = 50) {
  auto cache = headwise::make_cache<headwise::float32>(headwise::head_plan(rows.shape, headwise::head_role::local, 4),
                                                       headwise::fixed_budget{window}, headwise::mean_compensation{});
  headwise::test::append(cache, rows, 0, length);
  return cache;
}

class log_sum_exp : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(log_sum_exp);

TEST_P(log_sum_exp, equals_double_precision) {
  for (const model_shape& shape : {model_shape{1, 6, 2, 16, 0}, model_shape{1, 2, 2, 12, 8}}) {  // and the reference
    const tokens rows = headwise::test::random_tokens(shape, 300, 1);
    for (const bool compressed : {false, true}) {
      auto cache = cache_of(rows, 300, 100);
      if (compressed) cache.compress();
      const key_range folded = compressed ? key_range{4, 200} : key_range{};
      for (const std::size_t count : sizes{1, 5, 40, 90}) {
        std::vector<double> found(count * shape.query_heads, -7777.0);
        attention_extras extras;
        extras.log_sum_exp = found.data();
        const std::vector<float> out = attended(cache, rows, 300 - count, count, extras);
        EXPECT_EQ(out, attended(cache, rows, 300 - count, count, {}));  // asking changes nothing
        const exact_answer exact = exact_attention(rows, 300, 300 - count, count, headwise::causal{}, folded);
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_NEAR(found[i], exact.log_sum_exp[i], 1e-5) << i << " of " << count;
      }
    }
  }
}

TEST_P(log_sum_exp, is_the_lowest_float_where_nothing_is_seen) {
  const model_shape shape{1, 2, 1, 8, 0};
  const tokens rows = headwise::test::random_tokens(shape, 80, 2);
  const auto cache = cache_of(rows, 80);
  std::vector<double> found(10 * 2);
  attention_extras extras;
  extras.log_sum_exp = found.data();
  // The first five see nothing, the others themselves.
  const auto mask = [](std::size_t at) { return key_range{at, at < 45 ? at : at + 1}; };
  const std::vector<float> out = attended(cache, rows, 40, 10, extras, mask);
  for (std::size_t i = 0; i < 20; ++i) {
    if (i < 10)
      EXPECT_EQ(found[i], static_cast<double>(lowest));
    else
      EXPECT_GT(found[i], -100.0);
  }
  for (std::size_t i = 0; i < 5 * 16; ++i) EXPECT_EQ(out[i], 0.0F);
}

/// Two caches over two halves of a context, merged by their sums, are one cache over all of it.
TEST_P(log_sum_exp, merges_partial_answers) {
  const model_shape shape{1, 2, 2, 16, 0};
  const tokens rows = headwise::test::random_tokens(shape, 200, 3);
  const auto cache = cache_of(rows, 200);
  std::vector<double> sums[3];
  std::vector<float> outs[3];
  const key_range parts[] = {{0, 90}, {90, 200}, {0, 200}};
  for (std::size_t i = 0; i < 3; ++i) {
    sums[i].assign(2, 0.0);
    attention_extras extras;
    extras.log_sum_exp = sums[i].data();
    outs[i] = attended(cache, rows, 199, 1, extras, [&](std::size_t) { return parts[i]; });
  }
  for (std::size_t head = 0; head < 2; ++head) {
    const double a = 1.0 / (1.0 + std::exp(sums[1][head] - sums[0][head]));
    for (std::size_t i = head * 16; i < head * 16 + 16; ++i)
      EXPECT_NEAR(a * static_cast<double>(outs[0][i]) + (1.0 - a) * static_cast<double>(outs[1][i]),
                  static_cast<double>(outs[2][i]), 1e-5);
  }
}

class received : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(received);

template <class Mask>
void expect_received(const tokens& rows, std::size_t length, std::size_t first, std::size_t count, const Mask& mask) {
  const auto cache = cache_of(rows, length);
  received_attention found(rows.shape.kv_heads, length);
  attention_extras extras;
  extras.received = &found;
  const std::vector<float> out = attended(cache, rows, first, count, extras, mask);
  const exact_answer exact = exact_attention(rows, length, first, count, mask);
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_NEAR(static_cast<double>(out[i]), exact.out[i], 1e-5 * (1.0 + std::fabs(exact.out[i]))) << i;
  std::vector<std::size_t> could_see(length, 0);
  std::size_t that_see = 0;
  for (std::size_t token = first; token < first + count; ++token) {
    const key_range sees = mask(token);
    for (std::size_t at = sees.begin; at < sees.end && at < length; ++at) ++could_see[at];
    that_see += sees.begin < sees.end && sees.begin < length ? 1 : 0;
  }
  for (std::size_t head = 0; head < rows.shape.kv_heads; ++head) {
    double total = 0.0;
    for (std::size_t at = 0; at < length; ++at) {
      ASSERT_NEAR(found.sum(head, at), exact.received[head * length + at],
                  1e-5 * (1.0 + exact.received[head * length + at]))
          << "row " << at << " of KV head " << head << ", " << count << " queries";
      ASSERT_EQ(found.queries(at), could_see[at]) << at;
      total += found.sum(head, at);
    }
    const auto queries = static_cast<double>(that_see * rows.shape.group());
    ASSERT_NEAR(total, queries, 1e-5 * queries) << count << " queries from " << first;
  }
}

TEST_P(received, equals_double_precision_and_sums_to_the_number_of_queries) {
  for (const model_shape& shape :
       {model_shape{1, 6, 2, 16, 0}, model_shape{1, 1, 1, 8, 24}, model_shape{1, 2, 2, 12, 8}}) {
    const tokens rows = headwise::test::random_tokens(shape, 300, 4);
    for (const std::size_t count : sizes{1, 9, 65, 150}) {
      expect_received(rows, 300, 300 - count, count, headwise::causal{});
      expect_received(rows, 300, 0, count, headwise::causal{});
      expect_received(rows, 300, 0, count, headwise::windowed{40});
      expect_received(rows, 300, 0, count, headwise::prefix_lm{100});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(received, adds_up_over_calls) {
  const model_shape shape{1, 4, 2, 16, 0};
  const tokens rows = headwise::test::random_tokens(shape, 200, 5);
  const auto cache = cache_of(rows, 200);
  received_attention whole(2, 200);
  received_attention parts(2, 200);
  attention_extras extras;
  extras.received = &whole;
  attended(cache, rows, 0, 200, extras);
  extras.received = &parts;
  for (std::size_t first = 0; first < 200; first += 25) attended(cache, rows, first, 25, extras);
  for (std::size_t head = 0; head < 2; ++head)
    for (std::size_t at = 0; at < 200; ++at) {
      EXPECT_NEAR(parts.sum(head, at), whole.sum(head, at), 1e-5 * (1.0 + whole.sum(head, at))) << at;
      EXPECT_EQ(parts.queries(at), 200 - at);
      EXPECT_EQ(whole.queries(at), 200 - at);
    }
}

/// The summary takes its share, and what is left goes to the rows that are kept.
TEST_P(received, beside_a_summary_is_the_share_of_the_kept_rows) {
  const model_shape shape{1, 4, 2, 16, 0};
  const tokens rows = headwise::test::random_tokens(shape, 200, 6);
  auto cache = cache_of(rows, 200);
  cache.compress();  // 4 sinks and 50 rows are kept
  received_attention found(2, 200);
  attention_extras extras;
  extras.received = &found;
  attended(cache, rows, 160, 40, extras);
  const exact_answer exact = exact_attention(rows, 200, 160, 40, headwise::causal{}, {4, 150});
  for (std::size_t head = 0; head < 2; ++head)
    for (std::size_t at = 0; at < 200; ++at)
      ASSERT_NEAR(found.sum(head, at), exact.received[head * 200 + at], 1e-5 * (1.0 + found.sum(head, at))) << at;
}

TEST_P(received, has_the_same_bits_with_any_number_of_workers) {
  const model_shape shape{1, 12, 3, 16, 0};
  const tokens rows = headwise::test::random_tokens(shape, 700, 7);
  const auto cache = cache_of(rows, 700);
  const auto sums = [&](const auto& executor) {
    received_attention found(3, 700);
    attention_extras extras;
    extras.received = &found;
    attended(cache, rows, 0, 700, extras, headwise::causal{}, executor);
    std::vector<double> all;
    for (std::size_t head = 0; head < 3; ++head)
      for (std::size_t at = 0; at < 700; ++at) all.push_back(found.sum(head, at));
    return all;
  };
  const std::vector<double> expected = sums(serial{});
  for (const std::size_t workers : sizes{1, 2, 7}) EXPECT_EQ(sums(headwise::test::threads{workers}), expected);
  EXPECT_EQ(sums(headwise::thread_pool(7)), expected);
}

TEST_P(received, from_a_query_that_is_nan_is_nan_in_that_head_alone) {
  const model_shape shape{1, 4, 2, 8, 0};
  for (const std::size_t count : sizes{1, 5, 100}) {
    tokens rows = headwise::test::random_tokens(shape, 100, 8);
    rows.q[(99 * 4 + 1) * 8 + 3] = std::numeric_limits<float>::quiet_NaN();  // the last token, KV head 0
    const auto cache = cache_of(rows, 100);
    received_attention found(2, 100);
    attention_extras extras;
    extras.received = &found;
    attended(cache, rows, 100 - count, count, extras);
    for (std::size_t at = 0; at < 100; ++at) {
      EXPECT_TRUE(std::isnan(found.sum(0, at))) << at;
      EXPECT_TRUE(std::isfinite(found.sum(1, at))) << at;
    }
    attended(cache, rows, 10, 20, extras);  // it stays
    EXPECT_TRUE(std::isnan(found.sum(0, 5)));
  }
}

/// A refusal counts no query.
TEST(received_refused, where_there_is_no_room_and_nothing_is_counted) {
  const model_shape shape{1, 2, 1, 8, 0};
  const tokens rows = headwise::test::random_tokens(shape, 100, 9);
  auto cache = cache_of(rows, 100);
  received_attention found(1, 99);
  attention_extras extras;
  extras.received = &found;
  EXPECT_REFUSED(attended(cache, rows, 90, 10, extras), "99 rows", "100 tokens");
  for (std::size_t at = 0; at < 99; ++at) EXPECT_EQ(found.queries(at), 0U);
  cache.compress();
  received_attention enough(1, 100);
  extras.received = &enough;
  EXPECT_REFUSED(attended(cache, rows, 20, 1, extras), "have left");
  for (std::size_t at = 0; at < 100; ++at) EXPECT_EQ(enough.queries(at), 0U);
}

}  // namespace
