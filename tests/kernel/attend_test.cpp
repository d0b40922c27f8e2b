// SPDX-License-Identifier: MIT
// The attention kernel of every instruction set of this processor against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/kernel_case.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::element_type;
using headwise::key_range;
using headwise::test::kernel_answer;
using headwise::test::kernel_case;
using headwise::test::random_numbers;
using headwise::test::sizes;
namespace kernel = headwise::kernel;

const sizes head_sizes{8, 16, 24, 40, 64, 72, 80, 96, 112, 128, 192, 256};
/// Both sides of the border between few queries and many, and the remainders of either's tiles.
const sizes query_counts{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 30, 64, 65, 192, 200};

class attend_kernel : public headwise::test::each_set_and_type {
 protected:
  random_numbers random{1};
};
HEADWISE_FOR_EACH_SET_AND_TYPE(attend_kernel);

// GQA-07
TEST_P(attend_kernel, every_head_size_equals_double_precision) {
  const sizes counts{1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 37};
  const sizes rows{64, 1, 17, 63, 33, 4, 2};
  std::size_t n = 0;
  for (const std::size_t size : head_sizes)
    for (int repeat = 0; repeat < 13; ++repeat, ++n) {
      kernel_case test(type(), size, size, counts[n % 13]);
      test.random_queries(random);
      test.add_random(random, rows[n % 7], 0);
      test.add_random(random, rows[(n / 7) % 7], 64);
      test.expect_exact();
      if (HasFatalFailure()) return;
    }
}

// GQA-06
TEST_P(attend_kernel, keys_and_values_may_have_different_sizes) {
  struct {
    std::size_t key_size, value_size;
  } const pairs[] = {{192, 128}, {64, 8}, {8, 64}, {128, 192}, {40, 24}, {24, 40}, {8, 8}, {16, 72}};
  for (const auto& size : pairs)
    for (const std::size_t count : sizes{1, 2, 5, 8, 9, 20, 70}) {
      kernel_case test(type(), size.key_size, size.value_size, count);
      test.random_queries(random);
      test.add_random(random, 40, 0);
      test.add_random(random, 21, 64);
      test.expect_exact();
      if (HasFatalFailure()) return;
    }
}

TEST_P(attend_kernel, every_number_of_queries_equals_double_precision) {
  for (const std::size_t count : query_counts)
    for (const std::size_t rows : sizes{1, 5, 64, 71}) {
      kernel_case test(type(), 40, 24, count);
      test.random_queries(random);
      test.add_split(random, 0, rows, 64);
      test.expect_exact();
      if (HasFatalFailure()) return;
    }
}

TEST_P(attend_kernel, every_group_equals_double_precision) {  // GQA-01
  for (std::size_t group = 1; group <= 16; ++group)
    for (const std::size_t tokens : sizes{1, 2, 3, 5, 13}) {
      kernel_case test(type(), 24, 16, tokens, group);
      test.random_queries(random);
      test.add_split(random, 0, 100, 64);
      test.mask(100 - tokens, [](std::size_t position) { return key_range{0, position + 1}; });
      test.expect_exact();
      if (HasFatalFailure()) return;
    }
}

TEST_P(attend_kernel, every_number_of_rows_equals_double_precision) {
  for (std::size_t rows = 0; rows <= 130; ++rows)
    for (const std::size_t count : sizes{1, 3, 4, 10}) {
      kernel_case test(type(), 24, 40, count);
      test.random_queries(random);
      test.add_split(random, 0, rows, 64);
      test.expect_exact();  // no rows: zeros
      if (HasFatalFailure()) return;
    }
}

TEST_P(attend_kernel, a_run_without_rows_is_nothing) {
  for (const std::size_t count : sizes{1, 12}) {
    kernel_case test(type(), 16, 16, count);
    test.random_queries(random);
    test.add_random(random, 0, 0);
    test.add_random(random, 3, 5);
    test.add_random(random, 0, 8);
    test.add_random(random, 2, 9);
    test.add_random(random, 0, 70);
    test.expect_exact();
  }
}

