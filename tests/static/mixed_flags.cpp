// SPDX-License-Identifier: MIT
// Files with different -m flags meet in one program.
//   mixed_flags all               runs every file's attention; the processor must have AVX-512
//   mixed_flags baseline <set>    runs that of the file without flags, which must choose <set>
#include "mixed_flags.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

bool fine(const part_report& report, const char* isa, const char* kernels) {
  std::printf("%s: kernels %s, error %.2g\n", report.isa, report.kernels, report.worst_error);
  return std::strcmp(report.isa, isa) == 0 && std::strcmp(report.kernels, kernels) == 0 && report.worst_error < 2e-6;
}

bool close(const part_report& a, const part_report& b) {
  if (a.table == b.table) return false;  // each file's kernels are its own
  for (std::size_t i = 0; i < sizeof a.out / sizeof *a.out; ++i)
    if (!(std::fabs(a.out[i] - b.out[i]) <= 1e-6F)) return false;
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::strcmp(arguments[1], "baseline") == 0)
    return fine(report_of_baseline(), "isa_baseline", arguments[2]) ? 0 : 1;
  if (count != 2 || std::strcmp(arguments[1], "all") != 0) return 2;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))) {
    std::puts("no AVX-512 here: skipped");
    return 77;
  }
  const part_report baseline = report_of_baseline();
  const part_report avx2 = report_of_avx2();
  const part_report avx512 = report_of_avx512();
  const bool right =
      fine(baseline, "isa_baseline", "AVX3") && fine(avx2, "isa_avx2", "AVX3") && fine(avx512, "isa_avx512", "AVX3");
  return right && close(baseline, avx2) && close(baseline, avx512) && close(avx2, avx512) ? 0 : 1;
}
