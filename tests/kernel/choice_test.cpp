// SPDX-License-Identifier: MIT
// Which kernels are used, and what the reference alone can do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "support/kernel_case.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::element_type;
using headwise::key_range;
using headwise::test::forced_set;
using headwise::test::instruction_set;
using headwise::test::instruction_sets;
using headwise::test::kernel_answer;
using headwise::test::kernel_case;
using headwise::test::random_numbers;
using headwise::test::sizes;
namespace kernel = headwise::kernel;

TEST(kernel_choice, without_a_wish_is_the_best_set_of_the_processor) {
  kernel::choose();
  EXPECT_STREQ(kernel::fastest().name, instruction_sets().back().name);
  kernel::choose(-1);
  EXPECT_STREQ(kernel::fastest().name, instruction_sets().back().name);
}

/// A test that forces a set must not run another one unseen.
TEST(kernel_choice, each_set_of_the_processor_is_built_and_can_be_forced) {
#if HEADWISE_WITH_HIGHWAY
  EXPECT_GE(instruction_sets().size(), 2U) << "this processor is older than any set that is tested";
#else
  EXPECT_EQ(instruction_sets().size(), 1U);
#endif
  for (const instruction_set& set : instruction_sets()) {
    const forced_set forced(set);
    EXPECT_STREQ(kernel::fastest().name, set.name);
  }
  EXPECT_STREQ(kernel::fastest().name, instruction_sets().back().name);  // and back
}

TEST(kernel_choice, among_several_sets_is_the_best_of_them) {
  std::int64_t allowed = 0;
  for (const instruction_set& set : instruction_sets()) {
    allowed |= set.bit;
    kernel::choose(allowed);
    EXPECT_STREQ(kernel::fastest().name, set.name);
  }
  kernel::choose();
}

/// Sizes that are no multiple of 8 go to the reference, and the others do not.
TEST(kernel_choice, depends_on_head_sizes) {
  for (const instruction_set& set : instruction_sets()) {
    const forced_set forced(set);
    for (std::size_t size = 1; size <= 300; ++size) {
      const char* const expected = size % 8 == 0 ? set.name : "reference";
      ASSERT_STREQ(kernel::for_sizes(size, size).name, expected) << size;
      ASSERT_STREQ(kernel::for_sizes(size, 64).name, expected) << size;
      ASSERT_STREQ(kernel::for_sizes(64, size).name, expected) << size;
    }
  }
}

/// Through a cache: what is computed for such a head has the reference's bits, whatever set is chosen.
TEST(kernel_choice, of_the_reference_for_odd_sizes_shows_in_the_result) {
  const headwise::model_shape shape{1, 4, 2, 20, 12};
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, 150, 1);
  std::vector<float> expected;
  for (const instruction_set& set : instruction_sets()) {
    const forced_set forced(set);
    auto cache = headwise::make_cache<headwise::float32>(headwise::head_plan(shape), headwise::fixed_budget{1000});
    headwise::test::append(cache, rows, 0, 150);
    std::vector<float> found = headwise::test::attended(cache, 0, rows.queries(100, 50));
    if (set.bit == 0) expected = found;
    EXPECT_EQ(found, expected) << set.name;
  }
}

TEST(kernel_reference, any_head_size_equals_double_precision) {
  const forced_set forced({"reference", 0});
  random_numbers random(1);
  const sizes query_counts{1, 3, 11, 12, 13, 30};
  const sizes row_counts{64, 1, 17, 63, 33};
  std::size_t n = 0;
  for (const std::size_t size : sizes{1, 2, 3, 5, 31, 32, 33, 63, 65, 100, 127, 129, 320, 576})
    for (const element_type type : {element_type::f32, element_type::f16, element_type::bf16}) {
      kernel_case test(type, size, n % 2 == 0 ? size : size / 2 + 1, query_counts[n % 6]);
      test.random_queries(random);
      test.add_random(random, row_counts[n % 5], 0);
      test.add_random(random, row_counts[(n + 1) % 5], 64);
      test.expect_exact();
      ++n;
    }
}

/// Flush-to-zero and denormals-are-zero, as audio and game engines set them: float16's subnormals are still numbers,
/// nothing becomes NaN, and the modes stay.
class flush_to_zero : public headwise::test::each_set_and_type {};
HEADWISE_FOR_EACH_SET_AND_TYPE(flush_to_zero);

