// SPDX-License-Identifier: MIT
// Cases SOFT: the softmax with nothing to see, NaN, infinities, extreme logits, very many rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

/// One query of size 1 over keys that are the logits; the value of row t is t, or as given.
float over_logits(const std::vector<float>& logits, const std::vector<float>& values = {}) {
  tokens rows = counting_tokens(one_head(), logits.size());
  rows.k = logits;
  if (!values.empty()) rows.v = values;
  auto cache = make_cache<float32>(one_retrieval());
  append(cache, rows, 0, rows.count);
  return answer(cache);
}

TEST(soft, SOFT_01_nothing_to_attend_to) {
  // The answer here is a refusal, the same from a decode and from a chunk; an empty call succeeds.
  auto cache = make_cache<float32>(one_local(4));
  float out = -1.0F;
  const float q[3] = {};
  attend_schedule schedule;
  for (const std::size_t queries : {1U, 3U})
    EXPECT_THROW(attend(cache, 0, packed_rows(q, queries, 1, 1), packed_output(&out, queries, 1, 1), schedule), error);
  EXPECT_EQ(out, -1.0F);

  const auto empty = [&] {
    cache.append(0, packed_rows(nullptr, 0, 1, 1), packed_rows(nullptr, 0, 1, 1));
    cache.append(0, token_view{}, token_view{});
    attend(cache, 0, packed_rows(nullptr, 0, 1, 1), packed_output(nullptr, 0, 1, 1), schedule);
    cache.compress();
  };
  empty();
  EXPECT_EQ(cache.length(), 0U);
  append(cache, counting_tokens(one_head(), 3), 0, 3);
  const auto before = visible_state(cache);
  empty();
  EXPECT_TRUE(visible_state(cache) == before);
}

TEST(soft, SOFT_03_all_logits_far_below_zero) {
  std::vector<float> logits(16, -1e5F);
  EXPECT_FLOAT_EQ(over_logits(logits), 7.5F);
  logits[9] = -99990.0F;
  EXPECT_NEAR(over_logits(logits), 8.9989, 2e-3);
  EXPECT_FLOAT_EQ(over_logits(std::vector<float>(16, -3e38F)), 7.5F);

  tokens rows = counting_tokens(one_head(), 110);
  rows.k.assign(110, -1e5F);
  auto cache = make_cache<float32>(one_local(4), fixed_budget{6});
  append(cache, rows, 0, 110);
  cache.compress();
  EXPECT_NEAR(answer(cache), 54.5, 54.5e-5);
}

/// Outputs of a chunk, of decodes, and of a decode with folded rows, in memory that is filled with `byte` first.
template <class Format>
std::vector<float> in_memory_of(int byte, std::size_t n, std::size_t dim) {
  const tokens rows = random_tokens(one_head(dim), n + 5, static_cast<unsigned>(n));  // 5: the poison, too
  memory().fill = byte;
  std::vector<float> out;
  {
    auto cache = make_cache<Format>(one_local(4, dim), fixed_budget{10});
    out = feed(cache, rows, 0, n);
    for (std::size_t step = 0; step < 2; ++step) {
      const auto found = feed(cache, rows, n + step, 1);
      out.insert(out.end(), found.begin(), found.end());
      cache.compress();
    }
    cache = make_cache<Format>(one_local(4, dim), fixed_budget{10});  // in memory that held the first
    const auto found = feed(cache, rows, 0, n);
    out.insert(out.end(), found.begin(), found.end());

    // Rows of NaN come, and are taken back.
    tokens poison = rows;
    poison.v.assign(poison.v.size(), std::numeric_limits<float>::quiet_NaN());
    append(cache, poison, 0, 5);
    EXPECT_TRUE(cache.truncate(n));
    for (std::size_t step = 0; step < 2; ++step) {
      const auto after = feed(cache, rows, n + step, 1);
      out.insert(out.end(), after.begin(), after.end());
    }
    EXPECT_TRUE(cache.truncate(0));  // and all is used again
    const auto again = feed(cache, rows, 0, n);
    EXPECT_EQ(again, found);
  }
  memory().fill = -1;
  return out;
}

TEST(soft, SOFT_04_what_new_memory_holds_does_not_matter) {
  const auto same = [](auto format, std::size_t n, std::size_t dim) {
    using format_type = decltype(format);
    const auto found = in_memory_of<format_type>(0xFF, n, dim);
    ASSERT_TRUE(std::all_of(found.begin(), found.end(), [](float x) { return std::isfinite(x); }));
    ASSERT_EQ(found, in_memory_of<format_type>(0, n, dim)) << format.name() << ", " << n << " rows of " << dim;
  };
  for (const std::size_t n :
       {1U, 3U, 7U, 13U, 26U, 31U, 32U, 33U, 63U, 64U, 65U, 95U, 96U, 127U, 128U, 129U, 160U, 192U, 224U, 320U, 384U})
    for (const std::size_t dim : {8U, 40U, 64U}) {
      same(float32{}, n, dim);
      same(float16{}, n, dim);
      same(bfloat16{}, n, dim);
    }
}