/// What retain leaves behind, and windows that begin inside a page. How the rows of a block are split into runs shows
/// in no bit, since blocks are gathered; the reference takes one run after another.
TEST_P(attend_kernel, rows_may_be_split_into_runs_in_any_way) {
  for (const std::size_t count : sizes{1, 4, 7, 20, 65})
    for (const std::size_t first : sizes{0, 1, 37, 63}) {
      const std::size_t last = first + 150;
      kernel_case whole(type(), 32, 24, count);
      whole.random_queries(random);
      whole.mask(first + 150 - count, [](std::size_t position) { return key_range{0, position + 1}; });
      {
        random_numbers rows(7);
        whole.add_split(rows, first, last, 1);
      }
      const kernel_answer expected = whole.run_all();
      whole.expect_exact(expected);
      for (const std::size_t most : sizes{2, 3, 7, 63, 64}) {
        kernel_case split = whole;
        split.runs.clear();
        for (std::size_t r = 0; r < whole.runs.size();) {  // the same rows, joined
          kernel_case::run joined = whole.runs[r];
          for (++r; r < whole.runs.size() && joined.rows < most && whole.runs[r].position % 64 != 0; ++r) {
            const kernel_case::run& next = whole.runs[r];
            joined.keys.insert(joined.keys.end(), next.keys.begin(), next.keys.end());
            joined.values.insert(joined.values.end(), next.values.begin(), next.values.end());
            joined.exact.push_back(next.exact[0]);
            ++joined.rows;
          }
          split.runs.push_back(joined);
        }
        const kernel_answer found = split.run_all();
        if (is_reference())
          split.expect_exact(found);
        else
          EXPECT_TRUE(found == expected) << "runs of " << most << " rows from " << first << "; " << split.description();
        if (HasFatalFailure()) return;
      }
    }
}

/// Positions that have gaps, as a token-level policy leaves them, with runs of every length.
TEST_P(attend_kernel, kept_rows_may_have_gaps) {
  for (const std::size_t tokens : sizes{1, 6, 30}) {
    kernel_case test(type(), 16, 16, tokens, 2);
    test.random_queries(random);
    for (std::size_t at = 0, n = 0; at < 320; ++n) {
      const std::size_t rows = std::min(sizes{1, 2, 3, 7, 1, 20, 1}[n % 7], 64 - at % 64);
      test.add_random(random, rows, at);
      at += rows + sizes{1, 5, 0, 64, 2}[n % 5];
    }
    for (const std::size_t first : sizes{0, 1, 63, 100, 200, 290}) {
      test.mask(first, [](std::size_t position) { return key_range{0, position + 1}; });
      test.expect_exact();
      test.mask(first, [](std::size_t position) { return key_range{position < 50 ? 0 : position - 50, position + 1}; });
      test.expect_exact();
      if (HasFatalFailure()) return;
    }
  }
}

/// One call, or many: the state carries everything.
TEST_P(attend_kernel, runs_may_come_in_any_number_of_calls) {
  for (const std::size_t count : sizes{1, 5, 33}) {
    kernel_case test(type(), 16, 32, count);
    test.random_queries(random);
    for (std::size_t block = 0; block < 6; ++block) test.add_random(random, 64, 64 * block);
    const kernel_answer together = test.run_all();
    test.expect_exact(together);
    for (const std::size_t at_once : sizes{1, 2, 5})
      EXPECT_TRUE(test.run_with(kernel::for_sizes(16, 32), false, at_once) == together) << test.description();
  }
}

TEST_P(attend_kernel, rows_and_scratch_may_lie_anywhere) {
  for (const std::size_t count : sizes{1, 7, 40})
    for (std::size_t offset = 0; offset < 18; ++offset) {
      kernel_case test(type(), 40, 24, count);
      test.random_queries(random);
      test.row_offset = headwise::test::bytes_of(type(), offset);
      test.scratch_offset = (offset * 5) % 17;
      random_numbers rows(9);
      test.add_split(rows, 3, 90, 40);
      test.expect_exact();
      if (HasFatalFailure()) return;
    }
}

