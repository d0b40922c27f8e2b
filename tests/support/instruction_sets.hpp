// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <ostream>
#include <vector>

#include "headwise/kernel/kernel.hpp"

namespace headwise::test {

/// One of the sets that kernels are compiled for, and what kernel::choose calls it.
struct instruction_set {
  const char* name;
  std::int64_t bit;
};
/// The name of a test's parameter.
inline void PrintTo(const instruction_set& set, std::ostream* out) { *out << set.name; }

/// The bit of a set, or none that exists: then the name of what is chosen is another, which the tests assert.
/// Found by trying, since Highway numbers its sets anew from version to version.
inline instruction_set set_named(const char* name) {
  std::int64_t found = std::int64_t{1} << 62;
  for (int bit = 0; bit < 62; ++bit) {
    kernel::choose(std::int64_t{1} << bit);
    if (std::strcmp(kernel::fastest().name, name) == 0) found = std::int64_t{1} << bit;
  }
  kernel::choose();
  return {name, found};
}

/// The reference, and every set of this processor, as the compiler's own run-time knows it and not Highway: a set that
/// was not built fails where its name is asserted. The kernels of our tests are compiled without -march, so all are.
inline std::vector<instruction_set> instruction_sets() {
  std::vector<instruction_set> sets{{"reference", 0}};
#if HEADWISE_WITH_HIGHWAY
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul"))
    sets.push_back(set_named("SSE4"));
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    sets.push_back(set_named("AVX2"));
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
    sets.push_back(set_named("AVX3"));
#elif defined(__aarch64__)
  sets.push_back(set_named("NEON"));
#endif
#endif
  return sets;
}

/// Forces a set while it lives.
class forced_set {
 public:
  explicit forced_set(const instruction_set& set) { kernel::choose(set.bit); }
  forced_set(const forced_set&) = delete;
  forced_set& operator=(const forced_set&) = delete;
  ~forced_set() { kernel::choose(); }
};

}  // namespace headwise::test