TEST(soft, SOFT_06_large_logits_do_not_overflow) {
  EXPECT_EQ(over_logits({-10000.0F, 0.0F, 10000.0F}, {1.0F, 2.0F, 3.0F}), 3.0F);
  EXPECT_EQ(over_logits({10000.0F, 0.0F, -10000.0F}, {3.0F, 2.0F, 1.0F}), 3.0F);
  EXPECT_EQ(over_logits({378.1F, -424.1F, -460.3F, -249.9F}, {1.0F, 2.0F, 3.0F, 4.0F}), 1.0F);
  for (std::size_t largest = 0; largest < 41; ++largest) {
    std::vector<float> logits(41, -10000.0F);
    logits[largest] = 10000.0F;
    EXPECT_EQ(over_logits(logits), static_cast<float>(largest));
  }
  tokens rows = counting_tokens(one_head(), 41);
  rows.k.assign(41, 1e19F);
  for (const std::size_t window : {4U, 100U}) {  // with rows folded, and without
    auto cache = make_cache<float32>(one_local(4), fixed_budget{window});
    append(cache, rows, 0, 41);
    cache.compress();
    EXPECT_NEAR(answer(cache, 1e19F), 20.0, 20e-5);
  }
}

TEST(soft, SOFT_07_nan_stays_visible_and_stays_where_it_is) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const model_shape shape{1, 4, 2, 8, 0};
  constexpr std::size_t n = 40;
  const std::size_t out_row = 8;

  const auto run = [&](const tokens& rows, bool folded) {
    auto cache = make_cache<float32>(head_plan(shape), fixed_budget{5});
    const auto prompt = feed(cache, rows, 0, n);
    if (folded) cache.compress();
    return folded ? attended(cache, 0, rows.queries(n - 1, 1)) : prompt;
  };
  // Every row of the output is NaN where `expected` says so and bit-equal to the clean run elsewhere.
  const auto check = [&](const tokens& rows, const tokens& clean, bool folded, auto&& expected) {
    const auto found = run(rows, folded);
    const auto good = run(clean, folded);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t token = folded ? n - 1 : i / (4 * out_row);
      if (expected(token, i / out_row % 4)) {
        ASSERT_TRUE(std::isnan(found[i])) << "token " << token << ", element " << i;
      } else {
        ASSERT_EQ(found[i], good[i]) << "token " << token << ", element " << i;
      }
    }
  };
  const tokens clean = random_tokens(shape, n, 7);
  for (const bool folded : {false, true}) {
    const std::size_t token = folded ? n - 1 : 17;
    tokens query = clean;
    query.q[(token * 4 + 2) * 8 + 3] = nan;
    check(query, clean, folded, [&](std::size_t t, std::size_t head) { return t == token && head == 2; });

    for (const std::size_t key_token : {std::size_t{0}, std::size_t{10}, n - 1}) {  // 10: inside the summary if folded
      tokens key = clean;
      key.key(key_token, 1)[5] = nan;
      check(key, clean, folded, [&](std::size_t t, std::size_t head) { return t >= key_token && head >= 2; });
    }
  }
}

TEST(soft, SOFT_09_a_million_rows) {
  constexpr std::size_t chunk = 10000;
  tokens rows(one_head(8), chunk);
  rows.v.assign(rows.v.size(), 0.1F);
  rows.q.assign(rows.q.size(), 1.0F);
  const auto check = [&](auto&& cache, std::size_t expected_rows) {
    for (std::size_t i = 0; i < 100; ++i) append(cache, rows, 0, chunk);
    cache.compress();
    ASSERT_EQ(cache.report().rows, expected_rows);
    for (const std::size_t workers : {1U, 8U})
      for (const std::size_t queries : {1U, 40U})
        for (const float x : attended(cache, 0, rows.queries(0, queries), threads{workers})) ASSERT_NEAR(x, 0.1, 2e-6);
  };
  check(make_cache<float32>(one_retrieval(8)), 1000000);
  check(make_cache<float32>(one_local(4, 8), razor_budget{}, mean_compensation{}, when_to_compress::every_append),
        200004);
  check(make_cache<float32>(one_local(4, 8), fixed_budget{4000}, moment_compensation{}, when_to_compress::every_append),
        4004 + (1000000 - 4004) % 16);
}

TEST(soft, SOFT_10_an_infinite_value_that_has_left) {
  // The rule here: that component is not finite while the row is stood for; nothing else is touched, and a summary
  // whose weight is 0 beside the kept rows does not count.
  const model_shape shape{1, 2, 2, 2, 0};
  const auto check = [&](auto compensation) {
    tokens rows = random_tokens(shape, 60, 10);
    for (std::size_t t = 0; t < 60; ++t) rows.key(t)[0] = t == 10 ? -1.0F : 0.0F;
    rows.value(10)[0] = std::numeric_limits<float>::infinity();
    auto cache = make_cache<float32>(head_plan(shape), fixed_budget{8}, compensation);
    append(cache, rows, 0, 60);
    cache.compress();
    const auto found = attended(cache, 0, rows.queries(59, 1));
    EXPECT_FALSE(std::isfinite(found[0]));
    for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(std::isfinite(found[i])) << i;

    rows.key(59)[0] = 1000.0F;  // the newest key outweighs the summary beyond float32
    auto outweighed = make_cache<float32>(head_plan(shape), fixed_budget{8}, compensation);
    append(outweighed, rows, 0, 60);
    outweighed.compress();
    const std::vector<float> query = {1.0F, 0.0F, 1.0F, 0.0F};
    for (const float x : attended(outweighed, 0, packed_rows(query.data(), 1, 2, 2))) EXPECT_TRUE(std::isfinite(x));
  };
  check(mean_compensation{});
  check(moment_compensation{});
}

}  // namespace
}  // namespace headwise::test
