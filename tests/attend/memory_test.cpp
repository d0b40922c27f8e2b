// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <new>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/store/chunk_memory.hpp"
#include "support/counting_map.hpp"
#include "support/counting_new.hpp"
#include "support/format_names.hpp"
#include "support/sizes.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::attend_schedule;
using headwise::model_shape;
using headwise::test::memory;
using headwise::test::sizes;

headwise::output_view into(std::vector<float>& out, const model_shape& shape) {
  const std::size_t row = shape.query_heads * shape.value_size();
  return headwise::packed_output(out.data(), out.size() / row, shape.query_heads, shape.value_size());
}

template <class Compensation>
void expect_no_allocation(const Compensation& compensation) {
  const model_shape shape{2, 6, 2, 32, 0};
  headwise::head_plan plan(shape);
  plan.set({0, 0}, headwise::head_role::retrieval);
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, 500, 1);
  auto cache = headwise::make_cache<headwise::float16>(plan, headwise::fixed_budget{100}, compensation);
  headwise::test::append(cache, rows, 0, 300);
  attend_schedule schedule;
  std::vector<float> chunk(300 * 6 * 32);
  std::vector<float> single(6 * 32);
  headwise::attend(cache, 0, rows.queries(0, 300), into(chunk, shape), schedule);  // the largest call
  cache.compress();
  for (std::size_t n = 300; n < 500; ++n) {
    headwise::test::append(cache, rows, n, 1);
    const std::size_t before = memory().allocations;
    for (std::size_t layer = 0; layer < 2; ++layer)
      headwise::attend(cache, layer, rows.queries(n, 1), into(single, shape), schedule);
    ASSERT_EQ(memory().allocations, before) << "at length " << n + 1;
  }
}

TEST(attend_memory, nothing_is_allocated_once_the_largest_call_was_seen) {
  const std::size_t before = memory().allocations;
  ::operator delete(::operator new(8));  // counting works in this program (a new expression may be optimised away)
  EXPECT_EQ(memory().allocations, before + 1);
  expect_no_allocation(headwise::mean_compensation{});
  expect_no_allocation(headwise::moment_compensation{});
  expect_no_allocation(headwise::any_compensation(headwise::no_compensation{}));
}

/// A context that grows until its heads are several tasks each, once a longer one was seen: neither operator new nor
/// mmap, with and without what attention tells beside its output.
TEST(attend_memory, nothing_is_allocated_while_a_context_grows_over_borders_of_tasks) {
  const model_shape shape{1, 2, 2, 256, 0};  // 512 rows of float32 in a task
  const std::size_t length = 4 * 512 + 100;
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, length, 4);
  const auto cache_of = [&](std::size_t tokens) {
    auto cache = headwise::make_cache<headwise::float32>(headwise::head_plan(shape), headwise::fixed_budget{64});
    headwise::test::append(cache, rows, 0, tokens);
    return cache;
  };
  attend_schedule schedule;
  std::vector<float> out(2 * 256);
  std::vector<double> log_sums(2);
  headwise::received_attention received(2, length);
  headwise::attention_extras all;
  all.log_sum_exp = log_sums.data();
  all.received = &received;
  const auto attend = [&](const auto& cache, std::size_t n, const headwise::attention_extras& extras) {
    headwise::attend(cache, 0, rows.queries(n - 1, 1), into(out, shape), schedule, headwise::serial{}, {},
                     headwise::causal{}, extras);
  };
  {
    const auto longest = cache_of(length);
    attend(longest, length, {});
    EXPECT_EQ(schedule.tasks(), 2U * 5U);
    attend(longest, length, all);
  }
  auto cache = cache_of(1);
  std::size_t most_tasks = 0;
  for (std::size_t n = 1; n < length;) {
    const std::size_t chunk = n % 512 < 500 && n + 50 < length ? 50 - n % 50 : 1;
    headwise::test::append(cache, rows, n, chunk);
    n += chunk;
    const std::size_t allocations = memory().allocations;
    const std::size_t mappings = memory().mappings;
    attend(cache, n, {});
    most_tasks = std::max(most_tasks, schedule.tasks());
    attend(cache, n, all);
    ASSERT_EQ(memory().allocations, allocations) << "at length " << n;
    ASSERT_EQ(memory().mappings, mappings) << "at length " << n;
  }
  EXPECT_EQ(most_tasks, 2U * 5U);
