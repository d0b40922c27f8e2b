// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "headwise/element/half.hpp"
#include "reference/conversions.hpp"
#include "support/random.hpp"

namespace {

using headwise::detail::bits_of;
using headwise::detail::float_of;

struct conversion {
  const char* name;
  reference::binary_format format;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
};

// Called through pointers that the compiler cannot see through: a conversion must not move across the change of a mode.
std::uint16_t f16_narrow(float x) { return headwise::f16_from_float(x); }
std::uint16_t bf16_narrow(float x) { return headwise::bf16_from_float(x); }
float f16_widen(std::uint16_t x) { return headwise::float_from_f16(x); }
float bf16_widen(std::uint16_t x) { return headwise::float_from_bf16(x); }
volatile const conversion conversions[] = {{"f16", reference::f16, f16_narrow, f16_widen},
                                           {"bf16", reference::bf16, bf16_narrow, bf16_widen}};
std::vector<conversion> all_conversions() {
  std::vector<conversion> all;
  for (const volatile conversion& c : conversions)
    all.push_back({c.name, {c.format.exponent_bits, c.format.fraction_bits}, c.narrow, c.widen});
  return all;
}

bool is_nan(reference::binary_format format, std::uint32_t pattern) {
  return (pattern & (format.sign() - 1U)) > format.infinity();
}

/// Floats of every exponent: each step and each tie of both formats in a few places of the binade, and its
/// neighbours; the borders; random bits.
std::vector<float> telling_floats() {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
    for (const unsigned dropped : {13U, 14U, 16U, 17U, 22U})  // of 23 bits: f16, its subnormals, bf16
      for (const std::uint32_t fraction : {0U, 1U, 2U, 3U, 0x155U, 0x3FEU, 0x3FFU}) {
        const std::uint32_t step = ((exponent << 23) | ((fraction << dropped) & 0x7FFFFFU));
        for (const std::uint32_t tie : {0U, 1U << (dropped - 1U)})
          for (const std::uint32_t ulp : {0U, 1U, 0xFFFFFFFFU}) bits.push_back(step + tie + ulp);
      }
  headwise::test::random_numbers random(1);
  for (int i = 0; i < 100000; ++i) bits.push_back(random.bits());
  for (int i = 0; i < 100000; ++i) bits.push_back(0x33000000U + random.bits() % 0x14800000U);  // f16's range
  std::vector<float> floats;
  for (const std::uint32_t b : bits)
    for (const std::uint32_t sign : {0U, 0x80000000U}) floats.push_back(float_of((b & 0x7FFFFFFFU) | sign));
  return floats;
}

std::vector<std::uint16_t> narrow_all(const conversion& c, const std::vector<float>& floats) {
  std::vector<std::uint16_t> patterns;
  for (const float x : floats) patterns.push_back(c.narrow(x));
  return patterns;
}
std::vector<std::uint32_t> widen_all(const conversion& c) {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern)
    bits.push_back(bits_of(c.widen(static_cast<std::uint16_t>(pattern))));
  return bits;
}

TEST(half, every_pattern_widens_to_the_number_it_stands_for) {
  for (const conversion& c : all_conversions())
    for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) {
      const float wide = c.widen(static_cast<std::uint16_t>(pattern));
      ASSERT_EQ(std::signbit(wide), (pattern & c.format.sign()) != 0) << c.name << " " << pattern;
      if (is_nan(c.format, pattern))
        ASSERT_TRUE(std::isnan(wide)) << c.name << " " << pattern;
      else
        ASSERT_EQ(static_cast<double>(wide), reference::value_of(c.format, pattern)) << c.name << " " << pattern;
    }
}

// HALF-08
TEST(half, every_pattern_comes_back_with_the_same_bits) {
  for (const conversion& c : all_conversions())
    for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) {
      const float wide = c.widen(static_cast<std::uint16_t>(pattern));
      ASSERT_EQ(c.narrow(wide), pattern) << c.name;
    }
}

TEST(half, narrowing_rounds_to_nearest_ties_to_even_and_keeps_nan) {
  const std::vector<float> floats = telling_floats();
  for (const conversion& c : all_conversions())
    for (const float x : floats) {
      const std::uint16_t found = c.narrow(x);
      if (std::isnan(x)) {
        ASSERT_TRUE(is_nan(c.format, found)) << c.name << " of bits " << bits_of(x);
        ASSERT_EQ((found & c.format.sign()) != 0, std::signbit(x)) << c.name << " of bits " << bits_of(x);
      } else {
        ASSERT_EQ(found, reference::pattern_of(c.format, static_cast<double>(x))) << c.name << " of " << x;
      }
    }
}

struct narrow_case {
  float value;
  std::uint16_t pattern;
};

// HALF-04
TEST(half, bf16_rounds_instead_of_cutting) {
  for (const narrow_case& c : {narrow_case{1.00390625F, 0x3F80},
                               {1.01171875F, 0x3F82},
                               {1.005859375F, 0x3F81},
                               {-2.7182817F, 0xC02E},
                               {0.3F, 0x3E9A},
                               {3.4028235e38F, 0x7F80}})
    EXPECT_EQ(headwise::bf16_from_float(c.value), c.pattern) << c.value;
}

// HALF-07
TEST(half, f16_is_right_at_subnormals_and_their_ties) {
  for (const narrow_case& c : {narrow_case{0x1p-24F, 0x0001},
                               {0x1p-25F, 0x0000},
                               {0x1p-25F * 1.001F, 0x0001},
                               {3 * 0x1p-25F, 0x0002},
                               {0x1p-14F - 0x1p-25F, 0x0400},
                               {65504.0F, 0x7BFF},
                               {65519.0F, 0x7BFF},
                               {65520.0F, 0x7C00}})
    EXPECT_EQ(headwise::f16_from_float(c.value), c.pattern) << c.value;
}

#if defined(__SSE2__)
TEST(half, flushing_of_subnormals_changes_no_bit_and_is_left_as_it_was) {
  const std::vector<float> floats = telling_floats();
  for (const conversion& c : all_conversions()) {
    const auto narrowed = narrow_all(c, floats);
    const auto widened = widen_all(c);
    const unsigned before = _mm_getcsr();
    const unsigned flushing = before | 0x8040U;  // FTZ and DAZ
    _mm_setcsr(flushing);
    const auto narrowed_flushing = narrow_all(c, floats);
    const auto widened_flushing = widen_all(c);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & ~0x3FU, flushing & ~0x3FU) << c.name;  // less the sticky exception flags
    EXPECT_TRUE(narrowed_flushing == narrowed) << c.name;
    EXPECT_TRUE(widened_flushing == widened) << c.name;
  }
}
#endif

TEST(half, the_rounding_mode_of_the_program_changes_no_bit) {
  const std::vector<float> floats = telling_floats();
  for (const conversion& c : all_conversions()) {
    const auto narrowed = narrow_all(c, floats);
    const auto widened = widen_all(c);
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      ASSERT_EQ(std::fesetround(mode), 0);
      const auto narrowed_in_mode = narrow_all(c, floats);
      const auto widened_in_mode = widen_all(c);
      std::fesetround(FE_TONEAREST);
      EXPECT_TRUE(narrowed_in_mode == narrowed) << c.name << " mode " << mode;
      EXPECT_TRUE(widened_in_mode == widened) << c.name << " mode " << mode;
    }
  }
}

}  // namespace
