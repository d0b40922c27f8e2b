// SPDX-License-Identifier: MIT
#include "headwise/policy/element_ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::element_ranges;
using headwise::test::sizes;

constexpr float largest = std::numeric_limits<float>::max();
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST(element_ranges, are_the_least_and_the_largest_of_each_element) {
  headwise::test::random_numbers random(1);
  for (const std::size_t size : sizes{1, 3, 64, 65})
    for (const std::size_t rows : sizes{1, 2, 17, 100}) {
      std::vector<float> numbers = random.gaussians(rows * size);
      for (float& x : numbers) x *= std::pow(10.0F, static_cast<float>(random.below(60)) - 30.0F);
      element_ranges together(size), single(size);
      together.add(numbers.data(), rows);
      for (std::size_t row = rows; row > 0; --row) single.add(numbers.data() + (row - 1) * size, 1);
      EXPECT_TRUE(together.finite());
      for (std::size_t i = 0; i < size; ++i) {
        float least = numbers[i], most = numbers[i];
        for (std::size_t row = 0; row < rows; ++row) {
          least = std::min(least, numbers[row * size + i]);
          most = std::max(most, numbers[row * size + i]);
        }
        EXPECT_EQ(together.least(i), static_cast<double>(least));
        EXPECT_EQ(together.largest(i), static_cast<double>(most));
        EXPECT_EQ(single.least(i), together.least(i));  // however the rows come
        EXPECT_EQ(single.largest(i), together.largest(i));
      }
      EXPECT_EQ(together.bytes(), size * 8);
    }
}

TEST(element_ranges, know_subnormal_and_the_largest_numbers) {
  for (const float x : {0.0F, 1e-45F, 1e-38F, 1.0F, largest}) {
    element_ranges ranges(1);
    for (const float number : {x, -x}) ranges.add(&number, 1);
    EXPECT_EQ(ranges.least(0), -static_cast<double>(x));
    EXPECT_EQ(ranges.largest(0), static_cast<double>(x));
    EXPECT_TRUE(ranges.finite());
  }
}

TEST(element_ranges, do_not_forget_what_is_no_finite_number) {
  for (const float odd : {infinity, -infinity, nan, -nan})
    for (std::size_t place = 0; place < 3; ++place) {
      std::vector<float> rows = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
      rows[place * 2 + 1] = odd;
      element_ranges ranges(2);
      ranges.add(rows.data(), 3);
      EXPECT_FALSE(ranges.finite()) << odd << " in row " << place;
      EXPECT_EQ(ranges.least(0), 1.0);
      EXPECT_EQ(ranges.largest(0), 5.0);
    }
}

}  // namespace
