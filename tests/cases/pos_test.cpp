// SPDX-License-Identifier: MIT
// Cases POS: positions, causal alignment, chunks, order.

#include <gtest/gtest.h>

#include <vector>

#include "support/refused.hpp"
#include "support/saved.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(pos, POS_01_length_is_tokens_seen_not_rows_held) {
  model_shape shape = one_head();
  shape.query_heads = shape.kv_heads = 2;
  head_plan plan(shape);
  plan.set({0, 1}, head_role::retrieval);
  const tokens rows = counting_tokens(shape, 305);
  auto cache = make_cache<float32>(plan, fixed_budget{8}, mean_compensation{}, when_to_compress::every_append);
  for (std::size_t i = 0; i < 300; ++i) append(cache, rows, i, 1);
  auto copy = cache;
  auto loaded = make_cache<float32>(plan, fixed_budget{8});
  EXPECT_REFUSED(load_all(loaded, saved(cache)), "when to compress");
  loaded = make_cache<float32>(plan, fixed_budget{8}, mean_compensation{}, when_to_compress::every_append);
  load_all(loaded, saved(cache));
  for (auto* c : {&cache, &copy, &loaded}) {
    EXPECT_EQ(c->length(), 300U);
    EXPECT_EQ(c->head(0, 0).length(), 300U);
    EXPECT_EQ(c->head(0, 1).length(), 300U);
    EXPECT_EQ(c->report().tokens, 300U);
    EXPECT_EQ(c->report().rows, 12U + 300U);
    append(*c, rows, 300, 5);
    EXPECT_EQ(c->length(), 305U);
  }
}

TEST(pos, POS_03_a_chunk_after_history_is_aligned_to_its_end) {
  const tokens rows = counting_tokens(one_head(), 103);
  for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append, when_to_compress::frozen})
    for (const bool compressed : {false, true}) {
      auto cache =
          make_cache<float32>(compressed ? one_local(4) : one_retrieval(), fixed_budget{8}, mean_compensation{}, when);
      append(cache, rows, 0, 100);
      cache.compress();
      const auto found = feed(cache, rows, 100, 3);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], 50.0 + 0.5 * static_cast<double>(i), 5e-4);
    }
}

TEST(pos, POS_04_rows_leave_only_after_their_chunk_has_attended) {
  // The rule here: prefill is exact inside the chunk, compression follows it.
  for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append}) {
    auto cache = make_cache<float32>(one_local(2), fixed_budget{8}, mean_compensation{}, when);
    const auto found = feed(cache, counting_tokens(one_head(), 50), 0, 50);
    for (std::size_t i = 0; i < 50; ++i)
      EXPECT_NEAR(found[i], static_cast<double>(i) / 2.0, 1e-5 * static_cast<double>(i));

    tokens rows = counting_tokens(one_head(), 51);
    *rows.key(20) = 40.0F;
    auto spiked = make_cache<float32>(one_local(2), fixed_budget{8}, mean_compensation{}, when);
    const auto spike = feed(spiked, rows, 0, 50);
    EXPECT_FLOAT_EQ(spike[19], 9.5F);
    for (std::size_t i = 20; i < 50; ++i) EXPECT_NEAR(spike[i], 20.0, 1e-4);

    spiked.compress();
    append(spiked, rows, 50, 1);  // the next decode sees the compressed set: D = 51 - 2 - 8
    EXPECT_EQ(spiked.kept_positions(0, 0), sinks_and(2, 43, 51));
    EXPECT_EQ(spiked.report().folded, 41U);
    const double mass = 41.0 * std::exp(40.0 / 41.0);  // rows 2..42, mean value 22; kept: 0, 1, 43..50
    EXPECT_NEAR(answer(spiked), (mass * 22.0 + 1.0 + 372.0) / (mass + 10.0), 1e-4);
  }
}

TEST(pos, POS_05_the_result_does_not_depend_on_the_chunk_size) {
  const tokens rows = random_tokens(one_head(64), 201, 5);
  auto reference =
      make_cache<float32>(one_local(4, 64), fixed_budget{16}, mean_compensation{}, when_to_compress::every_append);
  for (std::size_t i = 0; i < 200; ++i) append(reference, rows, i, 1);
  const auto state = visible_state(reference);  // bit for bit, which is more than the case asks
  const auto next = feed(reference, rows, 200, 1);

  for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append})
    for (const std::size_t chunk : {1U, 3U, 15U, 16U, 17U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 128U, 200U}) {
      auto cache = make_cache<float32>(one_local(4, 64), fixed_budget{16}, mean_compensation{}, when);
      feed_in_chunks(cache, rows, 0, 200, chunk);
      cache.compress();
      EXPECT_TRUE(visible_state(cache) == state) << "chunks of " << chunk;
      const auto found = feed(cache, rows, 200, 1);
      for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(found[i], next[i], 1e-5) << "chunks of " << chunk;
    }
}

