// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "headwise/headwise.hpp"

// How the benchmarks compare: all contenders take turns in one process, round after round; a ratio is taken within a
// round, where the machine was in one mode, and the median over the rounds is what is printed.

namespace bench {

/// Seconds on the clock, or seconds that this thread has computed: then a neighbour that takes the core for a while
/// does not count, which is what one thread's work should be measured by on a machine that others use.
class stopwatch {
 public:
  explicit stopwatch(bool this_thread = false) : this_thread_(this_thread), start_(now()) {}
  double seconds() const { return now() - start_; }

 private:
  double now() const {
    timespec time{};
    clock_gettime(this_thread_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  bool this_thread_;
  double start_;
};

/// The compiler must believe that `value` is read and changed here.
template <class T>
inline void keep(T& value) {
  asm volatile("" : "+m"(value) : : "memory");
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double upper = *middle;
  return values.size() % 2 == 1 ? upper : (upper + *std::max_element(values.begin(), middle)) / 2.0;
}

/// Runs task(i) for i < threads, each on a thread of its own: the team that headwise::openmp uses.
template <class Task>
inline void on_threads(std::size_t threads, Task&& task) {
#if defined(_OPENMP)
  headwise::openmp{static_cast<int>(threads)}(threads, task);
#else
  headwise::serial{}(threads, task);
#endif
}

/// An executor whose number of threads is chosen at run time.
struct workers {
  std::size_t threads = 1;

  template <class Task>
  void operator()(std::size_t count, Task&& task) const {
#if defined(_OPENMP)
    if (threads > 1) return headwise::openmp{static_cast<int>(threads)}(count, task);
#endif
    headwise::serial{}(count, task);
  }
};
#if defined(_OPENMP)
constexpr std::size_t most_threads = 2;
#else
constexpr std::size_t most_threads = 1;
#endif

/// Several functions that take turns. Those of one thread are timed by what it computes.
class rounds {
 public:
  explicit rounds(std::size_t threads = 1) : one_thread_(threads == 1) {}

  /// step(i) is timed; i counts on over the rounds, so that step can cycle over layers. Each round makes `multiple`
  /// steps, or as many times that as fill `seconds`. Returns the contender's number.
  std::size_t add(std::function<void(std::size_t)> step, std::size_t multiple = 1, double seconds = 0.005) {
    contenders_.push_back({std::move(step), multiple, seconds, 0, 0, {}});
    return contenders_.size() - 1;
  }
  /// Calls probe() once in each round, and keeps what it returns apart.
  void add_probe(std::function<void()> probe) { probes_.push_back(std::move(probe)); }

  void run_one() {
    for (const auto& probe : probes_) probe();
    for (std::size_t i = 0; i < contenders_.size(); ++i) {
      contender& now = contenders_[(i + count_) % contenders_.size()];  // no one always runs behind the same other
      if (now.steps == 0) {                                             // how many steps fill the time?
        const double once = time(now, now.multiple) / static_cast<double>(now.multiple);
        if (once * static_cast<double>(now.multiple) > slow) {  // nothing to fill, and warm by now
          now.steps = now.multiple;
          now.seconds.push_back(once);
          continue;
        }
        const double cycles = now.least_seconds / (once * static_cast<double>(now.multiple));
        now.steps = now.multiple * static_cast<std::size_t>((std::min)((std::max)(1.0, cycles), 1e6));
      }
      now.seconds.push_back(time(now, now.steps) / static_cast<double>(now.steps));
    }
    ++count_;
  }

  /// Seconds per step: of each round, and their median.
  const std::vector<double>& seconds(std::size_t i) const { return contenders_[i].seconds; }
  double median_seconds(std::size_t i) const { return median(seconds(i)); }
  /// The median of time(a) / time(b) of a round.
  double ratio(std::size_t a, std::size_t b) const {
    return median_of(a, [&](std::size_t r) { return seconds(b)[r]; });
  }
  /// The median of time(a) / unit(round).
  template <class Unit>
  double median_of(std::size_t a, Unit&& unit) const {
    std::vector<double> ratios;
    for (std::size_t r = 0; r < seconds(a).size(); ++r) ratios.push_back(seconds(a)[r] / unit(r));
    return median(std::move(ratios));
  }

 private:
  static constexpr double slow = 0.25;  // seconds

  struct contender {
    std::function<void(std::size_t)> step;
    std::size_t multiple;
    double least_seconds;
    std::size_t steps;
    std::size_t next;
    std::vector<double> seconds;
  };
  double time(contender& now, std::size_t steps) const {
    const stopwatch time(one_thread_);
    for (std::size_t i = 0; i < steps; ++i) now.step(now.next++);
    return time.seconds();
  }

  bool one_thread_;
  std::vector<contender> contenders_;
  std::vector<std::function<void()>> probes_;
  std::size_t count_ = 0;
};

}  // namespace bench
