// SPDX-License-Identifier: MIT
// What does a decoded token cost as the context grows? A retrieval head reads every row; a local head with a fixed
// budget reads the same number of rows at every length, with everything on: append, fold, summary.
// One layer, 32 query heads on 8 KV heads, head size 128, f16 rows, one thread.
//   rows, bytes   held by the layer after the prompt
//   vs_shortest   time of a token over that at the shortest context of the same kind, in this run
//   vs_dense      bytes of a dense cache over those held
//   error         rms of the output less float64 attention over the same stored rows and means, over the rms of that
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "headwise/headwise.hpp"
#include "reference/attention.hpp"

namespace {

constexpr std::size_t query_heads = 32;
constexpr std::size_t kv_heads = 8;
constexpr std::size_t dim = 128;
constexpr std::size_t window = 1024;
constexpr std::size_t shortest_context = 2048;

std::vector<float> random_rows(std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(count);
  for (float& x : rows) x = normal(random);
  return rows;
}

using cache = headwise::kv_cache<headwise::float16, headwise::fixed_budget, headwise::mean_compensation>;

cache prefilled(headwise::head_role role, std::size_t tokens) {
  headwise::model_shape shape;
  shape.layers = 1, shape.query_heads = query_heads, shape.kv_heads = kv_heads, shape.head_dim = dim;
  headwise::fixed_budget budget;
  budget.rows = window;
  cache result(headwise::head_plan(shape, role), budget);
  constexpr std::size_t chunk = 1024;
  static const std::vector<float> rows = random_rows((chunk + 1024) * kv_heads * dim);
  for (std::size_t done = 0; done < tokens; done += chunk) {
    const float* const k = rows.data() + done / chunk % 1024 * kv_heads * dim;  // another stretch for every chunk
    const float* const v = rows.data() + (done / chunk * 7 + 13) % 1024 * kv_heads * dim;
    result.append(0, headwise::packed_rows(k, chunk, kv_heads, dim), headwise::packed_rows(v, chunk, kv_heads, dim));
  }
  result.compress();
  return result;
}

double relative_error(const cache& of, const std::vector<float>& q, const std::vector<float>& out) {
  const auto& head = of.head(0, 0);
  std::vector<reference::row> rows;
  std::vector<float> key(dim), value(dim);
  for (std::size_t i = 0; i < head.runs(); ++i) {
    const headwise::run part = head.run_at(i);
    for (std::size_t row = 0; row < part.rows; ++row) {
      headwise::float16::decode(part.keys + headwise::float16::bytes(row * dim), key.data(), dim);
      headwise::float16::decode(part.values + headwise::float16::bytes(row * dim), value.data(), dim);
      rows.push_back({{key.begin(), key.end()}, {value.begin(), value.end()}, 0.0});
    }
  }
  if (head.folded() != 0) {
    reference::row mean{reference::vector(dim), reference::vector(dim), std::log(static_cast<double>(head.folded()))};
    for (std::size_t i = 0; i < dim; ++i)
      mean.key[i] = head.summary().mean_key(i), mean.value[i] = head.summary().mean_value(i);
    rows.push_back(mean);
  }
  const auto exact = reference::attention({q.begin(), q.begin() + dim}, rows, {1.0 / std::sqrt(double{dim})}, dim);
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < dim; ++i) {
    difference += std::pow(static_cast<double>(out[i]) - exact[i], 2);
    size += exact[i] * exact[i];
  }
  return std::sqrt(difference / size);
}

void decode(benchmark::State& state, headwise::head_role role) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  cache layer = prefilled(role, tokens);
  const auto report = layer.report();
  const std::vector<float> q = random_rows(query_heads * dim);
  const std::vector<float> kv = random_rows(2 * kv_heads * dim);
  std::vector<float> out(query_heads * dim);
  headwise::attend_schedule schedule;
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    layer.append(0, headwise::packed_rows(kv.data(), 1, kv_heads, dim),
                 headwise::packed_rows(kv.data() + kv_heads * dim, 1, kv_heads, dim));
    headwise::attend(layer, 0, headwise::packed_rows(q.data(), 1, query_heads, dim),
                     headwise::packed_output(out.data(), 1, query_heads, dim), schedule);
    benchmark::DoNotOptimize(out.data());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                         static_cast<double>(state.iterations());
  static std::map<headwise::head_role, double> shortest;  // of the longest round, which is the one that is printed
  if (tokens == shortest_context) shortest[role] = seconds;
  state.counters["rows"] = static_cast<double>(report.rows);
  state.counters["bytes"] = static_cast<double>(report.held_bytes());
  state.counters["vs_shortest"] = seconds / shortest[role];
  state.counters["vs_dense"] = static_cast<double>(report.dense_bytes) / static_cast<double>(report.held_bytes());
  state.counters["error"] = relative_error(layer, q, out);
}

BENCHMARK_CAPTURE(decode, retrieval, headwise::head_role::retrieval)
    ->RangeMultiplier(4)
    ->Range(shortest_context, 131072)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decode, local, headwise::head_role::local)
    ->RangeMultiplier(4)
    ->Range(shortest_context, 131072)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
