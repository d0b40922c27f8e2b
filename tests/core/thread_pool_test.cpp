// SPDX-License-Identifier: MIT
#include "headwise/core/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#endif

namespace {

using headwise::thread_pool;

static_assert(!std::is_copy_constructible_v<thread_pool> && !std::is_copy_assignable_v<thread_pool>);

/// How often each task ran.
class marks {
 public:
  explicit marks(std::size_t tasks) : counts_(tasks) {}
  void operator()(std::size_t i) noexcept { counts_[i].fetch_add(1, std::memory_order_relaxed); }
  void expect_each(int times) const {
    for (std::size_t i = 0; i < counts_.size(); ++i) ASSERT_EQ(counts_[i].load(), times) << i;
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

TEST(thread_pool, runs_each_task_once_whatever_the_number_of_threads) {
  for (const std::size_t threads : {1U, 2U, 3U, 8U, 33U}) {
    const thread_pool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t tasks : {0U, 1U, 2U, 3U, 7U, 64U, 1000U}) {
      marks seen(tasks);
      for (int repeat = 0; repeat < 20; ++repeat) pool(tasks, seen);
      seen.expect_each(20);
    }
  }
  EXPECT_GE(thread_pool().threads(), 1U);
}

/// What the tasks wrote is there when the call returns, and what the caller writes then is not seen by an older call.
TEST(thread_pool, a_call_returns_when_all_its_tasks_have) {
  const thread_pool pool(4);
  std::vector<std::size_t> plain(17);
  for (std::size_t repeat = 1; repeat <= 3000; ++repeat) {
    const std::size_t tasks = repeat % plain.size();
    pool(tasks, [&](std::size_t i) { plain[i] += i; });
    for (std::size_t i = 0; i < tasks; ++i) {
      ASSERT_EQ(plain[i], i);
      plain[i] = 0;
    }
  }
}

TEST(thread_pool, workers_that_sleep_are_woken) {
  const thread_pool pool(3, std::chrono::microseconds(0));
  for (int repeat = 0; repeat < 200; ++repeat) {
    marks seen(5);
    pool(5, seen);
    seen.expect_each(1);
    if (repeat % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Two tasks that wait for each other end only if a second thread takes one.
TEST(thread_pool, tasks_run_at_the_same_time) {
  const thread_pool pool(2);
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<int> here{0};
    pool(2, [&](std::size_t) {
      ++here;
      while (here.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(here.load(), 2);
    if (repeat % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than a worker watches
  }
}

TEST(thread_pool, calls_from_several_threads_come_one_after_another) {
  const thread_pool pool(3);
  std::atomic<int> inside{0};
  std::atomic<bool> mixed{false};
  const auto call = [&](int mine) {
    for (int repeat = 0; repeat < 300; ++repeat) {
      std::atomic<int> done{0};
      pool(9, [&](std::size_t) {
        int nobody = 0;
        if (!inside.compare_exchange_strong(nobody, mine) && nobody != mine) mixed = true;
        if (done.fetch_add(1) == 8) inside = 0;
      });
      if (done.load() != 9) mixed = true;
    }
  };
  std::vector<std::thread> callers;
  for (int i = 1; i <= 4; ++i) callers.emplace_back(call, i);
  for (std::thread& caller : callers) caller.join();
  EXPECT_FALSE(mixed.load());
}

TEST(thread_pool, a_call_from_within_a_task_runs_in_order_on_the_same_thread) {
  const thread_pool pool(4);
  std::atomic<int> tasks{0};
  std::atomic<bool> elsewhere{false};
  for (int repeat = 0; repeat < 50; ++repeat)
    pool(8, [&](std::size_t) {
      const std::thread::id self = std::this_thread::get_id();
      std::size_t next = 0;
      pool(5, [&](std::size_t i) {
        if (std::this_thread::get_id() != self || i != next++) elsewhere = true;
        pool(2, [&](std::size_t) { ++tasks; });
      });
    });
  EXPECT_EQ(tasks.load(), 50 * 8 * 5 * 2);
  EXPECT_FALSE(elsewhere.load());

  const thread_pool other(2);  // another pool is not busy
  std::atomic<int> there{0};
  pool(6, [&](std::size_t) { other(10, [&](std::size_t) { ++there; }); });
  EXPECT_EQ(there.load(), 60);
}

TEST(thread_pool, takes_any_callable) {
  const thread_pool pool(2);
  static std::atomic<int> calls;
  calls = 0;
  struct counter {
    void operator()(std::size_t) { ++calls; }
    void operator()(std::size_t) const { ++calls; }
  };
  counter changes;
  const counter constant{};
  pool(3, changes);
  pool(3, constant);
  pool(3, counter{});
  void (*function)(std::size_t) = [](std::size_t) { ++calls; };
  pool(3, function);
  pool(3, *function);
  EXPECT_EQ(calls.load(), 15);
}

TEST(thread_pool, ends_in_any_state) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    const thread_pool pool(1 + static_cast<std::size_t>(repeat) % 5, std::chrono::microseconds(repeat % 3 * 30));
    if (repeat % 2 == 0) continue;  // never called
    marks seen(4);
    pool(4, seen);
    seen.expect_each(1);
    if (repeat % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

TEST(thread_pool, uses_no_time_while_idle) {
  const thread_pool pool(8);
  marks seen(64);
  pool(64, seen);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();  // of all threads of this program
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.02);
}

#if defined(__linux__)
TEST(thread_pool, its_workers_have_names) {
  const thread_pool pool(2);
  std::string name;
  std::atomic<int> here{0};
  const std::thread::id self = std::this_thread::get_id();
  pool(2, [&](std::size_t) {
    ++here;
    while (here.load() < 2) std::this_thread::yield();
    if (std::this_thread::get_id() == self) return;
    char text[16] = {};
    pthread_getname_np(pthread_self(), text, sizeof text);
    name = text;
  });
  EXPECT_EQ(name, "headwise-1");
}
#endif

}  // namespace