#if defined(__linux__)  // counting works
  const std::size_t mappings = memory().mappings;
  { const headwise::detail::chunk_memory chunk(headwise::detail::chunk_memory::huge_page); }
  EXPECT_EQ(memory().mappings, mappings + 1);
#endif
}

/// A cache, a chunk and single queries, with new memory filled with a byte.
template <class Format>
std::vector<float> outputs_in_memory_of(int fill, std::size_t length, std::size_t dim) {
  memory().fill = fill;
  const model_shape shape{1, 4, 2, dim, 0};
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, length + 3, 2);
  headwise::head_plan plan(shape);
  plan.set({0, 1}, headwise::head_role::retrieval);
  auto cache = headwise::make_cache<Format>(plan, headwise::fixed_budget{20}, headwise::moment_compensation{});
  std::vector<float> all = headwise::test::feed(cache, rows, 0, length);
  cache.compress();
  for (std::size_t n = length; n < length + 3; ++n) {
    const std::vector<float> one = headwise::test::feed(cache, rows, n, 1);
    all.insert(all.end(), one.begin(), one.end());
  }
  memory().fill = -1;
  return all;
}

template <class Format>
class attend_memory : public testing::Test {};
using formats = testing::Types<headwise::float32, headwise::float16, headwise::bfloat16>;
TYPED_TEST_SUITE(attend_memory, formats, headwise::test::format_names);

// SOFT-04: 0xFF bytes are NaN in every format.
TYPED_TEST(attend_memory, what_new_memory_holds_does_not_matter) {
  const sizes dims{8, 40, 64};
  for (const std::size_t length :
       sizes{1, 3, 7, 13, 26, 31, 32, 33, 63, 64, 65, 95, 96, 127, 128, 129, 160, 192, 224, 320, 384}) {
    const std::size_t dim = dims[length % 3];
    const std::vector<float> poisoned = outputs_in_memory_of<TypeParam>(0xFF, length, dim);
    for (const float x : poisoned) ASSERT_TRUE(std::isfinite(x)) << length << " rows of " << dim;
    ASSERT_EQ(poisoned, outputs_in_memory_of<TypeParam>(0, length, dim)) << length << " rows of " << dim;
  }
}

TEST(attend_memory, running_out_of_it_writes_nothing_and_the_next_call_is_right) {
  const model_shape shape{1, 6, 2, 16, 0};
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, 200, 3);
  auto cache = headwise::make_cache<headwise::float16>(headwise::head_plan(shape), headwise::fixed_budget{50});
  headwise::test::append(cache, rows, 0, 200);
  cache.compress();
  const std::vector<float> expected = headwise::test::attended(cache, 0, rows.queries(199, 1));
  const std::vector<float> canaries(expected.size(), -7777.0F);
  bool done = false;
  for (long allowed = 0; !done; ++allowed) {
    ASSERT_LT(allowed, 100);
    std::vector<float> out = canaries;
    attend_schedule schedule;
    memory().allow = allowed;
    try {
      headwise::attend(cache, 0, rows.queries(199, 1), into(out, shape), schedule);
      done = true;
    } catch (const std::bad_alloc&) {
    }
    memory().allow = -1;
    if (done) break;
    EXPECT_EQ(out, canaries);
    headwise::attend(cache, 0, rows.queries(199, 1), into(out, shape), schedule);
    EXPECT_EQ(out, expected) << "after " << allowed << " allocations";
  }
}

}  // namespace
