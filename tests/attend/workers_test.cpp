// SPDX-License-Identifier: MIT
// The same bits with any number of workers that take tasks in any order.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <numeric>
#include <thread>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/core/executor.hpp"
#include "headwise/core/thread_pool.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/kernel_case.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::attend_schedule;
using headwise::model_shape;
using headwise::test::sizes;

struct shuffled_threads {
  std::size_t threads;
  std::uint32_t seed;

  template <class Task>
  void operator()(std::size_t tasks, Task&& task) const {
    std::vector<std::size_t> order(tasks);
    std::iota(order.begin(), order.end(), std::size_t{0});
    headwise::test::random_numbers(seed).shuffle(order);
    headwise::test::threads{threads}(tasks, [&](std::size_t i) { task(order[i]); });
  }
};

/// Last task first, on one thread or several.
struct reversed_threads {
  std::size_t threads;

  template <class Task>
  void operator()(std::size_t tasks, Task&& task) const {
    headwise::test::threads{threads}(tasks, [&](std::size_t i) { task(tasks - 1 - i); });
  }
};

/// Some tasks begin late, so that others overtake them.
struct delayed_threads {
  std::size_t threads;

  template <class Task>
  void operator()(std::size_t tasks, Task&& task) const {
    headwise::test::threads{threads}(tasks, [&](std::size_t i) {
      if (i % 5 < 2) std::this_thread::sleep_for(std::chrono::microseconds(i % 7 * 200));
      task(i);
    });
  }
};

/// Local heads with a summary and retrieval heads in one layer.
auto make_cache(const model_shape& shape, std::size_t window) {
  headwise::head_plan plan(shape);
  for (std::size_t head = 0; head < shape.kv_heads; head += 2) plan.set({0, head}, headwise::head_role::retrieval);
  return headwise::make_cache<headwise::float16>(plan, headwise::fixed_budget{window}, headwise::moment_compensation{});
}

struct workers_case {
  const char* name;
  model_shape shape;
  std::size_t length, queries, window, least_tasks;
  bool compressed;
};
const workers_case workers_cases[] = {
    {"decode", {1, 104, 52, 64, 0}, 1100, 1, 500, 64, true},
    {"chunk", {1, 48, 3, 8, 0}, 288, 264, 50, 64, false},
    {"chunk behind folded rows", {1, 32, 8, 16, 0}, 500, 270, 200, 64, true},
};

class attend_workers : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(attend_workers);

TEST_P(attend_workers, any_number_of_them_in_any_order_gives_the_same_bits) {
  for (const workers_case& c : workers_cases) {
    SCOPED_TRACE(c.name);
    const headwise::test::tokens rows = headwise::test::random_tokens(c.shape, c.length, 3);
    auto cache = make_cache(c.shape, c.window);
    const std::size_t prompt = c.compressed ? c.length - c.queries : c.length;
    headwise::test::append(cache, rows, 0, prompt);
    if (c.compressed) {
      cache.compress();
      headwise::test::append(cache, rows, prompt, c.queries);
    }
    const headwise::token_view q = rows.queries(c.length - c.queries, c.queries);
    attend_schedule schedule;
    std::vector<float> expected(c.queries * c.shape.query_heads * c.shape.value_size());
    const auto into = [&](std::vector<float>& out) {
      return headwise::packed_output(out.data(), c.queries, c.shape.query_heads, c.shape.value_size());
    };
    headwise::attend(cache, 0, q, into(expected), schedule);
    EXPECT_GE(schedule.tasks(), c.least_tasks);

    const auto expect_same = [&](const auto& executor, std::size_t workers) {
      std::vector<float> out(expected.size(), 1e30F);
      headwise::attend(cache, 0, q, into(out), schedule, executor);
      EXPECT_TRUE(out == expected) << workers << " workers";
    };
    for (const std::size_t workers : sizes{1, 2, 3, 5, 7, 16, 61})
      expect_same(shuffled_threads{workers, static_cast<std::uint32_t>(workers)}, workers);
    expect_same(headwise::test::threads{3}, 3);  // longest first, as the schedule has them
    for (const std::size_t workers : sizes{1, 16}) expect_same(reversed_threads{workers}, workers);
    for (const std::size_t workers : sizes{3, 12}) {
      expect_same(delayed_threads{workers}, workers);
      const headwise::thread_pool pool(workers);
      for (int i = 0; i < 2; ++i) expect_same(pool, workers);
    }
    for (const std::size_t workers : sizes{2, 9}) {  // SPMD: each takes what is left, no executor
      std::vector<float> out(expected.size(), 1e30F);
      schedule.prepare(cache, 0, q, into(out));
      headwise::test::threads{workers}(workers, [&](std::size_t ith) { schedule.run(ith, workers); });
      EXPECT_TRUE(out == expected) << workers << " workers on their own";
    }
#if defined(_OPENMP)
    for (const int workers : {1, 2, 5}) expect_same(headwise::openmp{workers}, static_cast<std::size_t>(workers));
#endif
  }
}

/// Worker `ith` of `nth` takes every nth task; no barrier, no executor.
TEST(worker, may_take_a_fixed_share_of_the_tasks) {
  const model_shape shape{1, 6, 3, 32, 0};
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, 300, 4);
  auto cache = make_cache(shape, 64);
  headwise::test::append(cache, rows, 0, 300);
  const headwise::token_view q = rows.queries(200, 100);
  const std::vector<float> expected = headwise::test::attended(cache, 0, q);
  std::vector<float> out(expected.size());
  attend_schedule schedule;
  schedule.prepare(cache, 0, q, headwise::packed_output(out.data(), 100, 6, 32));
  for (std::size_t ith = 0; ith < 3; ++ith)
    for (std::size_t i = ith; i < schedule.tasks(); i += 3) schedule.run(i);
  EXPECT_EQ(out, expected);
}

/// SPMD with more threads than tasks: those that come too late have nothing to do, and may come again.
TEST(worker, that_finds_no_task_returns) {
  const model_shape shape{1, 2, 1, 16, 0};
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, 50, 6);
  auto cache = make_cache(shape, 64);
  headwise::test::append(cache, rows, 0, 50);
  const std::vector<float> expected = headwise::test::attended(cache, 0, rows.queries(49, 1));
  attend_schedule schedule;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<float> out(expected.size(), 1e30F);
    schedule.prepare(cache, 0, rows.queries(49, 1), headwise::packed_output(out.data(), 1, 2, 16));
    ASSERT_EQ(schedule.tasks(), 1U);
    std::vector<std::thread> threads;
    for (std::size_t ith = 0; ith < 9; ++ith)
      threads.emplace_back([&schedule, ith] {
        schedule.run(ith, 9);
        schedule.run(ith, 9);
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(out, expected);
  }
}

TEST(worker, two_schedules_may_read_one_cache_at_once) {
  const model_shape shape{1, 4, 2, 32, 0};
  const headwise::test::tokens rows = headwise::test::random_tokens(shape, 300, 5);
  auto cache = make_cache(shape, 64);
  headwise::test::append(cache, rows, 0, 300);
  cache.compress();
  const std::vector<float> expected = headwise::test::attended(cache, 0, rows.queries(299, 1));
  std::vector<std::vector<float>> found(8);
  headwise::test::threads{4}(
      found.size(), [&](std::size_t i) { found[i] = headwise::test::attended(cache, 0, rows.queries(299, 1)); });
  for (const auto& out : found) EXPECT_EQ(out, expected);
}

}  // namespace
