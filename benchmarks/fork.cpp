// SPDX-License-Identifier: MIT
// What do a fork and the first token behind it cost? 32 layers of 8 KV heads, f16, one thread. Head size 16: the rows
// of 131,072 tokens take 2 GiB; page tables, counts and the number of pages are those of any head size.
//   fork/<kind>/<tokens>   full: every head keeps all rows; compressed: 15 % do, the others sinks and a fifth
// Counters: medians over the rounds
//   fork_us      a copy, and letting it go
//   first_us     the first append to all layers of a fresh copy
//   second_us    the next, which finds pages of its own
//   MiB          of rows, which both share; copied_KiB: rows that the first append copied; deep: time of a copy of all
//   rows
//                over fork_us + first_us
#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory_resource>
#include <string>
#include <vector>

#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr geometry of{16, 4, 8};
constexpr std::size_t layers = 32;

template <class Cache>
double append_seconds(Cache& cache, const row_source& source) {
  const stopwatch time(true);
  for (std::size_t layer = 0; layer < layers; ++layer) source.append(cache, layer, 1);
  return time.seconds();
}

/// Bytes of rows that lie in another page than those of the original.
template <class Cache>
std::size_t copied_bytes(const Cache& cache, const Cache& copy) {
  std::size_t bytes = 0;
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (std::size_t kv_head = 0; kv_head < of.kv_heads; ++kv_head) {
      const auto& there = cache.head(layer, kv_head);
      const auto& here = copy.head(layer, kv_head);
      const headwise::run newest = there.run_at(there.runs() - 1);
      for (std::size_t i = here.runs(); i-- > 0;) {
        const headwise::run part = here.run_at(i);
        if (part.position > newest.position) continue;
        if (part.keys != newest.keys) bytes += newest.rows * (here.rows().key_bytes() + here.rows().value_bytes());
        break;
      }
    }
  return bytes;
}

void fork(benchmark::State& state, const headwise::head_plan& plan, std::size_t tokens, int count) {
  const row_source source(of);
  const auto cache = filled_cache<headwise::float16>(plan, {}, tokens, source);
  std::pmr::synchronized_pool_resource elsewhere;
  std::vector<double> fork_seconds, first_seconds, second_seconds, deep_seconds;
  double copied = 0.0;
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) {
      {
        const stopwatch time(true);
        auto copy = cache;
        benchmark::DoNotOptimize(&copy);
        fork_seconds.push_back(time.seconds());
        first_seconds.push_back(append_seconds(copy, source));
        copied = static_cast<double>(copied_bytes(cache, copy));
        second_seconds.push_back(append_seconds(copy, source));
      }
      const stopwatch time(true);
      const auto deep = bench_cache<headwise::float16>(cache, &elsewhere);
      deep_seconds.push_back(time.seconds());
    }
    state.SetIterationTime(median(fork_seconds));
  }
  state.counters["fork_us"] = median(fork_seconds) * 1e6;
  state.counters["first_us"] = median(first_seconds) * 1e6;
  state.counters["second_us"] = median(second_seconds) * 1e6;
  state.counters["deep"] = median(deep_seconds) / (median(fork_seconds) + median(first_seconds));
  state.counters["MiB"] = static_cast<double>(cache.report().row_bytes) / static_cast<double>(mebibyte);
  state.counters["copied_KiB"] = copied / 1024.0;
}

void register_all(const options& chosen) {
  const headwise::head_plan full(of.shape(layers), headwise::head_role::retrieval);
  const headwise::head_plan compressed = retrieval_15_percent(of.shape(layers));
  for (const std::size_t tokens : {std::size_t{8192}, std::size_t{131072}}) {
    if (!chosen.everything && tokens != 131072) continue;
    add("fork/full/" + std::to_string(tokens),
        [=](benchmark::State& state) { fork(state, full, tokens - 32, chosen.rounds); });
    add("fork/compressed/" + std::to_string(tokens),
        [=](benchmark::State& state) { fork(state, compressed, tokens - 32, chosen.rounds); });
  }
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
