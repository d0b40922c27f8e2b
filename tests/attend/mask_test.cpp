// SPDX-License-Identifier: MIT
#include "headwise/attend/mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "support/exact_attention.hpp"
#include "support/kernel_case.hpp"
#include "support/refused.hpp"
#include "support/sizes.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::attend_schedule;
using headwise::attention_params;
using headwise::key_range;
using headwise::model_shape;
using headwise::serial;
using headwise::test::exact_answer;
using headwise::test::exact_attention;
using headwise::test::sizes;
using headwise::test::tokens;

/// Every set of the processor: masks are the kernels' work.
class mask : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(mask);

auto full_cache(const tokens& rows, std::size_t length) {
  auto cache = headwise::make_cache<headwise::float32>(headwise::head_plan(rows.shape), headwise::fixed_budget{50});
  headwise::test::append(cache, rows, 0, length);
  return cache;
}

template <class Cache, class Mask>
std::vector<float> masked(const Cache& cache, const tokens& rows, std::size_t first, std::size_t count,
                          const Mask& visible) {
  const model_shape& shape = rows.shape;
  std::vector<float> out(count * shape.query_heads * shape.value_size(), -7777.0F);
  attend_schedule schedule;
  attention_params params;
  params.first_position = first;
  headwise::attend(cache, 0, rows.queries(first, count),
                   headwise::packed_output(out.data(), count, shape.query_heads, shape.value_size()), schedule,
                   serial{}, params, visible);
  return out;
}

template <class Cache, class Mask>
void expect_masked(const Cache& cache, const tokens& rows, std::size_t first, std::size_t count, const Mask& visible,
                   key_range folded = {}) {
  const std::vector<float> found = masked(cache, rows, first, count, visible);
  const exact_answer exact = exact_attention(rows, cache.length(), first, count, visible, folded);
  ASSERT_EQ(found.size(), exact.out.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(static_cast<double>(found[i]), exact.out[i], 1e-5 * (1.0 + std::fabs(exact.out[i])))
        << "element " << i << ", queries " << first << " to " << first + count - 1;
}

TEST_P(mask, of_every_kind_equals_double_precision) {
  for (const model_shape& shape : {model_shape{1, 2, 1, 16, 0}, model_shape{1, 3, 3, 8, 16}}) {
    const tokens rows = headwise::test::random_tokens(shape, 260, 1);
    const auto cache = full_cache(rows, 260);
    for (const std::size_t count : sizes{1, 9, 150})
      for (const std::size_t first : sizes{0, 61}) {
        expect_masked(cache, rows, first, count, headwise::causal{});
        for (const std::size_t window : sizes{1, 64, 65})
          expect_masked(cache, rows, first, count, headwise::windowed{window});
        for (const std::size_t prefix : sizes{1, 100, 1000})
          expect_masked(cache, rows, first, count, headwise::prefix_lm{prefix});
        expect_masked(cache, rows, first, count, [](std::size_t at) {
          return key_range{at / 50 * 50, at / 50 * 50 + 50};
        });
        expect_masked(cache, rows, first, count, [](std::size_t at) { return key_range{at / 2, at / 2}; });  // nothing
        expect_masked(cache, rows, first, count, [](std::size_t at) { return key_range{at, 300}; });
        if (HasFatalFailure()) return;
      }
  }
}

/// Many ranges of rows and many blocks of queries: borders of tasks and of masks cross.
TEST_P(mask, over_many_tasks_equals_double_precision) {
  const model_shape shape{1, 1, 1, 256, 0};  // 512 rows of float32 in a task
  const tokens rows = headwise::test::random_tokens(shape, 1700, 2);
  const auto cache = full_cache(rows, 1700);
  for (const std::size_t first : sizes{500, 1023, 1690}) {
    expect_masked(cache, rows, first, 10, headwise::causal{});
    expect_masked(cache, rows, first, 10, headwise::windowed{512});
    expect_masked(cache, rows, first, 10, headwise::windowed{20});
    expect_masked(cache, rows, first, 10, headwise::prefix_lm{1100});
  }
}

TEST(mask_refused, that_goes_back) {
  const model_shape shape{1, 2, 1, 8, 0};
  const tokens rows = headwise::test::random_tokens(shape, 100, 3);
  const auto cache = full_cache(rows, 100);
  EXPECT_REFUSED(masked(cache, rows, 40, 10,
                        [](std::size_t at) {
                          return key_range{50 - at, at + 1};
                        }),
                 "position 41", "must not go back");
  EXPECT_REFUSED(masked(cache, rows, 40, 10,
                        [](std::size_t at) {
                          return key_range{0, 100 - at};
                        }),
                 "position 41", "must not go back");
  EXPECT_NO_THROW(masked(cache, rows, 40, 1, [](std::size_t at) { return key_range{50 - at, 100 - at}; }));
}

/// 4 sinks, 96 folded rows, 50 recent ones.
struct folded_rows {
  tokens rows = headwise::test::random_tokens({1, 2, 1, 8, 0}, 150, 4);
  headwise::kv_cache<headwise::float32, headwise::fixed_budget, headwise::mean_compensation> cache =
      headwise::make_cache<headwise::float32>(headwise::head_plan(rows.shape, headwise::head_role::local, 4),
                                              headwise::fixed_budget{50}, headwise::mean_compensation{});
  key_range folded{4, 100};
  folded_rows() {
    headwise::test::append(cache, rows, 0, 150);
    cache.compress();
  }
};

TEST_P(mask, that_begins_behind_folded_rows_does_not_see_their_summary) {
  const folded_rows f;
  expect_masked(f.cache, f.rows, 149, 1, headwise::windowed{50}, f.folded);
  expect_masked(f.cache, f.rows, 140, 10, headwise::windowed{10}, f.folded);
  expect_masked(f.cache, f.rows, 149, 1, headwise::windowed{150}, f.folded);  // sees all
  expect_masked(f.cache, f.rows, 120, 30, headwise::windowed{1000}, f.folded);
  expect_masked(f.cache, f.rows, 120, 30, headwise::prefix_lm{130}, f.folded);
}

/// Queries of one block of which some see the summary and the others begin behind it.
TEST_P(mask, may_let_only_the_first_queries_of_a_chunk_see_the_summary) {
  const folded_rows f;
  const auto from_130 = [](std::size_t at) { return key_range{at < 130 ? std::size_t{0} : std::size_t{110}, at + 1}; };
  expect_masked(f.cache, f.rows, 120, 30, from_130, f.folded);
}

TEST(mask_refused, window_over_folded_rows) {
  const folded_rows f;
  EXPECT_REFUSED(masked(f.cache, f.rows, 149, 1, headwise::windowed{60}), "KV head 0.0", "position 149",
                 "sees positions 90 to 149", "99");
  EXPECT_REFUSED(masked(f.cache, f.rows, 149, 1, headwise::windowed{149}), "sees positions 1 to 149");
  EXPECT_REFUSED(masked(f.cache, f.rows, 130, 20, headwise::windowed{40}), "sees positions 91 to 130");
  // The first of the chunk sees everything; the one behind it would lose sinks, and the window ends inside the folded.
  EXPECT_REFUSED(masked(f.cache, f.rows, 140, 10, headwise::windowed{141}), "position 141", "sees positions 1 to 141");
}

}  // namespace
