// SPDX-License-Identifier: MIT
// widen and narrow of every instruction set against element/half.hpp, which element/half_test.cpp compares with the
// definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "headwise/element/bits.hpp"
#include "headwise/element/half.hpp"
#include "headwise/kernel/kernel.hpp"
#include "support/kernel_case.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::element_type;
using headwise::detail::bits_of;
using headwise::detail::float_of;
using headwise::test::random_numbers;
namespace kernel = headwise::kernel;

using patterns = std::vector<std::uint16_t>;
using floats = std::vector<float>;

class kernel_conversion : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(kernel_conversion);

constexpr element_type halves[] = {element_type::f16, element_type::bf16};

float widened(element_type type, std::uint16_t half) {
  return type == element_type::f16 ? headwise::float_from_f16(half) : headwise::float_from_bf16(half);
}
/// What a stored element is: finite numbers beyond float16 saturate.
std::uint16_t narrowed(element_type type, float x) {
  if (type == element_type::bf16) return headwise::bf16_from_float(x);
  const bool beyond = std::fabs(x) > 65504.0F && std::fabs(x) <= std::numeric_limits<float>::max();
  return headwise::f16_from_float(beyond ? std::copysign(65504.0F, x) : x);
}

floats widen(element_type type, const patterns& from) {
  floats to(from.size());
  kernel::fastest().widen(type, from.data(), to.data(), from.size());
  return to;
}
patterns narrow(element_type type, const floats& from) {
  patterns to(from.size());
  kernel::fastest().narrow(type, from.data(), to.data(), from.size());
  return to;
}

patterns all_patterns() {
  patterns all;
  for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) all.push_back(static_cast<std::uint16_t>(pattern));
  return all;
}

/// Each step and each tie of both formats in a few places of every binade, and the neighbours; the borders of float16;
/// random bits, so NaNs stand among numbers.
floats telling_floats() {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
    for (const unsigned dropped : {13U, 14U, 16U, 17U, 22U})
      for (const std::uint32_t fraction : {0U, 1U, 2U, 3U, 0x155U, 0x3FEU, 0x3FFU}) {
        const std::uint32_t step = (exponent << 23) | ((fraction << dropped) & 0x7FFFFFU);
        for (const std::uint32_t tie : {0U, 1U << (dropped - 1U)})
          for (const std::uint32_t ulp : {0U, 1U, 0xFFFFFFFFU}) bits.push_back(step + tie + ulp);
      }
  for (const float border :
       {65503.0F, 65504.0F, 65519.0F, 65519.996F, 65520.0F, 65536.0F, 1e38F, 3.39e38F, 3.4028235e38F})
    bits.push_back(bits_of(border));
  random_numbers random(1);
  for (int i = 0; i < 100000; ++i) bits.push_back(random.bits());
  for (int i = 0; i < 100000; ++i) bits.push_back(0x33000000U + random.bits() % 0x14800000U);  // float16's range
  floats all;
  for (const std::uint32_t b : bits)
    for (const std::uint32_t sign : {0U, 0x80000000U}) all.push_back(float_of((b & 0x7FFFFFFFU) | sign));
  return all;
}

