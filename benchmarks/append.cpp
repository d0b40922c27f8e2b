// SPDX-License-Identifier: MIT
// What do append and compress cost per token? One layer of 8 KV heads of size 128, one thread.
//   ns_per_token   of the layer
//   bytes          held by the layer at the end
// append/chunk: a prompt in chunks of 256. append/rolling: a token at a time into local heads that fold one per token.
// compress: all local heads of a prompt at once, per token folded.
#include <benchmark/benchmark.h>

#include <chrono>
#include <vector>

#include "headwise/headwise.hpp"

namespace {

constexpr std::size_t kv_heads = 8;
constexpr std::size_t dim = 128;
constexpr std::size_t chunk = 256;
constexpr std::size_t prompt = 8192;
constexpr std::size_t window = 1024;

headwise::model_shape one_layer() {
  headwise::model_shape shape;
  shape.layers = 1, shape.query_heads = kv_heads, shape.kv_heads = kv_heads, shape.head_dim = dim;
  return shape;
}

template <class Format, class Compensation>
auto local_cache() {
  headwise::fixed_budget budget;
  budget.rows = window;
  return headwise::make_cache<Format>(headwise::head_plan(one_layer()), budget, Compensation{});
}

const std::vector<float>& rows() {
  static const std::vector<float> values(chunk * kv_heads * dim, 0.5F);
  return values;
}

template <class Cache>
void append(Cache& cache, std::size_t tokens) {
  const auto view = headwise::packed_rows(rows().data(), tokens, kv_heads, dim);
  cache.append(0, view, view);
}

void report(benchmark::State& state, double seconds, std::size_t tokens, std::size_t bytes) {
  state.counters["ns_per_token"] = seconds * 1e9 / static_cast<double>(tokens);
  state.counters["bytes"] = static_cast<double>(bytes);
}

class stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

template <class Format>
void append_chunk(benchmark::State& state) {
  double seconds = 0.0;
  std::size_t tokens = 0;
  std::size_t bytes = 0;
  for (auto _ : state) {
    auto cache = local_cache<Format, headwise::mean_compensation>();
    const stopwatch time;
    for (std::size_t done = 0; done < prompt; done += chunk) append(cache, chunk);
    state.SetIterationTime(time.seconds());
    seconds += time.seconds();
    tokens += prompt;
    bytes = cache.report().held_bytes();
  }
  report(state, seconds, tokens, bytes);
}

template <class Format, class Compensation>
void append_rolling(benchmark::State& state) {
  auto cache = local_cache<Format, Compensation>();
  for (std::size_t done = 0; done < prompt; done += chunk) append(cache, chunk);
  cache.compress();
  std::size_t tokens = 0;
  const stopwatch time;
  for (auto _ : state) {
    append(cache, 1);
    ++tokens;
  }
  report(state, time.seconds(), tokens, cache.report().held_bytes());
}

template <class Format, class Compensation>
void compress(benchmark::State& state) {
  double seconds = 0.0;
  std::size_t tokens = 0;
  std::size_t bytes = 0;
  for (auto _ : state) {
    auto cache = local_cache<Format, Compensation>();
    for (std::size_t done = 0; done < prompt; done += chunk) append(cache, chunk);
    const stopwatch time;
    cache.compress();
    state.SetIterationTime(time.seconds());
    seconds += time.seconds();
    tokens += cache.head(0, 0).rows().left();
    bytes = cache.report().held_bytes();
  }
  report(state, seconds, tokens, bytes);
}

BENCHMARK_TEMPLATE(append_chunk, headwise::float32)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(append_chunk, headwise::float16)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(append_chunk, headwise::bfloat16)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(append_rolling, headwise::float16, headwise::mean_compensation)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(append_rolling, headwise::float16, headwise::no_compensation)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(append_rolling, headwise::float16, headwise::moment_compensation)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(compress, headwise::float16, headwise::mean_compensation)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(compress, headwise::float16, headwise::moment_compensation)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
