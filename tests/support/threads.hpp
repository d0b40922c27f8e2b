// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace headwise::test {

/// An executor with as many threads as the test wants, whatever the machine has.
struct threads {
  std::size_t count = 2;

  template <class Task>
  void operator()(std::size_t tasks, Task&& task) const {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < tasks; i = next++) task(i);
    };
    std::vector<std::thread> workers;
    for (std::size_t i = 1; i < count; ++i) workers.emplace_back(work);
    work();
    for (std::thread& worker : workers) worker.join();
  }
};

/// Waits for the other threads, again and again: std::barrier is C++20.
class barrier {
 public:
  explicit barrier(std::size_t threads) : threads_(threads) {}

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::size_t round = round_;
    if (++here_ == threads_) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::size_t threads_, here_ = 0, round_ = 0;
};

/// Runs task(i) for every i < count, each in a thread of its own.
template <class Task>
void at_once(std::size_t count, Task&& task) {
  barrier start(count);
  threads{count}(count, [&](std::size_t i) {
    start.wait();
    task(i);
  });
}

}  // namespace headwise::test
