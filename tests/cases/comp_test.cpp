// SPDX-License-Identifier: MIT
// Cases COMP: the weight of the compensation token, its mean, its numerics.

#include <gtest/gtest.h>

#include <vector>

#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(comp, COMP_01_the_compensation_token_weighs_as_many_rows_as_it_stands_for) {
  auto counting = make_cache<float32>(one_local(4), fixed_budget{6});
  append(counting, counting_tokens(one_head(), 110), 0, 110);
  counting.compress();
  EXPECT_NEAR(answer(counting), 54.5, 54.5e-5);

  for (const std::size_t folded : {1U, 2U, 17U, 100U}) {
    const std::size_t n = folded + 10;
    tokens rows = random_tokens(one_head(64), n, 1);
    for (std::size_t i = 5; i < 4 + folded; ++i) std::copy_n(rows.key(4), 64, rows.key(i));
    auto local = make_cache<float32>(one_local(4, 64), fixed_budget{6});
    auto full = make_cache<float32>(one_retrieval(64));
    append(local, rows, 0, n);
    append(full, rows, 0, n);
    local.compress();
    ASSERT_EQ(local.report().folded, folded);
    const auto found = attended(local, 0, rows.queries(n - 1, 1));
    const auto expected = attended(full, 0, rows.queries(n - 1, 1));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << folded << " folded";
  }
}

TEST(comp, COMP_03_the_summary_counts_once_whatever_the_number_of_workers) {
  tokens rows(one_head(), 20004);
  for (std::size_t i = 0; i < rows.count; ++i) *rows.value(i) = i < 4 || i >= 16004 ? 1.0F : 0.0F;
  auto cache = make_cache<float32>(one_local(4));
  append(cache, rows, 0, rows.count);
  cache.compress();
  ASSERT_EQ(cache.report().rows, 4004U);
  ASSERT_EQ(cache.report().folded, 16000U);
  const float one_worker = answer(cache);
  EXPECT_NEAR(one_worker, 0.200160, 1e-6);
  for (const std::size_t workers : {2U, 3U, 7U, 16U, 64U})
    EXPECT_EQ(attended(cache, 0, rows.queries(20003, 1), threads{workers})[0], one_worker) << workers << " workers";
}

TEST(comp, COMP_04_the_summary_counts_where_hardly_a_row_is_kept) {
  tokens rows = counting_tokens(one_head(), 10);
  for (const float newest_key : {0.0F, -1e4F}) {
    *rows.key(9) = newest_key;
    auto cache = make_cache<float32>(one_local(0), fixed_budget{1});
    append(cache, rows, 0, 10);
    cache.compress();
    for (const std::size_t workers : {1U, 8U})
      EXPECT_NEAR(attended(cache, 0, rows.queries(9, 1), threads{workers})[0], newest_key == 0.0F ? 4.5 : 4.0, 4.5e-5);
  }
}

TEST(comp, COMP_05_ln_of_the_count_is_added_after_scaling) {
  tokens rows(one_head(64), 1012);
  for (std::size_t i = 0; i < 1012; ++i) {
    const bool kept = i < 4 || i >= 1004;
    if (!kept) *rows.key(i) = 8.0F;
    std::fill_n(rows.value(i), 64, kept ? 1.0F : 0.0F);
    rows.q[i * 64] = 1.0F;
  }
  auto cache = make_cache<float32>(one_local(4, 64), fixed_budget{8});
  append(cache, rows, 0, 1012);
  cache.compress();
  ASSERT_EQ(cache.report().folded, 1000U);
  for (const float found : attended(cache, 0, rows.queries(1011, 1))) EXPECT_NEAR(found, 0.00439515, 1e-6);
}

TEST(comp, COMP_07_long_sums_neither_stall_nor_overflow) {
  auto cache = make_cache<float16>(one_local(4), fixed_budget{8}, mean_compensation{}, when_to_compress::every_append);
  tokens pair(one_head(), 2);
  pair.v = {1.0F, 1.0F};
  pair.k = {1.0F, -1.0F};
  for (std::size_t n = 1; n <= 70012; ++n) {
    append(cache, pair, (n - 1) % 2, 1);
    if (n <= 12) continue;
    const std::size_t folded = cache.head(0, 0).folded();
    ASSERT_EQ(folded, n - 12);
    const auto means = folded_means(cache.head(0, 0));
    if (folded == 2048 || folded == 2049 || folded == 65504 || folded == 70000) {
      EXPECT_NEAR(means.second[0], 1.0, 1e-3) << folded;
    }
    if (folded % 2 == 0) {
      ASSERT_LE(std::fabs(means.first[0]), 1e-4) << folded;
    }
  }
}

TEST(comp, COMP_09_plain_dropping_is_real) {
  const tokens rows = counting_tokens(one_head(), 110);
  auto off = make_cache<float32>(one_local(4), fixed_budget{6}, no_compensation{});
  auto on = make_cache<float32>(one_local(4), fixed_budget{6});
  append(off, rows, 0, 110);
  append(on, rows, 0, 110);
  off.compress();
  on.compress();
  EXPECT_NEAR(answer(off), 64.5, 64.5e-5);
  EXPECT_NEAR(answer(on), 54.5, 54.5e-5);
  EXPECT_EQ(off.report().summary_bytes, 0U);
  EXPECT_EQ(off.report().folded, 0U);
  EXPECT_EQ(off.report().dropped, 100U);
  EXPECT_EQ(on.report().dropped, 0U);
  EXPECT_GT(on.report().summary_bytes, 0U);

  const auto before = visible_state(on);
  EXPECT_THROW(on.with(on.plan(), fixed_budget{6}, no_compensation{}), error);
  EXPECT_THROW(off.with(off.plan(), fixed_budget{6}, mean_compensation{}), error);
  EXPECT_TRUE(visible_state(on) == before);
}

TEST(comp, COMP_10_the_mean_does_not_depend_on_the_size_of_chunks) {
  constexpr std::size_t n = 5000;
  const tokens rows = random_tokens(one_head(32), n, 10);
  std::vector<double> key(32), value(32);
  for (std::size_t t = 4; t < 4900; ++t)
    for (std::size_t i = 0; i < 32; ++i) {
      key[i] += static_cast<double>(rows.k[t * 32 + i]) / 4896.0;
      value[i] += static_cast<double>(rows.v[t * 32 + i]) / 4896.0;
    }
  const std::vector<std::vector<std::size_t>> chunkings = {{1},         {13},        {100},
                                                           {4096, 904}, {4900, 100}, {1, 13, 700, 2, 4000, 64}};
  std::pair<std::vector<float>, std::vector<float>> first;
  for (const auto& chunks : chunkings)
    for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append}) {
      auto cache = make_cache<float32>(one_local(4, 32), fixed_budget{100}, mean_compensation{}, when);
      for (std::size_t at = 0, i = 0; at < n; ++i) {
        const std::size_t chunk = std::min(chunks[i % chunks.size()], n - at);
        append(cache, rows, at, chunk);
        at += chunk;
      }
      cache.compress();
      ASSERT_EQ(cache.report().folded, 4896U);
      const auto means = folded_means(cache.head(0, 0));
      for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_NEAR(means.first[i], key[i], 1e-5 * std::fabs(key[i]));
        EXPECT_NEAR(means.second[i], value[i], 1e-5 * std::fabs(value[i]));
      }
      if (first.first.empty()) first = means;
      EXPECT_EQ(means, first);  // stronger than the case asks: the same bits
    }
}

}  // namespace
}  // namespace headwise::test
