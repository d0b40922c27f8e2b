// SPDX-License-Identifier: MIT
// What can this machine do at most? Everything else is quoted against it.
//   read/<order>/threads:<n>   plain reads from memory that no cache holds: 1, 2, 4, 8 streams, and the order of a
//                              cache's pages (64 rows of keys, then of values), without and with the next page asked
//                              for
//   fma/threads:<n>            float32 multiply-adds with everything in registers
// Counters: GB/s or GFMA (10^9 multiply-adds per second), the median of the rounds; best: that of the best round.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "program.hpp"
#include "roofline.hpp"
#include "rounds.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

void report(benchmark::State& state, const char* unit, const std::vector<double>& rates) {
  state.counters[unit] = median(rates) / giga;
  state.counters["best"] = *std::max_element(rates.begin(), rates.end()) / giga;
}

void register_all(const options& chosen) {
  const int rounds = chosen.rounds;
  for (std::size_t threads = 1; threads <= most_threads; ++threads) {
    const std::string suffix = "/threads:" + std::to_string(threads);
    for (std::size_t how = 0; how < roofline_probe::patterns; ++how)
      add(std::string("read/") + roofline_probe::names[how] + suffix, [=](benchmark::State& state) {
        constexpr std::size_t piece = 64 * mebibyte;
        roofline_probe probe(threads, cold_bytes, piece);
        std::vector<double> rates;
        for (auto _ : state) {
          for (int i = 0; i < rounds * 4; ++i) rates.push_back(probe.read(static_cast<roofline_probe::pattern>(how)));
          state.SetIterationTime(static_cast<double>(piece) / median(rates));
        }
        report(state, "GB/s", rates);
      });
    add("fma" + suffix, [=](benchmark::State& state) {
      roofline_probe probe(threads, mebibyte, mebibyte);
      std::vector<double> rates;
      for (auto _ : state) {
        for (int i = 0; i < rounds * 4; ++i) rates.push_back(probe.fma());
        state.SetIterationTime(1.0 / median(rates));
      }
      report(state, "GFMA", rates);
    });
  }
}

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv, register_all); }