/// A signalling NaN of float16 may come out quiet, as processors do it; else each bit is the same.
void expect_widened(element_type type, const patterns& from, const floats& found) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float expected = widened(type, from[i]);
    const std::uint32_t quiet = std::isnan(expected) && type == element_type::f16 ? 0x400000U : 0U;
    ASSERT_EQ(bits_of(found[i]) | quiet, bits_of(expected) | quiet)
        << headwise::test::name_of(type) << " pattern " << from[i] << " at " << i;
  }
}
void expect_narrowed(element_type type, const floats& from, const patterns& found) {
  for (std::size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(found[i], narrowed(type, from[i]))
        << headwise::test::name_of(type) << " of bits " << bits_of(from[i]) << " at " << i;
}

// HALF-08
TEST_P(kernel_conversion, every_pattern_widens_to_its_number) {
  for (const element_type type : halves) expect_widened(type, all_patterns(), widen(type, all_patterns()));
}

// HALF-01 02 04
TEST_P(kernel_conversion, narrowing_rounds_saturates_and_keeps_nan_as_the_definition_says) {
  const floats from = telling_floats();
  for (const element_type type : halves) expect_narrowed(type, from, narrow(type, from));
}

TEST_P(kernel_conversion, float32_is_copied_bit_by_bit) {
  const floats from = telling_floats();
  floats to(from.size());
  kernel::fastest().widen(element_type::f32, from.data(), to.data(), from.size());
  EXPECT_EQ(std::memcmp(from.data(), to.data(), from.size() * sizeof(float)), 0);
  std::fill(to.begin(), to.end(), 0.0F);
  kernel::fastest().narrow(element_type::f32, from.data(), to.data(), from.size());
  EXPECT_EQ(std::memcmp(from.data(), to.data(), from.size() * sizeof(float)), 0);
}

/// And nothing beside it is written; NaN in every position of a vector.
TEST_P(kernel_conversion, any_length_at_any_offset) {
  random_numbers random(2);
  for (const element_type type : halves)
    for (std::size_t length = 0; length <= 40; ++length)
      for (const std::size_t offset : headwise::test::sizes{0, 1, 3, 5, 7}) {
        patterns half(offset + length);
        for (std::uint16_t& h : half) h = static_cast<std::uint16_t>(random.bits());
        floats wide(offset + length + 16, -7777.0F);
        kernel::fastest().widen(type, half.data() + offset, wide.data() + offset, length);
        for (std::size_t i = 0; i < wide.size(); ++i) {
          if (i >= offset && i < offset + length) continue;
          ASSERT_EQ(wide[i], -7777.0F) << length << " at " << offset;
        }
        const auto at = static_cast<std::ptrdiff_t>(offset);
        const auto end = static_cast<std::ptrdiff_t>(offset + length);
        expect_widened(type, {half.begin() + at, half.end()}, {wide.begin() + at, wide.begin() + end});

        floats from(offset + length);
        for (float& x : from) x = random.gaussian() * 50000.0F;
        if (length != 0) from[offset + length / 2] = float_of(0x7F800001U | (random.bits() & 0x803FE000U));
        patterns to(offset + length + 16, 0x1234);
        kernel::fastest().narrow(type, from.data() + offset, to.data() + offset, length);
        for (std::size_t i = 0; i < to.size(); ++i) {
          if (i >= offset && i < offset + length) continue;
          ASSERT_EQ(to[i], 0x1234) << length << " at " << offset;
        }
        expect_narrowed(type, {from.begin() + at, from.end()}, {to.begin() + at, to.begin() + end});
        if (HasFatalFailure()) return;
      }
}

/// No rounding mode and no flush-to-zero of the caller's changes a bit, and none of them is changed.
TEST_P(kernel_conversion, modes_of_the_caller_do_not_matter_and_stay_as_they_are) {
  const floats from = telling_floats();
  for (const element_type type : halves) {
    const patterns expected_half = narrow(type, from);
    const floats expected_wide = widen(type, all_patterns());
    const auto expect_same = [&](int mode) {
      EXPECT_TRUE(narrow(type, from) == expected_half) << headwise::test::name_of(type) << " mode " << mode;
      const floats wide = widen(type, all_patterns());
      EXPECT_EQ(std::memcmp(wide.data(), expected_wide.data(), wide.size() * sizeof(float)), 0)
          << headwise::test::name_of(type) << " mode " << mode;
    };
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      ASSERT_EQ(std::fesetround(mode), 0);
      expect_same(mode);
      EXPECT_EQ(std::fegetround(), mode);
      std::fesetround(FE_TONEAREST);
    }
#if defined(__SSE2__)
    const unsigned before = _mm_getcsr();
    constexpr unsigned flush = 0x8040;  // FTZ and DAZ
    _mm_setcsr(before | flush);
    expect_same(-1);
    EXPECT_EQ(_mm_getcsr() & ~0x3FU, (before | flush) & ~0x3FU);  // all but the sticky flags
    _mm_setcsr(before);
#endif
  }
}

}  // namespace
