// SPDX-License-Identifier: MIT
#include "headwise/kernel/exponential.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "headwise/element/bits.hpp"
#include "support/random.hpp"

namespace {

using headwise::detail::bits_of;
using headwise::detail::float_of;
using headwise::kernel::exp_nonpositive;

double relative_error(float x) {
  const double exact = std::exp(static_cast<double>(x));
  return std::fabs(static_cast<double>(exp_nonpositive(x)) - exact) / exact;
}

TEST(exp_nonpositive, is_within_two_units_of_the_last_place) {
  constexpr double two_units = 2 * 0x1p-23;  // of a number in [1, 2): the smallest relative size of a unit is half that
  double largest = 0.0;
  for (std::uint32_t bits = 0x80000000U; bits < 0xC2AE999AU; bits += 9973U)  // from -0 to -87.3
    largest = std::fmax(largest, relative_error(float_of(bits)));
  headwise::test::random_numbers random(1);
  for (int i = 0; i < 200000; ++i) largest = std::fmax(largest, relative_error(-87.3F * random.uniform()));
  for (int n = 0; n <= 125; ++n)  // where the rounding to a power of two changes sides, and whole powers
    for (int half = 0; half < 2; ++half) {
      const float x = -static_cast<float>((n + 0.5 * half) * 0.6931471805599453);
      for (const float near : {std::nextafter(x, 0.0F), x, std::nextafter(x, -100.0F)})
        largest = std::fmax(largest, relative_error(near));
    }
  EXPECT_LT(largest, two_units);
  RecordProperty("largest_relative_error_in_2^-24", std::to_string(largest * 0x1p24));
}

TEST(exp_nonpositive, never_rises_above_one_and_is_one_at_both_zeros) {
  EXPECT_EQ(exp_nonpositive(0.0F), 1.0F);
  EXPECT_EQ(exp_nonpositive(-0.0F), 1.0F);
  for (std::uint32_t bits = 0x80000000U; bits < 0xBF000000U; bits += 101U)
    ASSERT_LE(exp_nonpositive(float_of(bits)), 1.0F);
}

TEST(exp_nonpositive, is_zero_where_the_result_would_be_subnormal) {
  EXPECT_GT(exp_nonpositive(-87.29F), std::numeric_limits<float>::min());
  for (const float x : {-87.31F, -88.0F, -104.0F, -1e4F, -3e38F, std::numeric_limits<float>::lowest(), -HUGE_VALF}) {
    EXPECT_EQ(bits_of(exp_nonpositive(x)), 0U) << x;
  }
}

TEST(exp_nonpositive, keeps_nan) {
  for (const std::uint32_t nan : {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0xFFFFFFFFU})
    EXPECT_TRUE(std::isnan(exp_nonpositive(float_of(nan))));
}

}  // namespace