/// Chunks, windows, prefixes, and ranges that are empty, before, between and behind the rows.
TEST_P(attend_kernel, a_query_sees_its_range_and_nothing_else) {
  const auto causal = [](std::size_t at) { return key_range{0, at + 1}; };
  const auto window = [](std::size_t at) { return key_range{at < 20 ? 0 : at - 20, at + 1}; };
  const auto narrow = [](std::size_t at) { return key_range{at, at + 1}; };
  const auto prefix = [](std::size_t at) { return key_range{0, std::max<std::size_t>(at + 1, 90)}; };
  const auto nothing = [](std::size_t at) { return key_range{at, at}; };
  const auto steps = [](std::size_t at) { return key_range{at / 7 * 5, at / 3 * 4}; };
  for (const std::size_t tokens : sizes{1, 5, 8, 40, 67})
    for (const std::size_t group : sizes{1, 3})
      for (const std::size_t first : sizes{0, 60, 64, 100, 127, 128, 300}) {
        kernel_case test(type(), 16, 24, tokens, group);
        test.random_queries(random);
        test.add_random(random, 64, 0);
        test.add_random(random, 50, 70);
        test.add_random(random, 1, 128);
        test.mask(first, causal);
        test.expect_exact();
        test.mask(first, window);
        test.expect_exact();
        test.mask(first, narrow);
        test.expect_exact();
        test.mask(first, prefix);
        test.expect_exact();
        test.mask(first, nothing);
        test.expect_exact();
        test.mask(first, steps);
        test.expect_exact();
        if (HasFatalFailure()) return;
      }
}

/// 0 * NaN: what a query does not see must not even be multiplied by 0. Each row in turn is NaN.
TEST_P(attend_kernel, rows_that_a_query_does_not_see_may_hold_anything) {
  for (const std::size_t tokens : sizes{1, 5, 20, 70}) {
    kernel_case test(type(), 8, 16, tokens, 2);
    test.random_queries(random);
    test.mask(40, [](std::size_t at) { return key_range{at - 30, at - 2}; });
    test.add_random(random, 64, 0);
    test.add_random(random, 64, 64);
    const kernel_answer clean = test.run_all();
    test.expect_exact(clean);
    for (std::size_t row = 0; row < 128; row += row % 3 + 1) {
      kernel_case spoiled = test;
      kernel_case::run& run = spoiled.runs[row / 64];
      const auto spoil = [&](std::vector<std::byte>& bytes, std::size_t size) {
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(headwise::test::bytes_of(type(), row % 64 * size)),
                    headwise::test::bytes_of(type(), size), std::byte{0xFF});
      };
      spoil(run.keys, 8);
      spoil(run.values, 16);
      const kernel_answer found = spoiled.run_all();
      for (std::size_t q = 0; q < test.count(); ++q) {
        const key_range& sees = test.sees[q / 2];
        const bool sees_it = row >= sees.begin && row < sees.end;
        for (std::size_t i = 0; i < 16; ++i) {
          if (sees_it)
            ASSERT_TRUE(std::isnan(found.out[q * 16 + i])) << "row " << row << " query " << q << test.description();
          else
            ASSERT_EQ(found.out[q * 16 + i], clean.out[q * 16 + i])
                << "row " << row << " query " << q << test.description();
        }
      }
    }
  }
}

TEST_P(attend_kernel, nan_in_one_value_element_stays_in_that_element) {
  for (const std::size_t count : sizes{1, 3, 8, 15, 40})
    for (const std::size_t size : sizes{8, 24, 128}) {
      kernel_case test(type(), 16, size, count);
      test.random_queries(random);
      random_numbers rows(3);
      test.add_random(rows, 30, 0);
      const kernel_answer clean = test.run_all();
      for (const std::size_t element : {std::size_t{0}, size / 2, size - 1}) {
        kernel_case spoiled = test;
        const std::size_t at = headwise::test::bytes_of(type(), 11 * size + element);
        std::fill_n(spoiled.runs[0].values.begin() + static_cast<std::ptrdiff_t>(at),
                    headwise::test::bytes_of(type(), 1), std::byte{0xFF});
        const kernel_answer found = spoiled.run_all();
        for (std::size_t i = 0; i < found.out.size(); ++i) {
          if (i % size == element)
            ASSERT_TRUE(std::isnan(found.out[i])) << i << " " << test.description();
          else
            ASSERT_EQ(found.out[i], clean.out[i]) << i << " " << test.description();
        }
      }
    }
}

