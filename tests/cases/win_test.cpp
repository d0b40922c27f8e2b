// SPDX-License-Identifier: MIT
// Cases WIN: the arithmetic of window and sinks.

#include <gtest/gtest.h>

#include "support/saved.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(win, WIN_01_window_counts_the_newest_token) {
  for (const auto& [spike, expected, tolerance] :
       {std::tuple{14U, 14.0, 1e-5}, {13U, 8.05918, 1e-4}, {1U, 1.0, 1e-5}, {2U, 8.05918, 1e-4}}) {
    tokens rows = counting_tokens(one_head(), 20);
    *rows.key(spike) = 20.0F;

    auto prompt = make_cache<float32>(one_local(2), fixed_budget{6});
    append(prompt, rows, 0, 20);
    prompt.compress();
    auto decoded =
        make_cache<float32>(one_local(2), fixed_budget{6}, mean_compensation{}, when_to_compress::every_append);
    feed_in_chunks(decoded, rows, 0, 20, 1);
    for (const auto* cache : {&prompt, &decoded}) {
      EXPECT_NEAR(answer(*cache), expected, tolerance) << "spike at " << spike;
      EXPECT_EQ(cache->kept_positions(0, 0), sinks_and(2, 14, 20));
      EXPECT_EQ(cache->report().folded, 12U);
    }

    auto full = make_cache<float32>(one_retrieval());
    append(full, rows, 0, 20);
    full.compress();
    EXPECT_NEAR(answer(full), spike, 1e-5);
  }
}

TEST(win, WIN_02_prefill_and_decode_keep_the_same_window) {
  const tokens rows = random_tokens(one_head(64), 26, 2);
  for (std::size_t n = 18; n <= 26; ++n) {
    auto prefill = make_cache<float32>(one_local(4, 64), fixed_budget{16});
    append(prefill, rows, 0, n);
    prefill.compress();

    auto both = make_cache<float32>(one_local(4, 64), fixed_budget{16});
    append(both, rows, 0, n - 1);
    both.compress();
    append(both, rows, n - 1, 1);

    auto decode =
        make_cache<float32>(one_local(4, 64), fixed_budget{16}, mean_compensation{}, when_to_compress::every_append);
    for (std::size_t i = 0; i < n; ++i) append(decode, rows, i, 1);

    const auto expected = attended(decode, 0, rows.queries(n - 1, 1));
    for (const auto* cache : {&prefill, &both}) {
      EXPECT_EQ(cache->kept_positions(0, 0), decode.kept_positions(0, 0)) << n << " tokens";
      const auto found = attended(*cache, 0, rows.queries(n - 1, 1));
      for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << n << " tokens";
    }
  }
}

