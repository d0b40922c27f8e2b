// SPDX-License-Identifier: MIT
// How fast do rows fold? 8 KV heads of size 128, f16 rows, one layer, one thread.
//   fold/prompt/<compensation>    compress() after 8192 tokens, a window of 1024
//   fold/rolling/<compensation>   a token at a time into a window that is full
// Counters; medians over the rounds:
//   Mrows/s  rows of a head folded (and released) per second; for rolling the append is counted too
//   read     prompt: their bytes per second over the read limit of the round
//   drop     time over that of dropping the same rows (no_compensation) in the same round
//   grow     rolling: time over that of an append from which no row leaves
#include <benchmark/benchmark.h>

#include <cstddef>
#include <string>
#include <vector>

#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "roofline.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr geometry of{128, 4, 8};
constexpr std::size_t prompt = 8192;
constexpr std::size_t window = 1024;

template <class Compensation>
using cache_of = headwise::kv_cache<headwise::float16, headwise::razor_budget, Compensation>;

template <class Compensation>
cache_of<Compensation> prefilled(const row_source& source, std::size_t layers, headwise::head_role role) {
  cache_of<Compensation> cache(headwise::head_plan(of.shape(layers), role), fixed_window(window));
  for (std::size_t layer = 0; layer < layers; ++layer) source.append(cache, layer, prompt);
  return cache;
}

template <class Compensation>
double compress_seconds(const cache_of<Compensation>& full) {
  auto cache = full;
  const stopwatch time(true);
  cache.compress();
  return time.seconds();
}

template <class Compensation>
void fold_prompt(benchmark::State& state, int count) {
  const row_source source(of);
  const auto cache = prefilled<Compensation>(source, 1, headwise::head_role::local);
  const auto dropping = prefilled<headwise::no_compensation>(source, 1, headwise::head_role::local);
  roofline_probe probe;
  auto compressed = cache;
  compressed.compress();
  const auto report = compressed.report();
  const auto left = static_cast<double>(report.folded + report.dropped);
  const double bytes = left * static_cast<double>(2 * headwise::float16::bytes(of.dim));
  std::vector<double> seconds, share, ratio;
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) {
      const roofline limits = probe.measure();
      seconds.push_back(compress_seconds(cache));
      share.push_back(bytes / seconds.back() / limits.read);
      ratio.push_back(seconds.back() / compress_seconds(dropping));
    }
    state.SetIterationTime(median(seconds));
  }
  state.counters["Mrows/s"] = left / median(seconds) / 1e6;
  state.counters["read"] = median(share);
  state.counters["drop"] = median(ratio);
}

template <class Compensation>
void fold_rolling(benchmark::State& state, int count) {
  constexpr std::size_t layers = 4;
  const row_source source(of);
  auto rolling = prefilled<Compensation>(source, layers, headwise::head_role::local);
  auto dropping = prefilled<headwise::no_compensation>(source, layers, headwise::head_role::local);
  auto growing = prefilled<headwise::no_compensation>(source, layers, headwise::head_role::retrieval);
  rolling.compress(), dropping.compress();
  rounds turns;
  const auto add_cache = [&](auto& cache) {
    return turns.add([&](std::size_t i) { source.append(cache, i % layers, 1); }, 64 * layers);
  };
  const std::size_t folding = add_cache(rolling);
  const std::size_t without = add_cache(dropping);
  const std::size_t plain = add_cache(growing);
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) turns.run_one();
    state.SetIterationTime(turns.median_seconds(folding));
  }
  state.counters["Mrows/s"] = static_cast<double>(of.kv_heads) / turns.median_seconds(folding) / 1e6;
  state.counters["drop"] = turns.ratio(folding, without);
  state.counters["grow"] = turns.ratio(folding, plain);
}

template <class Compensation>
void add_compensation(const options& chosen, const std::string& name) {
  add("fold/prompt/" + name, [=](benchmark::State& state) { fold_prompt<Compensation>(state, chosen.rounds); });
  add("fold/rolling/" + name, [=](benchmark::State& state) { fold_rolling<Compensation>(state, chosen.rounds); });
}

void register_all(const options& chosen) {
  add_compensation<headwise::no_compensation>(chosen, "none");
  add_compensation<headwise::mean_compensation>(chosen, "mean");
  add_compensation<headwise::moment_compensation>(chosen, "moment");
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
