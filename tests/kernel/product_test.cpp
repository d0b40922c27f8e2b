// SPDX-License-Identifier: MIT
#include "headwise/kernel/product.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "support/random.hpp"

namespace {

using headwise::kernel::add_product;
using headwise::kernel::dot;

TEST(dot, every_size_equals_double_precision) {
  headwise::test::random_numbers random(1);
  for (std::size_t size = 0; size <= 70; ++size)
    for (std::size_t offset = 0; offset < 3; ++offset) {
      const std::vector<float> a = random.gaussians(size + offset);
      const std::vector<float> b = random.gaussians(size + offset);
      double exact = 0.0;
      double magnitude = 1e-30;
      for (std::size_t i = offset; i < size + offset; ++i) {
        exact += static_cast<double>(a[i]) * static_cast<double>(b[i]);
        magnitude += std::fabs(static_cast<double>(a[i]) * static_cast<double>(b[i]));
      }
      ASSERT_NEAR(static_cast<double>(dot(a.data() + offset, b.data() + offset, size)), exact, 1e-6 * magnitude)
          << size;
    }
}

struct product_case {
  std::size_t rows, columns, depth;
};

/// c += a b with rows `pad` elements further apart than they are long; what lies between stays as it was.
void expect_product(product_case size, std::size_t pad, headwise::test::random_numbers& random) {
  const std::size_t a_stride = size.depth + pad;
  const std::size_t b_stride = size.columns + 2 * pad + 1;
  const std::size_t c_stride = size.columns + pad;
  const std::vector<float> a = random.gaussians(size.rows * a_stride);
  const std::vector<float> b = random.gaussians(size.depth * b_stride);
  const std::vector<float> before = random.gaussians(size.rows * c_stride);
  std::vector<float> c = before;
  add_product(size.rows, size.columns, size.depth, a.data(), a_stride, b.data(), b_stride, c.data(), c_stride);
  for (std::size_t i = 0; i < size.rows; ++i)
    for (std::size_t j = 0; j < c_stride; ++j) {
      double exact = static_cast<double>(before[i * c_stride + j]);
      double magnitude = std::fabs(exact);
      for (std::size_t k = 0; j < size.columns && k < size.depth; ++k) {
        const double term = static_cast<double>(a[i * a_stride + k]) * static_cast<double>(b[k * b_stride + j]);
        exact += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(static_cast<double>(c[i * c_stride + j]), exact, j < size.columns ? 2e-6 * magnitude : 0.0)
          << size.rows << " x " << size.columns << " x " << size.depth << " at " << i << ", " << j;
    }
}

TEST(add_product, every_size_in_each_dimension_equals_double_precision) {
  headwise::test::random_numbers random(2);
  struct {
    std::size_t x, y;
  } const others[] = {{1, 35}, {35, 1}, {5, 6}, {35, 20}};
  for (std::size_t size = 0; size <= 70; ++size)
    for (const auto& other : others) {
      expect_product({size, other.x, other.y}, 1, random);
      expect_product({other.x, size, other.y}, 3, random);
      expect_product({other.x, other.y, size}, 5, random);
    }
  expect_product({70, 70, 70}, 0, random);
}

/// A row of the result does not depend on the rows computed beside it: what a chunk and single tokens rely on.
TEST(add_product, a_row_has_the_same_bits_whatever_stands_beside_it) {
  headwise::test::random_numbers random(3);
  for (const product_case size : {product_case{9, 64, 64}, {7, 70, 33}, {4, 3, 128}}) {
    const std::vector<float> a = random.gaussians(size.rows * size.depth);
    const std::vector<float> b = random.gaussians(size.depth * size.columns);
    std::vector<float> together(size.rows * size.columns, 0.5F);
    std::vector<float> alone = together;
    add_product(size.rows, size.columns, size.depth, a.data(), size.depth, b.data(), size.columns, together.data(),
                size.columns);
    for (std::size_t i = 0; i < size.rows; ++i)
      add_product(1, size.columns, size.depth, a.data() + i * size.depth, size.depth, b.data(), size.columns,
                  alone.data() + i * size.columns, size.columns);
    EXPECT_EQ(together, alone) << size.rows << " x " << size.columns << " x " << size.depth;
  }
}

}  // namespace
