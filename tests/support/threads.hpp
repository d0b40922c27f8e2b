// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
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

}  // namespace headwise::test
