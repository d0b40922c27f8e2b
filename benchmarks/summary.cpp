// SPDX-License-Identifier: MIT
// What does the answer of the summaries cost, beside the attention to kept rows? A decode step of one layer at 16384
// tokens: 8 KV heads of size 128, 4 query heads each, f16 rows, one thread; layers that no cache holds.
//   summary/<compensation>   evaluates the summary of every head for each of its queries, all heads local
// Counters, medians of the rounds: full: time over that of attention to all 16384 rows; compressed: over that of a step
//   with 15 % retrieval heads and a window of 4000 (its own summaries included); KiB: of the summaries of a layer.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <string>
#include <vector>

#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr geometry of{128, 4, 8};
constexpr std::size_t tokens = 16384;

template <class Compensation>
void summary(benchmark::State& state, int count) {
  constexpr std::size_t layers = 64;  // 32 MiB of moments: no second level cache holds them
  const row_source source(of);
  const std::vector<float> q = random_floats(of.query_heads() * of.dim, 9);
  headwise::kv_cache<headwise::float16, headwise::razor_budget, Compensation> cache(
      headwise::head_plan(of.shape(layers)), fixed_window(64));
  for (std::size_t layer = 0; layer < layers; ++layer) source.append(cache, layer, 1024);  // how many does not matter
  cache.compress();
  const std::size_t full_layers = cold_layers(of, tokens, headwise::float16::bytes(1));
  const auto full = full_cache<headwise::float16>(of, full_layers, tokens, source);
  const auto compressed = filled_cache<headwise::float16>(retrieval_15_percent(of.shape(15)), {}, tokens, source);

  std::vector<float> value(of.dim);
  std::vector<float> scaled = q;
  const headwise::attention_params params;
  for (float& x : scaled) x *= params.scale_for(of.dim);
  rounds turns;
  const std::size_t evaluating = turns.add([&](std::size_t i) {
    for (std::size_t query = 0; query < of.query_heads(); ++query) {
      auto weight =
          cache.head(i % layers, query / of.group).evaluate(scaled.data() + query * of.dim, params, value.data());
      keep(weight.mean_logit);
    }
  });
  attend_steps<bench_cache<headwise::float16>> full_attention(full, of, q, 1, 1);
  attend_steps<bench_cache<headwise::float16>> compressed_attention(compressed, of, q, 1, 1);
  const std::size_t all_rows = turns.add([&](std::size_t i) { full_attention.step(i); });
  const std::size_t kept_rows = turns.add([&](std::size_t i) { compressed_attention.step(i); }, 15);
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) turns.run_one();
    state.SetIterationTime(turns.median_seconds(evaluating));
  }
  state.counters["full"] = turns.ratio(evaluating, all_rows);
  state.counters["compressed"] = turns.ratio(evaluating, kept_rows);
  state.counters["KiB"] = static_cast<double>(cache.report().summary_bytes) / static_cast<double>(layers) / 1024.0;
}

void register_all(const options& chosen) {
  add("summary/mean", [=](benchmark::State& s) { summary<headwise::mean_compensation>(s, chosen.rounds); });
  add("summary/moment", [=](benchmark::State& s) { summary<headwise::moment_compensation>(s, chosen.rounds); });
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
