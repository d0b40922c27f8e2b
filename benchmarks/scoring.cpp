// SPDX-License-Identifier: MIT
// What does scoring the heads cost, beside the attention of the same chunks? A probe in chunks of 500 tokens, one
// layer, one thread; a step is the whole probe.
//   scoring/<geometry>/<tokens>
// Counters: attend: time of observe over that of attend for the same queries over f16 rows, the median of the rounds;
//   riding: attend and the scores that ride on it, over attend alone;
//   Mpairs: (query head, key) pairs of each; GFLOP/s: of observe, whose only product is the logits (two per pair and
//   element).
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr std::size_t chunk = 500;

void scoring(benchmark::State& state, const geometry& of, std::size_t tokens, int count) {
  const row_source source(of);
  std::vector<std::int32_t> block(tokens / 4);
  std::iota(block.begin(), block.end(), 0);
  const auto probe = headwise::repeated_tokens::from_block(block, 4);
  const std::vector<float> q = random_floats(tokens * of.query_heads() * of.dim, 9);
  const std::vector<float> k = random_floats(tokens * of.kv_heads * of.dim, 10);
  std::vector<float> out(chunk * of.query_heads() * of.dim);
  bench_cache<headwise::float16> cache(headwise::head_plan(of.shape(1), headwise::head_role::retrieval));
  const auto keys = headwise::packed_rows(k.data(), tokens, of.kv_heads, of.dim);
  cache.append(0, keys, keys);
  headwise::attend_schedule schedule;

  const auto queries_of = [&](std::size_t first) {
    return headwise::packed_rows(q.data() + first * of.query_heads() * of.dim, chunk, of.query_heads(), of.dim);
  };
  rounds turns;
  const std::size_t observing = turns.add([&](std::size_t) {
    headwise::head_scorer scorer(of.shape(1), probe);
    for (std::size_t first = 0; first < tokens; first += chunk)
      scorer.observe(0, queries_of(first),
                     headwise::packed_rows(k.data() + first * of.kv_heads * of.dim, chunk, of.kv_heads, of.dim));
  });
  const std::size_t attending = turns.add([&](std::size_t) {
    for (std::size_t first = 0; first < tokens; first += chunk) {
      headwise::attention_params params;
      params.first_position = first;
      headwise::attend(cache, 0, queries_of(first),
                       headwise::packed_output(out.data(), chunk, of.query_heads(), of.dim), schedule,
                       headwise::serial{}, params);
    }
  });
  std::vector<bench_cache<headwise::float16>> prefixes;  // what a layer holds when each chunk attends
  for (std::size_t first = 0; first < tokens; first += chunk) {
    prefixes.emplace_back(headwise::head_plan(of.shape(1), headwise::head_role::retrieval));
    const auto seen = headwise::packed_rows(k.data(), first + chunk, of.kv_heads, of.dim);
    prefixes.back().append(0, seen, seen);
  }
  std::vector<double> log_sum(chunk * of.query_heads());
  headwise::attention_extras extras;
  extras.log_sum_exp = log_sum.data();
  const std::size_t riding = turns.add([&](std::size_t) {
    headwise::head_scorer scorer(of.shape(1), probe);
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
      headwise::attend(prefixes[i], 0, queries_of(i * chunk),
                       headwise::packed_output(out.data(), chunk, of.query_heads(), of.dim), schedule,
                       headwise::serial{}, {}, headwise::causal{}, extras);
      scorer.observe(0, queries_of(i * chunk), prefixes[i], log_sum.data());
    }
  });
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) turns.run_one();
    state.SetIterationTime(turns.median_seconds(observing));
  }
  const double pairs = static_cast<double>(tokens * (tokens + 1) / 2 * of.query_heads());
  state.counters["Mpairs"] = pairs / 1e6;
  state.counters["GFLOP/s"] = pairs * 2.0 * static_cast<double>(of.dim) / turns.median_seconds(observing) / giga;
  state.counters["attend"] = turns.ratio(observing, attending);
  state.counters["riding"] = turns.ratio(riding, attending);
}

void register_all(const options& chosen) {
  for (const geometry& of : geometries)
    for (const std::size_t tokens : {std::size_t{1000}, std::size_t{2000}, std::size_t{4000}, std::size_t{10000}})
      if (chosen.everything || (tokens == 1000 && (of.name() == "d128g4" || of.name() == "d64g3")))
        add("scoring/" + of.name() + "/" + std::to_string(tokens),
            [=](benchmark::State& state) { scoring(state, of, tokens, chosen.rounds); });
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