TEST(pos, POS_08_one_chunk_much_longer_than_what_is_kept) {
  for (const auto& [n, first, mean] : {std::tuple{35U, 27U, 14.0}, {100U, 92U, 46.5}})
    for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append}) {
      tokens rows = counting_tokens(one_head(), n);
      for (std::size_t i = 0; i < n; ++i) *rows.key(i) = static_cast<float>(i);
      auto cache = make_cache<float32>(one_local(2), fixed_budget{8}, mean_compensation{}, when);
      append(cache, rows, 0, n);
      cache.compress();
      EXPECT_EQ(cache.kept_positions(0, 0), sinks_and(2, first, n));
      EXPECT_EQ(cache.report().folded, n - 10);
      const auto means = folded_means(cache.head(0, 0));
      EXPECT_FLOAT_EQ(means.first[0], static_cast<float>(mean));
      EXPECT_FLOAT_EQ(means.second[0], static_cast<float>(mean));
      std::vector<float> expected;
      for (int part = 0; part < 2; ++part)
        for (const std::size_t position : sinks_and(2, first, n)) expected.push_back(static_cast<float>(position));
      const auto stored = stored_bytes(cache.head(0, 0));
      ASSERT_EQ(stored.size(), expected.size() * sizeof(float));
      EXPECT_EQ(std::memcmp(stored.data(), expected.data(), stored.size()), 0);
    }
}

TEST(pos, POS_09_exactly_at_the_edge_of_the_window) {
  const tokens rows = counting_tokens(one_head(), 10, 100.0);
  auto cache = make_cache<float32>(one_local(2), fixed_budget{5});
  append(cache, rows, 0, 4);
  cache.compress();
  for (std::size_t n = 5; n <= 10; ++n) {
    append(cache, rows, n - 1, 1);
    const std::size_t folded = n <= 7 ? 0 : n - 7;
    EXPECT_EQ(cache.kept_positions(0, 0), sinks_and(2, 2 + folded, n));
    ASSERT_EQ(cache.report().folded, folded);
    const auto& head = cache.head(0, 0);
    if (folded != 0) {
      EXPECT_FLOAT_EQ(folded_means(head).second[0], 101.5F + 0.5F * static_cast<float>(folded));
    }
    std::vector<float> values;
    for (std::size_t i = 0; i < head.runs(); ++i)
      for (std::size_t row = 0; row < head.run_at(i).rows; ++row) {
        values.push_back(0.0F);
        head.format().decode(head.run_at(i).values + row * head.rows().value_bytes(), &values.back(), 1);
      }
    std::vector<float> expected;
    for (const std::size_t position : sinks_and(2, 2 + folded, n))
      expected.push_back(100.0F + static_cast<float>(position));
    EXPECT_EQ(values, expected);
  }
}

TEST(pos, POS_10_every_length_and_every_window_edge) {
  const tokens rows = counting_tokens(one_head(), 300);
  for (const std::size_t window : {10U, 31U, 32U, 33U, 63U, 64U, 65U}) {
    auto cache =
        make_cache<float32>(one_local(4), fixed_budget{window}, mean_compensation{}, when_to_compress::every_append);
    for (std::size_t i = 0; i < 300; ++i)
      ASSERT_NEAR(feed(cache, rows, i, 1)[0], static_cast<double>(i) / 2.0, 1e-5 * static_cast<double>(i))
          << "window " << window << ", row " << i;
  }
}

TEST(pos, POS_11_sequences_do_not_share_a_window) {
  for (const std::size_t burst : {1U, 3U})
    for (const std::size_t sequences : {2U, 7U}) {
      std::vector<tokens> rows;
      std::vector<kv_cache<float32, fixed_budget>> caches;
      for (std::size_t s = 0; s < sequences; ++s) {
        rows.push_back(counting_tokens(one_head(), 100, 1000.0 * static_cast<double>(s)));
        caches.push_back(
            make_cache<float32>(one_local(4), fixed_budget{8}, mean_compensation{}, when_to_compress::every_append));
      }
      auto spiked = caches[0];
      tokens spike = rows[0];
      *spike.key(95) = 40.0F;
      for (std::size_t first = 0; first < 100; first += burst) {
        for (std::size_t s = 0; s < sequences; ++s)
          for (std::size_t i = first; i < std::min<std::size_t>(100, first + burst); ++i)
            append(caches[s], rows[s], i, 1);
        for (std::size_t i = first; i < std::min<std::size_t>(100, first + burst); ++i) append(spiked, spike, i, 1);
      }
      for (std::size_t s = 0; s < sequences; ++s)
        EXPECT_FLOAT_EQ(answer(caches[s]), 49.5F + 1000.0F * static_cast<float>(s));
      EXPECT_NEAR(answer(spiked), 95.0, 1e-3);
    }
}

TEST(pos, POS_13_a_position_given_twice_is_refused_or_can_be_seen) {
  const tokens rows = counting_tokens(one_head(), 12);
  auto cache = make_cache<float32>(one_local(4), fixed_budget{4});
  for (std::size_t i = 0; i < 10; ++i) cache.append(0, rows.keys(i, 1), rows.values(i, 1), i);
  const auto before = visible_state(cache);
  for (const std::size_t wrong : {9U, 11U, 5U}) {
    EXPECT_THROW(cache.append(0, rows.keys(wrong, 1), rows.values(wrong, 1), wrong), error);
    EXPECT_TRUE(visible_state(cache) == before);
  }
  append(cache, rows, 9, 1);  // no position: the caller can tell by the length
  EXPECT_EQ(cache.length(), 11U);
  EXPECT_NEAR(answer(cache), 4.90909, 5e-5);
}

}  // namespace
}  // namespace headwise::test
