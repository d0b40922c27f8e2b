// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/kernel/kernel.hpp"
#include "reference/attention.hpp"
#include "support/format_names.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::test::sizes;

namespace kernel = headwise::kernel;
using headwise::attention_params;

/// Blocks of one head and the queries against them, with the memory that a kernel may touch and no more.
template <class Format>
struct block_test {
  std::size_t key_size;
  std::size_t value_size;
  std::size_t group = 1;
  std::size_t query_tokens = 1;
  std::size_t position = 1000;  // of the first query: it sees everything
  attention_params params{1.0F, 0.0F};

  struct block {
    std::vector<std::byte> keys;
    std::vector<std::byte> values;
    std::size_t rows;
    std::size_t position;
    float bias;
    std::vector<reference::row> exact;
  };
  std::vector<float> queries{};
  std::vector<block> blocks{};

  std::size_t count() const { return group * query_tokens; }

  void add(std::size_t rows, const std::vector<float>& keys, const std::vector<float>& values, std::size_t at,
           float bias = 0.0F) {
    const auto stored = [](const std::vector<float>& numbers, std::vector<float>& exact) {
      std::vector<std::byte> bytes(Format::bytes(numbers.size()));
      Format::encode(numbers.data(), bytes.data(), numbers.size());
      exact.resize(numbers.size());
      Format::decode(bytes.data(), exact.data(), numbers.size());
      return bytes;
    };
    std::vector<float> exact_keys;
    std::vector<float> exact_values;
    blocks.push_back({stored(keys, exact_keys), stored(values, exact_values), rows, at, bias, {}});
    for (std::size_t row = 0; row < rows; ++row) {
      const float* const key = exact_keys.data() + row * key_size;
      const float* const value = exact_values.data() + row * value_size;
      blocks.back().exact.push_back({{key, key + key_size}, {value, value + value_size}, static_cast<double>(bias)});
    }
  }
  void add_random(headwise::test::random_numbers& random, std::size_t rows, std::size_t at, float bias = 0.0F,
                  float spread = 1.0F) {
    add(rows, random.gaussians(rows * key_size, spread), random.gaussians(rows * value_size), at, bias);
  }

  /// Unfinished softmax of all blocks, as [query][value element] after the division; zeros where nothing was seen.
  std::vector<float> run() const {
    std::vector<float> scratch(kernel::scratch_floats(count(), key_size, value_size),
                               std::numeric_limits<float>::quiet_NaN());
    std::vector<float> maximum(count());
    std::vector<float> sum(count());
    std::vector<float> out(count() * value_size);
    const kernel::softmax_rows state{maximum.data(), sum.data(), out.data()};
    state.clear(count(), value_size);
    const kernel::query_block rows{queries.data(), count(), group, key_size, value_size, &params, position};
    for (const block& b : blocks)
      kernel::attend_block(Format{}, {b.keys.data(), b.values.data(), b.rows, b.position, b.bias}, rows, scratch.data(),
                           state);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (sum[i / value_size] != 0.0F) out[i] /= sum[i / value_size];
    return out;
  }

  void expect_exact(double tolerance = 1e-5) const {
    const std::vector<float> found = run();
    for (std::size_t query = 0; query < count(); ++query) {
      std::vector<reference::row> seen;
      for (const block& b : blocks)
        for (std::size_t row = 0; row < b.rows; ++row)
          if (b.position + row <= position + query / group) seen.push_back(b.exact[row]);
      const float* const q = queries.data() + query * key_size;
      const reference::vector expected =
          reference::attention({q, q + key_size}, seen, {1.0, static_cast<double>(params.softcap)}, value_size);
      for (std::size_t i = 0; i < value_size; ++i)
        ASSERT_NEAR(static_cast<double>(found[query * value_size + i]), expected[i],
                    tolerance * (1.0 + std::fabs(expected[i])))
            << Format::name() << " query " << query << " element " << i << ", " << key_size << "/" << value_size
            << ", rows " << blocks.back().rows;
    }
  }
};

