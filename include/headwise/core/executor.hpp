// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace headwise {

// An executor runs a number of independent tasks and returns when all are done. Any callable will do.
//   | Expression            | Returns | Meaning                                                  | May throw |
//   | executor(count, task) | ignored | calls task(i) once for every i < count, in any order, on | no        |
//   |                       |         | any thread; all have returned when it returns            |           |
// task(i) never throws. The library's results do not depend on the order or on the number of threads, bit for bit.
// Ours: serial and openmp (below), thread_pool (core/thread_pool.hpp).

/// The do-nothing member of the family: one thread, in order.
struct serial {
  template <class Task>
  void operator()(std::size_t count, Task&& task) const {
    for (std::size_t i = 0; i < count; ++i) task(i);
  }
};

#if defined(_OPENMP)
/// OpenMP's team of the calling thread. An engine that uses OpenMP itself (llama.cpp's default build does) shares the
/// same team, so there is one pool of threads and not two. How waiting threads behave is the environment's choice
/// (OMP_WAIT_POLICY): spinning is fastest on a quiet machine and disastrous on a busy one.
struct openmp {
  int threads = omp_get_max_threads();

  template <class Task>
  void operator()(std::size_t count, Task&& task) const {
    const long long tasks = static_cast<long long>(count);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (tasks > 1)
    for (long long i = 0; i < tasks; ++i) task(static_cast<std::size_t>(i));
  }
};
#endif

}  // namespace headwise