// SOFT-07
TEST_P(attend_kernel, nan_in_one_query_stays_in_that_query) {
  for (const std::size_t count : sizes{2, 3, 5, 8, 15, 70})
    for (std::size_t spoiled = 0; spoiled < count; spoiled += 1 + count / 7) {
      kernel_case test(type(), 8, 8, count);
      test.random_queries(random);
      test.add_random(random, 30, 0);
      test.add_random(random, 30, 64);
      const kernel_answer clean = test.run_all();
      test.queries[spoiled * 8 + 3] = std::numeric_limits<float>::quiet_NaN();
      const kernel_answer found = test.run_all();
      for (std::size_t i = 0; i < found.out.size(); ++i) {
        if (i / 8 == spoiled)
          ASSERT_TRUE(std::isnan(found.out[i])) << i << " " << test.description();
        else
          ASSERT_EQ(found.out[i], clean.out[i]) << i << " " << test.description();
      }
    }
}

/// Beside the NaN in one block, a later and an earlier block, whatever their logits: it does not get lost again.
TEST_P(attend_kernel, nan_in_one_key_reaches_every_query_that_sees_it) {
  for (const std::size_t count : sizes{1, 4, 15, 70})
    for (const std::size_t block : sizes{0, 1, 2})
      for (const std::size_t row : sizes{0, 15, 29}) {
        kernel_case test(type(), 8, 8, count);
        test.random_queries(random);
        for (std::size_t b = 0; b < 3; ++b) test.add_random(random, 30, 64 * b, static_cast<float>(b) * 50.0F);
        std::vector<std::byte>& keys = test.runs[block].keys;
        std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(headwise::test::bytes_of(type(), row * 8 + 2)),
                    headwise::test::bytes_of(type(), 1), std::byte{0xFF});
        for (const float x : test.run_all().out) ASSERT_TRUE(std::isnan(x)) << test.description();
      }
}

TEST_P(attend_kernel, infinities_are_what_arithmetic_makes_of_them) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t count : sizes{1, 4, 15, 70}) {
    const auto with = [&](float key, float value) {
      kernel_case test(type(), 8, 8, count);
      test.queries.assign(count * 8, 0.5F);
      random_numbers rows(5);
      std::vector<float> keys = rows.gaussians(20 * 8);
      std::vector<float> values = rows.gaussians(20 * 8);
      keys[7 * 8 + 1] = key;
      values[7 * 8 + 1] = value;
      test.add(20, keys, values, 0);
      return test;
    };
    const kernel_answer plain = with(0.0F, 0.0F).run_all();
    // A logit of -infinity weighs nothing: the answer is that of the other rows.
    const kernel_case without = with(-infinity, 0.0F);
    const kernel_answer found = without.run_all();
    kernel_case others(type(), 8, 8, count);
    others.queries = without.queries;
    others.runs = without.runs;
    others.runs[0].exact.erase(others.runs[0].exact.begin() + 7);
    const reference::vector expected = reference::attention(others.query(0), others.runs[0].exact, {}, 8);
    for (std::size_t i = 0; i < found.out.size(); ++i)
      ASSERT_NEAR(static_cast<double>(found.out[i]), expected[i % 8], 1e-5) << without.description();
    // +infinity is no softmax: NaN, visible.
    for (const float x : with(infinity, 0.0F).run_all().out) ASSERT_TRUE(std::isnan(x)) << without.description();
    // An infinite value shows in its own element alone.
    for (const float sign : {1.0F, -1.0F}) {
      const kernel_answer values = with(0.0F, sign * infinity).run_all();
      for (std::size_t i = 0; i < values.out.size(); ++i)
        ASSERT_EQ(values.out[i], i % 8 == 1 ? sign * infinity : plain.out[i]) << without.description();
    }
    // All logits -infinity: nothing weighs anything, and no infinity gets into the state.
    kernel_case none(type(), 8, 8, count);
    none.queries.assign(count * 8, 0.5F);
    none.add(20, std::vector<float>(20 * 8, -infinity), std::vector<float>(20 * 8, 1.0F), 0);
    const kernel_answer zeros = none.run_all();
    EXPECT_EQ(zeros.sum, std::vector<float>(count, 0.0F)) << none.description();
    EXPECT_EQ(zeros.out, std::vector<float>(count * 8, 0.0F)) << none.description();
  }
}

