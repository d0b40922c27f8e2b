// SPDX-License-Identifier: MIT
// dot and add_product of every instruction set against plain loops in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "headwise/kernel/kernel.hpp"
#include "support/kernel_case.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::kernel::fastest;
using headwise::test::random_numbers;

class kernel_dot : public headwise::test::each_set {};
class kernel_product : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(kernel_dot);
HEADWISE_FOR_EACH_SET(kernel_product);

TEST_P(kernel_dot, every_size_equals_double_precision) {
  random_numbers random(1);
  for (std::size_t size = 0; size <= 300; size += size < 70 ? 1 : 23)
    for (std::size_t offset = 0; offset < 3; ++offset) {
      const std::vector<float> a = random.gaussians(size + offset);
      const std::vector<float> b = random.gaussians(size + 2 * offset);
      double exact = 0.0;
      double magnitude = 1e-30;
      for (std::size_t i = 0; i < size; ++i) {
        const double term = static_cast<double>(a[i + offset]) * static_cast<double>(b[i + 2 * offset]);
        exact += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(static_cast<double>(fastest().dot(a.data() + offset, b.data() + 2 * offset, size)), exact,
                  1e-6 * magnitude)
          << size;
    }
}

struct product_case {
  std::size_t rows, columns, depth;
};

/// c += a b with rows `pad` elements further apart than they are long, and a as it is or turned; what lies between
/// stays as it was.
void expect_product(product_case size, std::size_t pad, bool turned, random_numbers& random) {
  const std::size_t a_row = turned ? 1 : size.depth + pad;
  const std::size_t a_depth = turned ? size.rows + pad : 1;
  const std::size_t b_stride = size.columns + 2 * pad + 1;
  const std::size_t c_stride = size.columns + pad;
  const std::vector<float> a = random.gaussians((size.rows + pad) * (size.depth + pad));
  const std::vector<float> b = random.gaussians(size.depth * b_stride);
  const std::vector<float> before = random.gaussians(size.rows * c_stride);
  std::vector<float> c = before;
  fastest().add_product(size.rows, size.columns, size.depth, a.data(), a_row, a_depth, b.data(), b_stride, c.data(),
                        c_stride);
  for (std::size_t i = 0; i < size.rows; ++i)
    for (std::size_t j = 0; j < c_stride; ++j) {
      double exact = static_cast<double>(before[i * c_stride + j]);
      double magnitude = std::fabs(exact);
      for (std::size_t k = 0; j < size.columns && k < size.depth; ++k) {
        const double term = static_cast<double>(a[i * a_row + k * a_depth]) * static_cast<double>(b[k * b_stride + j]);
        exact += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(static_cast<double>(c[i * c_stride + j]), exact, j < size.columns ? 2e-6 * magnitude : 0.0)
          << size.rows << " x " << size.columns << " x " << size.depth << " at " << i << ", " << j
          << (turned ? ", turned" : "");
    }
}

TEST_P(kernel_product, every_size_in_each_dimension_equals_double_precision) {
  random_numbers random(2);
  struct {
    std::size_t x, y;
  } const others[] = {{1, 35}, {35, 1}, {5, 6}, {35, 20}};
  for (std::size_t size = 0; size <= 70; ++size)
    for (const auto& other : others) {
      const bool turned = (size + other.y) % 2 != 0;
      expect_product({size, other.x, other.y}, 1, turned, random);
      expect_product({other.x, size, other.y}, 3, turned, random);
      expect_product({other.x, other.y, size}, 5, turned, random);
      if (HasFatalFailure()) return;
    }
  for (const bool turned : {false, true}) expect_product({70, 136, 70}, 0, turned, random);
}

/// A row of the result does not depend on the rows computed beside it: what a chunk and single tokens rely on.
TEST_P(kernel_product, a_row_has_the_same_bits_whatever_stands_beside_it) {
  random_numbers random(3);
  for (const product_case size : {product_case{9, 64, 64}, {7, 70, 33}, {4, 3, 128}, {19, 120, 40}}) {
    const std::vector<float> a = random.gaussians(size.rows * size.depth);
    const std::vector<float> b = random.gaussians(size.depth * size.columns);
    std::vector<float> together(size.rows * size.columns, 0.5F);
    std::vector<float> alone = together;
    fastest().add_product(size.rows, size.columns, size.depth, a.data(), size.depth, 1, b.data(), size.columns,
                          together.data(), size.columns);
    for (std::size_t i = 0; i < size.rows; ++i)
      fastest().add_product(1, size.columns, size.depth, a.data() + i * size.depth, size.depth, 1, b.data(),
                            size.columns, alone.data() + i * size.columns, size.columns);
    EXPECT_EQ(together, alone) << size.rows << " x " << size.columns << " x " << size.depth;
  }
}

}  // namespace
