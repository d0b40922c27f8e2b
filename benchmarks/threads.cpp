// SPDX-License-Identifier: MIT
// What does a second thread bring, where memory is not the limit? One layer whose rows stay in the caches, 8 KV heads
// of size 128 with 8 query heads each, f16.
//   threads/decode/<tokens>    a query over that many rows
//   threads/prefill/<queries>  that many queries over their own rows
//   threads/hand_over          two tasks that do nothing, by headwise::thread_pool; openmp: OpenMP's time over it
// Counters, medians over the rounds: speedup: one thread's time over two threads'; balance: the busier thread's time
// inside tasks over the mean of both, of a call; tasks: of a call; equal: 1 if both gave the same bits.
// How fast threads wake is the environment's choice: OMP_WAIT_POLICY.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr geometry of{128, 8, 8};
constexpr std::size_t threads = 2;

/// Two threads, and how long each was inside tasks.
struct watched_workers {
  std::array<double, 2 * 64>* busy;  // a cache line apart
  std::size_t* tasks;

  template <class Task>
  void operator()(std::size_t count, Task&& task) const {
    *tasks = count;
    workers{threads}(count, [&](std::size_t i) {
      const stopwatch time;
      task(i);
#if defined(_OPENMP)
      const auto mine = static_cast<std::size_t>(omp_get_thread_num());
#else
      const std::size_t mine = 0;
#endif
      (*busy)[mine * 64] += time.seconds();
    });
  }
};

void attention(benchmark::State& state, std::size_t rows, std::size_t queries, int count) {
  const row_source source(of);
  const auto cache = full_cache<headwise::float16>(of, 1, rows, source);
  const std::vector<float> q = random_floats(queries * of.query_heads() * of.dim, 9);
  attend_steps<bench_cache<headwise::float16>> one(cache, of, q, queries, 1);
  attend_steps<bench_cache<headwise::float16>> two(cache, of, q, queries, threads);
  rounds turns(threads);
  const std::size_t single = turns.add([&](std::size_t i) { one.step(i); });
  const std::size_t both = turns.add([&](std::size_t i) { two.step(i); });

  std::vector<double> balance;
  std::vector<float> out(q.size());
  headwise::attend_schedule schedule;
  std::size_t tasks = 0;
  turns.add_probe([&] {
    for (int i = 0; i < 5; ++i) {
      std::array<double, 2 * 64> busy{};
      headwise::attend(cache, 0, headwise::packed_rows(q.data(), queries, of.query_heads(), of.dim),
                       headwise::packed_output(out.data(), queries, of.query_heads(), of.dim), schedule,
                       watched_workers{&busy, &tasks});
      balance.push_back(2.0 * (std::max)(busy[0], busy[64]) / (busy[0] + busy[64]));
    }
  });
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) turns.run_one();
    state.SetIterationTime(turns.median_seconds(both));
  }
  state.counters["speedup"] = turns.ratio(single, both);
  state.counters["balance"] = median(balance);
  state.counters["tasks"] = static_cast<double>(tasks);
  state.counters["equal"] = std::memcmp(one.out(), two.out(), q.size() * sizeof(float)) == 0 ? 1.0 : 0.0;
}

void hand_over(benchmark::State& state, int count) {
  rounds turns(threads);
  const headwise::thread_pool pool(threads);
  const std::size_t own = turns.add([&](std::size_t) { pool(threads, [](std::size_t i) { keep(i); }); });
  const std::size_t empty = turns.add([](std::size_t) { workers{threads}(threads, [](std::size_t i) { keep(i); }); });
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) turns.run_one();
    state.SetIterationTime(turns.median_seconds(own));
  }
  state.counters["openmp"] = turns.ratio(empty, own);
}

void register_all(const options& chosen) {
  if (most_threads < threads) return;
  const int rounds = chosen.rounds;
  for (const std::size_t tokens : {std::size_t{256}, std::size_t{512}, std::size_t{2048}, std::size_t{8192}})
    if (chosen.everything || tokens == 512 || tokens == 2048)
      add("threads/decode/" + std::to_string(tokens),
          [=](benchmark::State& state) { attention(state, tokens, 1, rounds); });
  for (const std::size_t queries : {std::size_t{64}, std::size_t{256}, std::size_t{1024}})
    if (chosen.everything || queries == 256)
      add("threads/prefill/" + std::to_string(queries),
          [=](benchmark::State& state) { attention(state, queries, queries, rounds); });
  add("threads/hand_over", [=](benchmark::State& state) { hand_over(state, rounds); });
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