TEST_P(attend_kernel, bias_and_softcap_apply_in_their_order) {
  for (const float softcap : {0.0F, 0.3F, 2.0F, 30.0F, 50.0F})
    for (const std::size_t count : sizes{1, 3, 12, 40}) {
      kernel_case test(type(), 32, 24, count);
      test.params.softcap = softcap;
      test.random_queries(random);
      test.add_random(random, 20, 0, 0.0F, 5.0F);
      test.add_random(random, 3, 30, 1.25F, 5.0F);            // biased and unbiased runs in one block
      test.add_random(random, 1, 64, std::log(37.0F), 5.0F);  // added behind the cap: 37 rows stay 37 rows
      test.add_random(random, 9, 128, -2.5F, 5.0F);
      test.mask(130, [](std::size_t at) { return key_range{at - 125, at + 1}; });
      test.expect_exact(2e-5);
      if (HasFatalFailure()) return;
    }
}

/// softcap * tanh(x / softcap) over its whole range: two rows, whose weights tell the logit.
TEST_P(attend_kernel, softcap_is_exact_from_tiny_to_huge_logits) {
  for (const std::size_t count : sizes{1, 20})
    for (const float logit :
         {1e-30F, 1e-6F, 1e-3F, 0.1F, 0.24F, 0.25F, 0.26F, 0.5F, 1.0F, 3.0F, 9.0F, 20.0F, 90.0F, 1e4F, 1e30F, 3e38F})
      for (const float sign : {1.0F, -1.0F}) {
        kernel_case test(type(), 8, 8, count);
        test.params.softcap = 1.0F;
        test.queries.assign(count * 8, 0.0F);
        for (std::size_t q = 0; q < count; ++q) test.queries[q * 8] = sign * logit;
        std::vector<float> keys(16, 0.0F);
        keys[0] = 1.0F;
        std::vector<float> values(16, 0.0F);
        std::fill_n(values.begin(), 8, 1.0F);
        test.add(2, keys, values, 0);
        test.expect_exact(1e-6);
        if (HasFatalFailure()) return;
      }
}

TEST_P(attend_kernel, a_maximum_that_rises_with_every_block_rescales_what_came_before) {
  for (const float rise : {3.0F, 40.0F, 200.0F})  // the last: what came before underflows to 0
    for (const std::size_t count : sizes{1, 4, 12, 70}) {
      kernel_case test(type(), 16, 16, count);
      test.random_queries(random);
      for (std::size_t b = 0; b < 8; ++b) test.add_random(random, 1 + 9 * b, 64 * b, rise * static_cast<float>(b));
      test.expect_exact(1e-5 + static_cast<double>(8.0F * rise) * 0x1p-24);  // of which logits are rounded
      std::reverse(test.runs.begin(), test.runs.end());                      // and falls
      for (std::size_t b = 0; b < 8; ++b) test.runs[b].position = 64 * b;
      test.expect_exact(1e-5 + static_cast<double>(8.0F * rise) * 0x1p-24);
      if (HasFatalFailure()) return;
    }
}

