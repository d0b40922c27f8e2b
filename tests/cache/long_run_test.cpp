// SPDX-License-Identifier: MIT
// 200,000 tokens, one by one, through a small model: what a cache holds stays what its budget says, and what it says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/sanitized.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

constexpr bool slow = sanitized || HEADWISE_WITH_HIGHWAY == 0;
constexpr std::size_t length = slow ? 20000 : 200000;
constexpr std::size_t sinks = 4, reserve = 16;

std::size_t in_use() { return memory().live_bytes + memory().mapped_bytes; }

template <class Budget, class Compensation>
kv_cache<float32, Budget, Compensation> rolling(const head_plan& plan, Budget budget, Compensation compensation) {
  cache_options options;
  options.rollback_reserve = reserve;
  return kv_cache<float32, Budget, Compensation>(plan, budget, compensation, when_to_compress::every_append, float32{},
                                                 options);
}

/// Goes on to token `end` of the counting probe, one by one, with a look at the cache after each; every 16th attends.
/// Takes nothing from the system but what the cache takes.
template <class Cache, class Look>
void decode(Cache& cache, std::size_t end, Look&& look) {
  const model_shape& shape = cache.shape();
  attend_schedule schedule;
  std::vector<float> out(shape.query_heads * shape.value_size());
  constexpr std::size_t part = 500;
  for (std::size_t first = cache.length(); first < end; first += part) {
    const tokens rows = counting_tokens(shape, part, static_cast<double>(first));
    for (std::size_t i = 0; i < part && !testing::Test::HasFatalFailure(); ++i) {
      append(cache, rows, i, 1);
      for (std::size_t layer = 0; i % 16 == 0 && layer < shape.layers; ++layer)
        attend(cache, layer, rows.queries(i, 1), packed_output(out.data(), 1, shape.query_heads, shape.value_size()),
               schedule);
      look();
    }
  }
  ASSERT_EQ(cache.length(), end);
  ASSERT_NEAR(answer(cache), static_cast<double>(end - 1) / 2.0, 0.5e-5 * static_cast<double>(end));
}

/// What the allocation hooks saw is what the report says, which it computes from pages and summaries, and what nobody
/// calls the cache's rows: for each page a handle of 16 bytes and a count of 4 - lists may have room for twice as many
/// - and for each layer its heads, their scratch memory and the lists of chunks.
template <class Cache>
void expect_told(const Cache& cache, std::size_t taken) {
  std::size_t pages = 0;
  for (std::size_t layer = 0; layer < cache.shape().layers; ++layer)
    for (std::size_t head = 0; head < cache.shape().kv_heads; ++head) pages += cache.head(layer, head).rows().pages();
  const std::size_t told = cache.report().held_bytes();
  EXPECT_GE(taken, told) << cache.length();
  EXPECT_LE(taken, told + 40 * pages + cache.shape().layers * 6 * 1024) << cache.length();
}

/// Local heads, and a layer with a window of the model's own.
template <class Compensation>
void flat_with_a_fixed_budget(Compensation compensation) {
  head_plan plan(model_shape{2, 4, 2, 8, 0}, head_role::local, sinks);
  plan.set_window(1, 200);
  std::vector<std::size_t> taken, told;
  taken.reserve(3), told.reserve(3);
  const std::size_t before = in_use();
  auto cache = rolling(plan, fixed_budget{256}, compensation);
  for (const std::size_t end : {length / 4, length / 2, length}) {
    decode(cache, end, [] {});
    taken.push_back(in_use() - before);
    told.push_back(cache.report().held_bytes());
    expect_told(cache, taken.back());
  }
  EXPECT_EQ(taken, std::vector<std::size_t>(3, taken[0]));
  EXPECT_EQ(told, std::vector<std::size_t>(3, told[0]));
}
TEST(long_run, memory_is_flat_with_a_fixed_budget) {
  flat_with_a_fixed_budget(mean_compensation{});
  flat_with_a_fixed_budget(moment_compensation{});
}

/// S + W + reserve rows of each local head, in pages that are at most two more; what folds in blocks keeps up to a
/// block less one row, and as much of the reserve.
template <class Compensation>
void within_the_papers_budget(Compensation compensation) {
  head_plan plan(model_shape{1, 3, 3, 8, 0}, head_role::local, sinks);
  plan.set({0, 1}, head_role::retrieval);
  const razor_budget budget{100, 5};
  const std::size_t before = in_use(), block = headwise::detail::fold_rows(compensation);
  auto cache = rolling(plan, budget, compensation);
  for (std::size_t end = length / 20; end <= length; end += length / 20) {
    decode(cache, end, [&] {
      const std::size_t n = cache.length(), window = budget({}, n);
      for (const std::size_t head : {0U, 2U}) {
        const auto& rows = cache.head(0, head).rows();
        const std::size_t most = std::min(n, sinks + window + block - 1);
        ASSERT_LE(rows.kept(), most);
        ASSERT_GE(rows.kept(), std::min(n, sinks + window));
        ASSERT_LE(rows.early() + rows.pages() * page_layout::rows,
                  sinks + window + 3 * (block - 1) + reserve + 2 * page_layout::rows);
      }
    });
    expect_told(cache, in_use() - before);
  }
}
TEST(long_run, local_heads_stay_within_the_papers_budget) {
  within_the_papers_budget(mean_compensation{});
  within_the_papers_budget(moment_compensation{});
}

}  // namespace
}  // namespace headwise::test