TEST(win, WIN_03_nothing_is_compressed_before_the_window_is_full) {
  auto shorter = make_cache<float32>(one_local(4), fixed_budget{4000});
  tokens ones = counting_tokens(one_head(), 5);
  ones.v.assign(5, 1.0F);
  append(shorter, ones, 0, 5);
  shorter.compress();
  EXPECT_EQ(answer(shorter), 1.0F);

  for (const std::size_t n : {4004U, 4005U, 4006U}) {
    tokens rows = random_tokens(one_head(128), n, 3);
    if (n == 4006) {  // two equal folded rows: still full attention
      std::copy_n(rows.key(4), 128, rows.key(5));
      std::copy_n(rows.value(4), 128, rows.value(5));
    }
    auto local = make_cache<float32>(one_local(4, 128), fixed_budget{4000});
    auto full = make_cache<float32>(one_retrieval(128));
    append(local, rows, 0, n);
    append(full, rows, 0, n);
    local.compress();
    EXPECT_EQ(local.head(0, 0).folded(), n - 4004);
    const auto found = attended(local, 0, rows.queries(n - 1, 1));
    const auto expected = attended(full, 0, rows.queries(n - 1, 1));
    for (std::size_t i = 0; i < 128; ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << n << " tokens";
  }
}

TEST(win, WIN_05_a_row_that_is_sink_and_recent_counts_once) {
  const tokens rows = counting_tokens(one_head(), 12);
  for (std::size_t n = 1; n <= 12; ++n) {
    auto cache = make_cache<float32>(one_local(4), fixed_budget{6});
    append(cache, rows, 0, n);
    cache.compress();
    EXPECT_FLOAT_EQ(answer(cache), static_cast<float>(n - 1) / 2.0F);
    EXPECT_EQ(cache.report().rows, n <= 10 ? n : 10);
  }
}

TEST(win, WIN_06_rounds_down_in_one_place_only) {
  // The number of rows that a length will need is the budget itself.
  struct line {
    std::size_t tokens, window, folded, rows_and_summary;
  };
  for (const line& l : {line{4004, 4000, 0, 4004},
                        {20004, 4000, 16000, 4005},
                        {20005, 4001, 16000, 4006},
                        {20006, 4001, 16001, 4006},
                        {25000, 5000, 19996, 5005},
                        {131072, 26214, 104854, 26219}}) {
    EXPECT_EQ(razor_budget{}({}, l.tokens), l.window);
    auto cache = make_cache<float32>(one_local(4));
    append(cache, tokens(one_head(), l.tokens), 0, l.tokens);
    cache.compress();
    EXPECT_EQ(cache.report().folded, l.folded) << l.tokens;
    EXPECT_EQ(cache.report().rows + (l.folded != 0), l.rows_and_summary) << l.tokens;
  }

  const tokens rows(one_head(), 20030);
  auto rolling = make_cache<float32>(one_local(4));
  append(rolling, rows, 0, 19989);
  rolling.compress();
  for (std::size_t n = 19990, before = 0; n <= 20030; ++n) {
    append(rolling, rows, n - 1, 1);
    const std::size_t window = n / 5 < 4000 ? 4000 : n / 5;
    EXPECT_EQ(rolling.report().folded, n - 4 - window);
    EXPECT_EQ(rolling.report().rows, 4 + window);
    EXPECT_GE(rolling.report().folded, before);
    const blob file = saved(rolling);
    EXPECT_EQ(number_at(file, header_fields(rolling)["layer 0, KV head 0: folded rows"]), n - 4 - window);
    EXPECT_EQ(number_at(file, header_fields(rolling)["layer 0, KV head 0: kept from"]), n - window);
    before = rolling.report().folded;
  }
}

TEST(win, WIN_07_the_newest_row_stays_when_a_share_rounds_to_nothing) {
  const tokens rows = counting_tokens(one_head(), 9);
  auto cache =
      make_cache<float32>(one_local(0), razor_budget{0, 5}, mean_compensation{}, when_to_compress::every_append);
  for (std::size_t i = 0; i < 9; ++i) {
    const float found = feed(cache, rows, i, 1)[0];
    EXPECT_FLOAT_EQ(found, static_cast<float>(i) / 2.0F);
    EXPECT_EQ(cache.kept_positions(0, 0), sinks_and(0, i, i + 1));
  }

  auto prompt = make_cache<float32>(one_local(0), fixed_budget{0});
  EXPECT_EQ(feed(prompt, rows, 0, 1)[0], 0.0F);
  append(prompt, rows, 1, 8);
  prompt.compress();
  EXPECT_EQ(prompt.kept_positions(0, 0), sinks_and(0, 8, 9));
  EXPECT_FLOAT_EQ(answer(prompt), 4.0F);
}

TEST(win, WIN_10_sinks_survive_a_long_generation) {
  tokens rows = counting_tokens(one_head(), 50010);
  *rows.key(2) = 40.0F;
  auto cache = make_cache<float32>(one_local(4), fixed_budget{32});
  append(cache, rows, 0, 10);
  const auto start = stored_bytes(cache.head(0, 0));
  cache.compress();
  for (std::size_t i = 10; i < 50010; ++i) {
    append(cache, rows, i, 1);
    if ((i - 9) % 1000 != 0) continue;
    ASSERT_NEAR(answer(cache), 2.0, 1e-4) << i;
    ASSERT_EQ(cache.report().rows, 36U);  // 37 with the summary, which is no row
    ASSERT_EQ(cache.report().folded, i + 1 - 36);
    const run sinks = cache.head(0, 0).run_at(0);
    ASSERT_EQ(sinks.rows, 4U);
    ASSERT_EQ(std::memcmp(sinks.keys, start.data(), 4 * sizeof(float)), 0);
    ASSERT_EQ(std::memcmp(sinks.values, start.data() + 10 * sizeof(float), 4 * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace headwise::test