// SOFT-06
TEST_P(attend_kernel, the_largest_logit_may_stand_anywhere) {
  for (const std::size_t count : sizes{1, 2, 4, 20})
    for (std::size_t largest = 0; largest <= 40; ++largest) {
      kernel_case test(type(), 8, 8, count);
      test.queries.assign(count * 8, 100.0F);
      std::vector<float> keys(41 * 8, -100.0F);
      std::vector<float> values(41 * 8, 1.0F);
      std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(largest * 8), 8, 100.0F);
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(largest * 8), 8, 3.0F);
      test.add(41, keys, values, 0);
      for (const float x : test.run_all().out) ASSERT_EQ(x, 3.0F) << largest << " " << test.description();
    }
}

/// Finite logits of any size do not overflow, whichever comes first: 3e38 - -3e38 is infinite.
TEST_P(attend_kernel, logits_up_to_the_largest_float_are_fine) {
  const float huge = type() == element_type::f16 ? 3e38F / 60000.0F : 3e30F;
  const float key = type() == element_type::f16 ? 60000.0F : 1e8F;
  for (const std::size_t count : sizes{1, 3, 8, 20, 70})
    for (const float first : {1.0F, -1.0F, 0.0F})
      for (const float second : {1.0F, -1.0F, 0.0F})
        for (const std::size_t at : sizes{1, 64}) {  // in one block, and in two
          kernel_case test(type(), 8, 8, count);
          test.queries.assign(count * 8, 0.0F);
          for (std::size_t q = 0; q < count; ++q) test.queries[q * 8] = huge;
          std::vector<float> keys(8, 0.0F);
          keys[0] = first * key;
          test.add(1, keys, std::vector<float>(8, 1.0F), 0);
          keys[0] = second * key;
          test.add(1, keys, std::vector<float>(8, 3.0F), at);
          const float expected = first > second ? 1.0F : (first < second ? 3.0F : 2.0F);
          for (const float x : test.run_all().out)
            ASSERT_EQ(x, expected) << first << " " << second << " " << test.description();
        }
}

/// A weight below the smallest normal float counts as 0, and none is made subnormal.
TEST_P(attend_kernel, weights_that_underflow_are_zero) {
  for (const std::size_t count : sizes{1, 4, 20})
    for (const float gap : {80.0F, 87.0F, 87.29F, 87.31F, 88.0F, 100.0F, 104.0F, 1e4F, 3e38F})
      for (const std::size_t at : sizes{1, 64}) {
        kernel_case test(type(), 8, 8, count);
        test.queries.assign(count * 8, 0.0F);
        test.add(1, std::vector<float>(8, 1.0F), std::vector<float>(8, 1.0F), 0, 0.0F);
        test.add(1, std::vector<float>(8, 1.0F), std::vector<float>(8, 1e30F), at, -gap);
        if (type() == element_type::f16) continue;  // 1e30 is no float16
        const double weight = gap < 87.3F ? std::exp(-static_cast<double>(gap)) : 0.0;
        const double expected = 1.0 + weight * 1e30;
        for (const float x : test.run_all().out)
          ASSERT_NEAR(static_cast<double>(x), expected, 1e-2 * (expected - 1.0) + 1e-6) << gap << test.description();
      }
}

/// V element index as value: a tail that is left out shows as 0.
TEST_P(attend_kernel, every_value_element_is_computed) {
  for (const std::size_t size : head_sizes)
    for (const std::size_t count : sizes{1, 5, 20}) {
      kernel_case test(type(), size, size, count);
      test.queries.assign(count * size, 0.0F);
      std::vector<float> values;
      for (std::size_t i = 0; i < 5 * size; ++i) values.push_back(static_cast<float>(1 + i % size));
      test.add(5, std::vector<float>(5 * size, 1.0F), values, 0);
      const kernel_answer found = test.run_all();
      for (std::size_t i = 0; i < count * size; ++i)
        ASSERT_FLOAT_EQ(found.out[i], static_cast<float>(1 + i % size)) << test.description();
    }
}

TEST_P(attend_kernel, no_query_is_no_work) {
  kernel_case test(type(), 16, 16, 0);
  test.add_random(random, 5, 0);
  EXPECT_TRUE(test.run_all().out.empty());
}

}  // namespace
