// SPDX-License-Identifier: MIT
#include "headwise/store/row_sums.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "support/random.hpp"

namespace {

using headwise::row_sums;

TEST(row_sums, means_are_those_of_double_precision) {
  headwise::test::random_numbers random(1);
  const std::size_t keys = 33;
  const std::size_t values = 7;
  row_sums sums(keys, values);
  std::vector<long double> exact(keys + values, 0.0L);
  for (std::size_t n = 1; n <= 5000; ++n) {
    const std::vector<float> row = random.gaussians(keys + values, 10.0F, 3.0F);
    sums.add(row.data(), row.data() + keys);
    for (std::size_t i = 0; i < row.size(); ++i) exact[i] += static_cast<long double>(row[i]);
    if (n > 3 && n % 1000 != 0) continue;
    ASSERT_EQ(sums.count(), n);
    for (std::size_t i = 0; i < keys + values; ++i) {
      const double mean = i < keys ? sums.mean_key(i) : sums.mean_value(i - keys);
      ASSERT_NEAR(mean, static_cast<double>(exact[i] / n), 1e-12) << n << " rows, element " << i;
    }
    const std::vector<float> query = random.gaussians(keys);
    long double logit = 0.0L;
    for (std::size_t i = 0; i < keys; ++i) logit += static_cast<long double>(query[i]) * exact[i] / n;
    ASSERT_NEAR(static_cast<double>(sums.mean_logit(query.data())), static_cast<double>(logit),
                1e-6 * (1.0 + std::fabs(static_cast<double>(logit))));
  }
}

// COMP-07: no sum stalls or overflows, and opposite keys cancel.
TEST(row_sums, long_sequences_neither_stall_nor_drift) {
  row_sums sums(1, 1);
  for (std::size_t n = 0; n < 100000; ++n) {
    const float key = n % 2 == 0 ? 1.0F : -1.0F;
    const float value = 0.1F;
    sums.add(&key, &value);
  }
  EXPECT_EQ(sums.mean_key(0), 0.0);
  EXPECT_NEAR(sums.mean_value(0), static_cast<double>(0.1F), 1e-12);
}

TEST(row_sums, copies_are_independent_and_bytes_are_those_of_the_sums) {
  const float row[] = {1.0F, 2.0F, 3.0F};
  row_sums sums(2, 1);
  sums.add(row, row + 2);
  row_sums copy = sums;
  copy.add(row + 1, row);
  EXPECT_EQ(sums.count(), 1U);
  EXPECT_EQ(sums.mean_key(0), 1.0);
  EXPECT_EQ(copy.mean_key(0), 1.5);
  EXPECT_EQ(copy.mean_value(0), 2.0);
  EXPECT_GE(sums.bytes(), 3 * sizeof(double));
  EXPECT_LE(sums.bytes(), 3 * sizeof(double) + 16);
}

TEST(row_sums, rows_side_by_side_give_the_bits_of_rows_one_by_one) {
  headwise::test::random_numbers random(2);
  for (const std::size_t keys : {std::size_t{1}, std::size_t{16}, std::size_t{33}})
    for (const std::size_t rows : {std::size_t{1}, std::size_t{16}, std::size_t{100}}) {
      const std::size_t values = 2 * keys + 1;
      const std::vector<float> k = random.gaussians(rows * keys, 10.0F, 3.0F);
      const std::vector<float> v = random.gaussians(rows * values);
      row_sums single(keys, values), block(keys, values);
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (std::size_t i = 0; i < rows; ++i) single.add(k.data() + i * keys, v.data() + i * values);
        block.add(k.data(), v.data(), rows);
      }
      ASSERT_EQ(single.count(), block.count());
      for (std::size_t i = 0; i < keys; ++i) ASSERT_EQ(single.mean_key(i), block.mean_key(i));
      for (std::size_t i = 0; i < values; ++i) ASSERT_EQ(single.mean_value(i), block.mean_value(i));
    }
}

}  // namespace