template <class Format>
class attend_block : public testing::Test {};
using formats = testing::Types<headwise::float32, headwise::float16, headwise::bfloat16>;
TYPED_TEST_SUITE(attend_block, formats, headwise::test::format_names);

/// Query rows, already scaled so that logits are of the order of 1.
std::vector<float> scaled_queries(headwise::test::random_numbers& random, std::size_t count, std::size_t key_size) {
  return random.gaussians(count * key_size, 1.0F / std::sqrt(static_cast<float>(key_size)));
}

// GQA-07, with query counts on both sides of each path's borders.
TYPED_TEST(attend_block, every_head_size_equals_the_reference) {
  headwise::test::random_numbers random(1);
  const std::size_t query_counts[] = {1, 3, 11, 12, 13, 30};
  const std::size_t row_counts[] = {64, 1, 17, 63, 33};
  std::size_t n = 0;
  for (const std::size_t dim :
       sizes{1, 2, 3, 5, 8, 16, 31, 32, 33, 63, 64, 65, 80, 96, 100, 112, 127, 128, 129, 192, 256, 320, 576})
    for (int repeat = 0; repeat < 3; ++repeat, ++n) {
      block_test<TypeParam> test{dim, dim, query_counts[n % 6]};
      test.queries = scaled_queries(random, test.count(), dim);
      test.add_random(random, row_counts[n % 5], 0);
      test.add_random(random, row_counts[(n + 1) % 5], 64);
      test.expect_exact();
    }
}

/// V element index as value: a tail that is left out shows as 0.
TYPED_TEST(attend_block, every_value_element_is_computed) {
  for (const std::size_t dim :
       sizes{1, 2, 3, 5, 8, 16, 31, 32, 33, 63, 64, 65, 80, 96, 100, 112, 127, 128, 129, 192, 256}) {
    block_test<TypeParam> test{dim, dim};
    test.queries.assign(dim, 0.0F);
    std::vector<float> values;
    for (std::size_t i = 0; i < 5 * dim; ++i) values.push_back(static_cast<float>(1 + i % dim));
    test.add(5, std::vector<float>(5 * dim, 1.0F), values, 0);
    const std::vector<float> out = test.run();
    for (std::size_t i = 0; i < dim; ++i) ASSERT_FLOAT_EQ(out[i], static_cast<float>(1 + i)) << dim;
  }
}

// GQA-06
TYPED_TEST(attend_block, keys_and_values_may_have_different_sizes) {
  headwise::test::random_numbers random(2);
  struct {
    std::size_t key_size, value_size;
  } const pairs[] = {{6, 3}, {192, 128}, {64, 1}, {1, 64}, {128, 192}};
  for (const auto& size : pairs)
    for (const std::size_t count : sizes{2, 20}) {
      block_test<TypeParam> test{size.key_size, size.value_size, count};
      test.queries = scaled_queries(random, count, size.key_size);
      test.add_random(random, 40, 0);
      test.expect_exact();
    }
}

TYPED_TEST(attend_block, any_number_of_rows_equals_the_reference) {
  headwise::test::random_numbers random(3);
  for (std::size_t rows = 0; rows <= 64; ++rows)
    for (const std::size_t count : sizes{1, 12}) {
      block_test<TypeParam> test{24, 24, count};
      test.queries = scaled_queries(random, count, 24);
      test.add_random(random, rows, 0);
      test.expect_exact();  // no rows: zeros
    }
}

TYPED_TEST(attend_block, a_query_sees_the_rows_up_to_its_own_position) {
  headwise::test::random_numbers random(4);
  for (const std::size_t first : sizes{0, 60, 64, 100, 127, 128, 300})  // before, inside and behind the blocks
    for (const std::size_t tokens : sizes{1, 5, 40}) {
      block_test<TypeParam> test{16, 16, 3, tokens, first};
      test.queries = scaled_queries(random, test.count(), 16);
      test.add_random(random, 64, 0);
      test.add_random(random, 50, 70);  // a window that begins inside a page
      test.expect_exact();
    }
}

