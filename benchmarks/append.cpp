// SPDX-License-Identifier: MIT
// How long does append hold up a step, and what does it cost? 8 KV heads of size 128, one thread.
//   stall/<kind>/<tokens>     decoding behind `tokens` tokens of prompt, a token at a time, 32 layers, f16; grow: no
//   row
//                             leaves; rolling: local heads with a window of 512 fold a row per token
//   chunk/<format>/<input>    a prompt of one layer in chunks of 256 tokens
// Counters
//   layer_ms, token_ms  the longest append to a layer, and the longest of a token to all layers: CPU time of this
//   thread,
//                       the largest of 128 tokens (two pages of each head), the smallest of that over the rounds
//   us                  of a token in all layers, median
//   ns/token            of a token in one layer; GB/s: of rows written
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <limits>
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
constexpr std::size_t window = 512;

void stall(benchmark::State& state, headwise::head_role role, std::size_t prompt, int count) {
  constexpr std::size_t layers = 32;
  constexpr std::size_t tokens = 128;
  const row_source source(of);
  auto cache = filled_cache<headwise::float16>(headwise::head_plan(of.shape(layers), role), fixed_window(window),
                                               prompt, source);
  double layer_stall = std::numeric_limits<double>::max();
  double token_stall = layer_stall;
  std::vector<double> token_seconds;
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) {
      double longest_layer = 0.0;
      double longest_token = 0.0;
      for (std::size_t token = 0; token < tokens; ++token) {
        double all_layers = 0.0;
        for (std::size_t layer = 0; layer < layers; ++layer) {
          const stopwatch time(true);
          source.append(cache, layer, 1);
          const double seconds = time.seconds();
          longest_layer = (std::max)(longest_layer, seconds);
          all_layers += seconds;
        }
        longest_token = (std::max)(longest_token, all_layers);
        token_seconds.push_back(all_layers);
      }
      layer_stall = (std::min)(layer_stall, longest_layer);
      token_stall = (std::min)(token_stall, longest_token);
    }
    state.SetIterationTime(median(token_seconds));
  }
  state.counters["layer_ms"] = layer_stall * 1e3;
  state.counters["token_ms"] = token_stall * 1e3;
  state.counters["us"] = median(token_seconds) * 1e6;
  state.counters["MiB"] = static_cast<double>(cache.report().held_bytes()) / static_cast<double>(mebibyte);
}

/// A chunk of rows in the type that an engine has them in.
template <class Input>
std::vector<std::byte> input_rows(std::size_t count) {
  const std::vector<float> floats = random_floats(count, 7);
  std::vector<std::byte> rows(Input::bytes(count));
  Input::encode(floats.data(), rows.data(), count);
  return rows;
}
template <class Input>
headwise::element_type input_type() {
  if (std::string(Input::name()) == "f16") return headwise::element_type::f16;
  return std::string(Input::name()) == "bf16" ? headwise::element_type::bf16 : headwise::element_type::f32;
}

template <class Format, class Input>
void chunks(benchmark::State& state, int count) {
  constexpr std::size_t chunk = 256;
  constexpr std::size_t prompt = 8192;
  const auto rows = input_rows<Input>(chunk * of.kv_heads * of.dim);
  headwise::token_view view = headwise::packed_rows(nullptr, chunk, of.kv_heads, of.dim);
  view.data = rows.data(), view.type = input_type<Input>();
  std::vector<double> seconds;
  std::size_t bytes = 0;
  for (auto _ : state) {
    for (int round = 0; round < count; ++round) {
      bench_cache<Format> cache(headwise::head_plan(of.shape(1), headwise::head_role::retrieval));
      const stopwatch time(true);
      for (std::size_t done = 0; done < prompt; done += chunk) cache.append(0, view, view);
      seconds.push_back(time.seconds());
      bytes = cache.report().row_bytes;
    }
    state.SetIterationTime(median(seconds));
  }
  state.counters["ns/token"] = median(seconds) * 1e9 / static_cast<double>(prompt);
  state.counters["GB/s"] = static_cast<double>(bytes) / median(seconds) / giga;
}

template <class Format, class Input>
void add_chunks(const options& chosen) {
  add(std::string("chunk/") + Format::name() + "/" + Input::name(),
      [=](benchmark::State& state) { chunks<Format, Input>(state, chosen.rounds); });
}

void register_all(const options& chosen) {
  for (const std::size_t prompt : {std::size_t{0}, std::size_t{1024}, std::size_t{4096}, std::size_t{16384}}) {
    if (!chosen.everything && prompt != 1024) continue;
    add("stall/grow/" + std::to_string(prompt),
        [=](benchmark::State& state) { stall(state, headwise::head_role::retrieval, prompt, chosen.rounds); });
    add("stall/rolling/" + std::to_string(prompt),
        [=](benchmark::State& state) { stall(state, headwise::head_role::local, prompt, chosen.rounds); });
  }
  add_chunks<headwise::float16, headwise::float32>(chosen);
  add_chunks<headwise::bfloat16, headwise::float32>(chosen);
  add_chunks<headwise::float32, headwise::float32>(chosen);
  add_chunks<headwise::float16, headwise::float16>(chosen);
  add_chunks<headwise::bfloat16, headwise::bfloat16>(chosen);
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