TEST_P(flush_to_zero, subnormal_rows_and_queries_are_right_or_zero) {
#if defined(__SSE2__)
  for (const std::size_t count : sizes{1, 3, 8, 20, 70})
    for (const float size : {3e-7F, 1e-7F, 6e-8F, 1e-39F}) {  // float16's subnormals; its smallest; float32's
      random_numbers random(2);
      kernel_case test(type(), 16, 16, count);
      test.random_queries(random);
      for (float& x : test.queries) x *= size < 1e-30F ? 1e-3F : 1e6F;
      if (count > 1) std::fill_n(test.queries.begin(), 16, 1e-40F);
      test.add(30, random.gaussians(30 * 16, size), random.gaussians(30 * 16, size), 0);
      test.add(3, random.gaussians(3 * 16, size), random.gaussians(3 * 16, size), 64, -1.0F);
      const unsigned before = _mm_getcsr();
      constexpr unsigned flush = 0x8040;
      _mm_setcsr(before | flush);
      const kernel_answer found = test.run_all();
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      EXPECT_EQ(after & ~0x3FU, (before | flush) & ~0x3FU);
      const auto smallest = static_cast<double>(std::numeric_limits<float>::min());
      for (std::size_t q = 0; q < count; ++q) {
        const reference::vector exact = reference::attention(test.query(q), test.seen_by(q), {}, 16);
        for (std::size_t i = 0; i < 16; ++i)
          ASSERT_NEAR(static_cast<double>(found.out[q * 16 + i]), exact[i],
                      2e-6 * static_cast<double>(size) * 4.0 + 40.0 * smallest)
              << test.description();
      }
    }
#else
  GTEST_SKIP() << "no MXCSR";
#endif
}

/// What each row received, from the strip of weights.
class received : public headwise::test::each_set_and_type {};
HEADWISE_FOR_EACH_SET_AND_TYPE(received);

void expect_received(const kernel_case& test) {
  const kernel::functions& kernels = kernel::for_sizes(test.key_size, test.value_size);
  const kernel_answer answer = test.run_with(kernels, true);
  test.expect_exact(answer);
  std::vector<reference::vector> weights;  // [query][seen row]
  for (std::size_t q = 0; q < test.count(); ++q) {
    reference::vector logits;
    double most = -HUGE_VAL;
    for (const reference::row& row : test.seen_by(q)) {
      logits.push_back(reference::logit(test.query(q), row.key, {1.0, static_cast<double>(test.params.softcap)}) +
                       row.bias);
      most = std::fmax(most, logits.back());
    }
    double sum = 0.0;
    for (double& x : logits) sum += x = std::exp(x - most);
    for (double& x : logits) x /= sum;
    weights.push_back(logits);
  }
  std::vector<std::size_t> next(test.count(), 0);
  std::vector<float> sum = answer.sum;
  std::vector<float> maximum = answer.maximum;
  std::vector<float> out = answer.out;
  const kernel::softmax_rows state{maximum.data(), sum.data(), out.data()};
  const key_range any{test.sees.front().begin, test.sees.back().end};
  std::size_t entry = 0;
  for (const kernel_case::run& run : test.runs) {
    const key_range seen = any.within(run.position, run.rows);
    if (seen.begin >= seen.end) continue;
    ASSERT_LT(entry, answer.strip_entries) << test.description();
    std::vector<float> found(kernel::block_rows + 1, -7777.0F);
    kernels.received(answer.strip.data() + entry++ * kernels.strip_floats(test.count()), test.count(), state,
                     found.data());
    for (std::size_t row = seen.begin; row < seen.end; ++row) {
      double exact = 0.0;
      for (std::size_t q = 0; q < test.count(); ++q) {
        const key_range& sees = test.sees[q / test.group];
        if (run.position + row >= sees.begin && run.position + row < sees.end) exact += weights[q][next[q]++];
      }
      ASSERT_NEAR(static_cast<double>(found[row - seen.begin]), exact, 1e-5 * (1.0 + exact))
          << "row " << run.position + row << ", " << test.description();
    }
    ASSERT_EQ(found[seen.end - seen.begin], -7777.0F) << "beside what was asked for; " << test.description();
  }
  ASSERT_EQ(entry, answer.strip_entries) << test.description();
}

TEST_P(received, attention_of_each_row_equals_double_precision) {
  random_numbers random(3);
  for (const std::size_t tokens : sizes{1, 2, 4, 9, 33, 64, 65, 100})
    for (const std::size_t group : sizes{1, 2, 3})
      for (const float softcap : {0.0F, 3.0F}) {
        kernel_case test(type(), 24, 16, tokens, group);
        test.params.softcap = softcap;
        test.random_queries(random);
        test.add_random(random, 10, 3);
        test.add_random(random, 20, 30, 1.5F);
        test.add_random(random, 64, 64);
        test.add_random(random, 1, 128, 20.0F);  // the maximum rises
        test.add_random(random, 30, 130);
        test.mask(160 - tokens, [](std::size_t at) { return key_range{0, at + 1}; });
        expect_received(test);
        test.mask(100, [](std::size_t at) { return key_range{at - 60, at - 20}; });
        expect_received(test);
        if (HasFatalFailure()) return;
      }
}

/// Queries that see nothing, or nothing yet in the first runs.
TEST_P(received, nothing_comes_from_queries_that_see_nothing) {
  random_numbers random(4);
  for (const std::size_t tokens : sizes{1, 5, 70}) {
    kernel_case test(type(), 8, 8, tokens, 2);
    test.random_queries(random);
    test.add_random(random, 20, 10);
    test.add_random(random, 20, 64);
    test.mask(0, [](std::size_t at) { return key_range{0, at + 1}; });
    expect_received(test);
    test.mask(0, [](std::size_t at) { return key_range{at, at}; });
    expect_received(test);
  }
}

}  // namespace