/// 0 * NaN: what a query does not see must not even be multiplied by 0.
TYPED_TEST(attend_block, rows_that_a_query_does_not_see_may_hold_anything) {
  headwise::test::random_numbers random(5);
  for (const std::size_t tokens : sizes{1, 20}) {
    block_test<TypeParam> test{8, 8, 1, tokens, 3};
    test.queries = scaled_queries(random, tokens, 8);
    test.add_random(random, 64, 0);
    const std::vector<float> clean = test.run();
    const std::size_t unseen = 3 + tokens;  // the first row that no query sees
    for (auto* part : {&test.blocks[0].keys, &test.blocks[0].values})
      std::fill(part->begin() + static_cast<std::ptrdiff_t>(TypeParam::bytes(unseen * 8)), part->end(),
                std::byte{0xFF});
    EXPECT_EQ(test.run(), clean) << tokens;
  }
}

TYPED_TEST(attend_block, bias_and_softcap_apply_in_their_order) {
  headwise::test::random_numbers random(6);
  for (const float softcap : {0.0F, 2.0F, 30.0F})
    for (const std::size_t count : sizes{1, 12}) {
      block_test<TypeParam> test{32, 32, count};
      test.params.softcap = softcap;
      test.queries = scaled_queries(random, count, 32);
      test.add_random(random, 20, 0, 0.0F, 5.0F);
      test.add_random(random, 1, 64, std::log(37.0F), 5.0F);  // added behind the cap: 37 rows stay 37 rows
      test.add_random(random, 9, 128, -2.5F, 5.0F);
      test.expect_exact();
    }
}

TYPED_TEST(attend_block, a_maximum_that_rises_with_every_block_rescales_what_came_before) {
  headwise::test::random_numbers random(7);
  for (const float rise : {3.0F, 40.0F, 200.0F})  // the last: what came before underflows to 0
    for (const std::size_t count : sizes{1, 12}) {
      block_test<TypeParam> test{16, 16, count};
      test.queries = scaled_queries(random, count, 16);
      for (std::size_t b = 0; b < 8; ++b) test.add_random(random, 1 + 9 * b, 64 * b, rise * static_cast<float>(b));
      test.expect_exact(1e-5 + static_cast<double>(8.0F * rise) * 0x1p-24);  // of which logits are rounded
    }
}

TYPED_TEST(attend_block, the_largest_logit_may_stand_anywhere) {  // SOFT-06
  for (std::size_t largest = 0; largest <= 40; ++largest) {
    block_test<TypeParam> test{1, 1};
    test.queries.assign(1, 100.0F);
    std::vector<float> keys(41, -100.0F);
    std::vector<float> values(41, 1.0F);
    keys[largest] = 100.0F;
    values[largest] = 3.0F;
    test.add(41, keys, values, 0);
    EXPECT_EQ(test.run()[0], 3.0F) << largest;
  }
}

TYPED_TEST(attend_block, nan_in_one_query_stays_in_that_query) {  // SOFT-07
  headwise::test::random_numbers random(8);
  for (const std::size_t count : sizes{3, 15}) {
    block_test<TypeParam> test{8, 8, count};
    test.queries = scaled_queries(random, count, 8);
    test.add_random(random, 30, 0);
    const std::vector<float> clean = test.run();
    test.queries[8] = std::numeric_limits<float>::quiet_NaN();  // query 1
    const std::vector<float> found = test.run();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i / 8 == 1)
        EXPECT_TRUE(std::isnan(found[i])) << i;
      else
        EXPECT_EQ(found[i], clean[i]) << i;
    }
  }
}

}  // namespace
