// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>

#include <cstdio>
#endif

namespace headwise {

/// An executor for those who bring no threads of their own (the contract is in core/executor.hpp):
///   headwise::thread_pool pool(4);
///   headwise::attend(cache, layer, q, out, schedule, pool);
/// The caller and threads() - 1 workers take tasks one by one. Between calls a worker watches for the next one for a
/// short while, which makes the hand-over fast from layer to layer, and then sleeps: an idle pool uses no CPU.
/// Calls from several threads come one after another. A call from within a task runs its tasks alone, in order, since
/// the pool is busy with the call that it belongs to.
class thread_pool {
 public:
  /// `threads`, the caller included; 0: as many as the machine has. `watch`: how long a worker spins before it sleeps.
  /// Throws std::system_error where the system starts no more threads; those it has started have then ended.
  explicit thread_pool(std::size_t threads = 0, std::chrono::microseconds watch = std::chrono::microseconds(50))
      : crew_(std::make_unique<crew>(watch)) {
    if (threads == 0) threads = (std::max)(1U, std::thread::hardware_concurrency());
    crew_->start(threads - 1);
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  /// Waits for the workers to end; no call may be running.
  ~thread_pool() = default;

  /// The caller of a call included.
  std::size_t threads() const noexcept { return crew_->workers.size() + 1; }

  template <class Task>
  void operator()(std::size_t count, Task&& task) const {
    const auto one = [&](std::size_t i) noexcept { task(i); };
    if (count <= 1 || crew_->workers.empty() || crew_->within_a_task()) {
      for (std::size_t i = 0; i < count; ++i) one(i);
    } else {  // a pointer to what is to be called, and a function that knows its type: nothing is allocated
      using callable = decltype(one);
      crew_->run(
          count, [](const void* of, std::size_t i) noexcept { (*static_cast<callable*>(of))(i); }, &one);
    }
  }

 private:
  using function = void (*)(const void* task, std::size_t i) noexcept;

  struct crew {
    static constexpr std::uint32_t shut = std::uint32_t{1} << 31;

    explicit crew(std::chrono::microseconds how_long) noexcept : watch(how_long) {}
    crew(const crew&) = delete;
    crew& operator=(const crew&) = delete;
    ~crew() {
      stopping.store(true);
      announce((std::numeric_limits<std::size_t>::max)());
      for (std::thread& worker : workers) worker.join();
    }

    void start(std::size_t how_many) {
      workers.reserve(how_many);
      for (std::size_t i = 0; i < how_many; ++i) workers.emplace_back([this, i] { work(i + 1); });
    }

    bool within_a_task() const noexcept {
      const std::thread::id self = std::this_thread::get_id();
      if (caller.load(std::memory_order_relaxed) == self) return true;
      return std::any_of(workers.begin(), workers.end(), [&](const std::thread& w) { return w.get_id() == self; });
    }

    void run(std::size_t tasks, function call, const void* task_object) noexcept {
      const std::lock_guard<std::mutex> one_at_a_time(calls);
      caller.store(std::this_thread::get_id(), std::memory_order_relaxed);
      function_of_tasks = call;
      task = task_object;
      count = tasks;
      next.store(0, std::memory_order_relaxed);
      gate.fetch_and(~shut, std::memory_order_acq_rel);  // open: who passes it sees what is above
      announce(tasks - 1);
      take_tasks();
      // Shut for those who come late; those inside have a task each, and are waited for.
      if (gate.fetch_or(shut, std::memory_order_acq_rel) != 0)
        for (std::size_t i = 0; gate.load(std::memory_order_acquire) != shut; ++i) pause_or_yield(i);
      caller.store(std::thread::id(), std::memory_order_relaxed);
    }

    void take_tasks() noexcept {
      const function call = function_of_tasks;
      const void* const of = task;
      const std::size_t tasks = count;
      for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks;
           i = next.fetch_add(1, std::memory_order_relaxed))
        call(of, i);
    }

    /// A new round: wakes as many sleepers as can be of use. Who goes to sleep counts itself in before it looks at the
    /// round a last time, and here the round changes before sleepers are counted: so nobody sleeps through it.
    void announce(std::size_t useful) noexcept {
      round.fetch_add(1, std::memory_order_seq_cst);
      const std::size_t asleep = sleepers.load(std::memory_order_seq_cst);
      if (asleep == 0) return;
      { const std::lock_guard<std::mutex> lock(sleep); }  // whoever was about to sleep now does
      if (useful >= asleep) {
        awake.notify_all();
      } else {
        for (std::size_t i = 0; i < useful; ++i) awake.notify_one();
      }
    }

    void work(std::size_t number) noexcept {
      name_thread(number);
      std::uint64_t seen = 0;
      for (;;) {
        seen = next_round(seen);
        if (stopping.load()) return;
        if ((gate.fetch_add(1, std::memory_order_acq_rel) & shut) == 0) take_tasks();
        gate.fetch_sub(1, std::memory_order_acq_rel);
      }
    }

    /// Spins, then sleeps, until the round is another than the one seen last.
    std::uint64_t next_round(std::uint64_t seen) noexcept {
      const auto end = std::chrono::steady_clock::now() + watch;
      for (std::size_t i = 0; i % 64 != 63 || std::chrono::steady_clock::now() < end; ++i) {
        const std::uint64_t now = round.load(std::memory_order_acquire);
        if (now != seen) return now;
        pause();
      }
      std::unique_lock<std::mutex> lock(sleep);
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      awake.wait(lock, [&] { return round.load(std::memory_order_seq_cst) != seen; });
      sleepers.fetch_sub(1, std::memory_order_relaxed);
      return round.load(std::memory_order_acquire);
    }

    static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
    /// For the last tasks: short as a rule, but a machine with fewer cores than threads must let them run.
    static void pause_or_yield(std::size_t i) noexcept {
      if (i < 1000)
        pause();
      else
        std::this_thread::yield();
    }
    static void name_thread(std::size_t number) noexcept {
#if defined(__linux__) || defined(__APPLE__)
      char name[16];
      std::snprintf(name, sizeof name, "headwise-%u", static_cast<unsigned>(number % 100000));
#if defined(__linux__)
      pthread_setname_np(pthread_self(), name);
#else
      pthread_setname_np(name);
#endif
#else
      static_cast<void>(number);
#endif
    }

    // The call at hand. Written while the gate is shut and nobody is inside.
    std::mutex calls;
    std::atomic<std::thread::id> caller{};
    function function_of_tasks = nullptr;
    const void* task = nullptr;
    std::size_t count = 0;

    // On cache lines of their own: every thread claims tasks from one, and watches the other.
    alignas(64) std::atomic<std::size_t> next{0};
    alignas(64) std::atomic<std::uint32_t> gate{shut};  // workers inside, and whether more may come in
    alignas(64) std::atomic<std::uint64_t> round{0};
    std::atomic<bool> stopping{false};

    alignas(64) std::mutex sleep;
    std::condition_variable awake;
    std::atomic<std::size_t> sleepers{0};

    std::chrono::microseconds watch;
    std::vector<std::thread> workers;
  };

  std::unique_ptr<crew> crew_;  // where the workers find it; a call changes it, the pool itself stays as it is
};

}  // namespace headwise
