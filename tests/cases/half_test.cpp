// SPDX-License-Identifier: MIT
// Cases HALF: 16-bit rows, seen through a cache. The conversions by themselves are in tests/element.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "support/tokens.hpp"

namespace headwise::test {
namespace {

/// The 16-bit patterns that a cache stores for keys of one row each.
template <class Format>
std::vector<std::uint16_t> stored_keys(const std::vector<float>& keys) {
  tokens rows(one_head(), keys.size());
  rows.k = keys;
  auto cache = make_cache<Format>(one_retrieval());
  append(cache, rows, 0, keys.size());
  const auto bytes = stored_bytes(cache.head(0, 0));
  std::vector<std::uint16_t> bits(keys.size());
  std::memcpy(bits.data(), bytes.data(), bits.size() * sizeof bits[0]);
  return bits;
}

TEST(half, HALF_01_f16_saturates_and_stays_useful) {
  const std::vector<float> keys = {60000.0F, 65519.0F, 65520.0F, 70000.0F, -70000.0F};
  const std::vector<float> expected = {60000.0F, 65504.0F, 65504.0F, 65504.0F, -65504.0F};
  const auto bits = stored_keys<float16>(keys);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    float found;
    float16::decode(reinterpret_cast<const std::byte*>(&bits[i]), &found, 1);
    EXPECT_EQ(found, expected[i]);
  }
  tokens rows = counting_tokens(one_head(), 2);
  rows.k = {70000.0F, 60000.0F};
  auto cache = make_cache<float16>(one_retrieval());
  append(cache, rows, 0, 2);
  EXPECT_EQ(answer(cache, 0.0F), 0.5F);
  EXPECT_NEAR(answer(cache, 1e-3F), 1.0 / (1.0 + std::exp(5.504)), 1e-5);  // the larger key first
}

TEST(half, HALF_02_products_are_summed_in_float32) {
  const auto pair = [](auto format, float query, float first, float second) {
    tokens rows(one_head(128), 2);
    std::fill_n(rows.key(0), 128, first);
    std::fill_n(rows.key(1), 128, second);
    std::fill_n(rows.value(0), 128, 1.0F);
    std::fill_n(rows.value(1), 128, 3.0F);
    auto cache = make_cache<decltype(format)>(one_retrieval(128));
    append(cache, rows, 0, 2);
    return answer(cache, query);
  };
  EXPECT_EQ(pair(float16{}, 30.0F, 30.0F, 30.0F), 2.0F);
  EXPECT_EQ(pair(bfloat16{}, 1.3e5F, 1.3e5F, 1.3e5F), 2.0F);
  EXPECT_NEAR(pair(float16{}, 30.0F, 30.0F, 29.9F), 1.0, 1e-6);
}

TEST(half, HALF_04_bf16_rounds_to_nearest_even) {
  const std::vector<std::pair<float, std::uint16_t>> table = {{1.00390625F, 0x3F80},  {1.01171875F, 0x3F82},
                                                              {1.005859375F, 0x3F81}, {-2.7182817F, 0xC02E},
                                                              {0.3F, 0x3E9A},         {3.4028235e38F, 0x7F80}};
  for (std::size_t n = 1; n <= 40; ++n) {  // vector bodies and tails
    std::vector<float> row(n);
    for (std::size_t i = 0; i < n; ++i) row[i] = table[i % table.size()].first;
    std::vector<std::uint16_t> found(n);
    bfloat16::encode(row.data(), reinterpret_cast<std::byte*>(found.data()), n);
    const auto kept = stored_keys<bfloat16>(row);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(found[i], table[i % table.size()].second);
      EXPECT_EQ(kept[i], table[i % table.size()].second);
    }
  }
}

TEST(half, HALF_07_tiny_f16_values_whatever_the_flags) {
  const float tiny = std::ldexp(1.0F, -24);
  const std::vector<float> keys = {tiny, tiny / 2, tiny / 2 * 1.001F, tiny * 1.5F, std::ldexp(1.0F, -14) - tiny / 2};
  const std::vector<std::uint16_t> expected = {0x0001, 0x0000, 0x0001, 0x0002, 0x0400};
  EXPECT_EQ(stored_keys<float16>(keys), expected);
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();
  constexpr unsigned ftz_daz = 0x8040;
  _mm_setcsr(before | ftz_daz);
  const auto flushed = stored_keys<float16>(keys);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(flushed, expected);
  EXPECT_EQ(after & ftz_daz, ftz_daz);
#endif
}

TEST(half, HALF_08_every_pattern_comes_back_from_a_cache) {
  const auto check = [](auto format, std::uint32_t infinity) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::vector<float> wide(all.size());
    format.decode(reinterpret_cast<const std::byte*>(all.data()), wide.data(), wide.size());

    tokens rows(one_head(), all.size());
    rows.k = wide;
    auto cache = make_cache<decltype(format)>(one_retrieval());
    append(cache, rows, 0, all.size());
    auto as_given = cache;  // and from a view of 16-bit elements
    token_view raw = rows.keys(0, all.size());
    raw.data = all.data();
    raw.type = infinity == 0x7C00 ? element_type::f16 : element_type::bf16;
    as_given.append(0, raw, rows.values(0, all.size()));
    const auto found = stored_keys<decltype(format)>(wide);
    const auto both = stored_bytes(as_given.head(0, 0));
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::uint16_t given;
      std::memcpy(&given, both.data() + (65536 + i) * 2, 2);
      for (const std::uint32_t bits : {std::uint32_t{found[i]}, std::uint32_t{given}}) {
        if ((i & 0x7FFF) > infinity) {  // a NaN stays one, its sign too
          ASSERT_GT(bits & 0x7FFF, infinity) << i;
          ASSERT_EQ(bits & 0x8000, i & 0x8000) << i;
        } else {
          ASSERT_EQ(bits, i);
        }
      }
    }
  };
  check(float16{}, 0x7C00);
  check(bfloat16{}, 0x7F80);
}

}  // namespace
}  // namespace headwise::test
