// SPDX-License-Identifier: MIT
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/headwise.hpp"

// The main() of every benchmark. All rounds, in which the contenders take turns, are one iteration; its time is the
// median of a step of headwise.
//   --rounds=N            rounds of each benchmark (default 5)
//   --kernels=NAME        another instruction set's kernels: AVX2, SSE4 ..., or reference (default: the best there is)
//   --benchmark_filter=R  runs what matches, of everything there is; without it a quick selection runs

namespace bench {

struct options {
  int rounds = 5;
  bool everything = false;
};

/// Has the kernels of that name used; false if there are none.
inline bool choose_kernels(std::string_view name) {
  for (int bit = 0; bit < 63; ++bit) {
    headwise::kernel::choose(std::int64_t{1} << bit);
    if (name == headwise::kernel::fastest().name) return true;
  }
  headwise::kernel::choose();
  return name == headwise::kernel::fastest().name;
}

/// Runs what register_all(options) registers.
template <class Register>
int run_program(int argc, char** argv, Register&& register_all) {
  options chosen;
  std::vector<char*> rest;
  bool tabular = true;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    constexpr std::string_view rounds = "--rounds=";
    if (argument.substr(0, rounds.size()) == rounds) {
      chosen.rounds = std::atoi(argv[i] + rounds.size());
      if (chosen.rounds < 1) chosen.rounds = 1;
      continue;
    }
    constexpr std::string_view kernels = "--kernels=";
    if (argument.substr(0, kernels.size()) == kernels) {
      if (choose_kernels(argument.substr(kernels.size()))) continue;
      std::fprintf(stderr, "%s: this program has no such kernels, or this processor cannot run them\n", argv[i]);
      return 1;
    }
    chosen.everything =
        chosen.everything || argument.find("--benchmark_filter") == 0 || argument.find("--benchmark_list_tests") == 0;
    tabular = tabular && argument.find("--benchmark_counters_tabular") != 0;
    rest.push_back(argv[i]);
  }
  std::string as_table = "--benchmark_counters_tabular=true";
  if (tabular) rest.push_back(as_table.data());
  int count = static_cast<int>(rest.size());
  rest.push_back(nullptr);
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  benchmark::AddCustomContext("kernels", headwise::kernel::fastest().name);
  register_all(chosen);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// Registers run(state), whose loop runs all rounds in one iteration and sets the median time itself.
template <class Run>
benchmark::internal::Benchmark* add(const std::string& name, Run&& run) {
  return benchmark::RegisterBenchmark(name.c_str(), run)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace bench
