// SPDX-License-Identifier: MIT
#include "headwise/core/model_shape.hpp"

#include <gtest/gtest.h>

#include <cstddef>

#include "support/refused.hpp"

namespace {

using headwise::model_shape;

model_shape good_shape() {
  model_shape shape;
  shape.layers = 30;
  shape.query_heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  return shape;
}

TEST(model_shape, derives_sizes_and_counts) {
  model_shape shape = good_shape();
  EXPECT_EQ(shape.key_size(), 64U);
  EXPECT_EQ(shape.value_size(), 64U);
  EXPECT_EQ(shape.group(), 3U);
  EXPECT_EQ(shape.heads(), 90U);
  shape.value_dim = 32;
  EXPECT_EQ(shape.key_size(), 64U);
  EXPECT_EQ(shape.value_size(), 32U);
}

TEST(model_shape, equal_where_the_sizes_are_equal_however_stated) {
  model_shape stated = good_shape();
  stated.value_dim = 64;
  EXPECT_EQ(stated, good_shape());
  stated.value_dim = 32;
  EXPECT_NE(stated, good_shape());
}

TEST(model_shape, a_number_that_is_zero_or_too_large_is_refused_with_the_number) {
  for (std::size_t model_shape::*member :
       {&model_shape::layers, &model_shape::query_heads, &model_shape::kv_heads, &model_shape::head_dim}) {
    model_shape shape = good_shape();
    EXPECT_NO_THROW(check(shape));
    shape.*member = 0;
    EXPECT_REFUSED(check(shape), "found", " 0");
    shape.*member = (std::size_t{1} << 20) + 1;
    EXPECT_REFUSED(check(shape), "1..1048576", "1048577");
    shape.*member = static_cast<std::size_t>(-1);
    EXPECT_REFUSED(check(shape), "18446744073709551615");
  }
  model_shape shape = good_shape();
  shape.value_dim = (std::size_t{1} << 20) + 1;
  EXPECT_REFUSED(check(shape), "values 1048577");
}

TEST(model_shape, query_heads_that_are_no_multiple_of_kv_heads_are_refused) {
  model_shape shape = good_shape();
  shape.query_heads = 10;
  EXPECT_REFUSED(check(shape), "multiple", "10 query heads", "3 KV heads");
  shape.query_heads = 2;
  EXPECT_REFUSED(check(shape), "2 query heads", "3 KV heads");
}

}  // namespace
