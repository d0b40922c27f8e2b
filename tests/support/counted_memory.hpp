// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>

namespace headwise::test {

/// What operator new of this program saw; one of the program's files includes support/counting_new.hpp.
struct counted_memory {
  std::atomic<std::size_t> live_bytes{0};    ///< as asked for, not as rounded up by the system
  std::atomic<std::size_t> peak_bytes{0};    ///< the largest live_bytes since somebody set this to them
  std::atomic<std::size_t> allocations{0};   ///< since the program began
  std::atomic<std::size_t> mapped_bytes{0};  ///< live, where one of the files includes support/counting_map.hpp
  std::atomic<std::size_t> mappings{0};      ///< since the program began
  std::atomic<long> allow{-1};               ///< that many more allocations and mappings succeed; -1: all
  std::atomic<bool> fail_once{false};        ///< the one behind them fails, and no other; else all do
  std::atomic<std::size_t> failures{0};      ///< since the program began
  std::atomic<int> fill{-1};                 ///< new memory is filled with this byte; -1: left as it comes
};

/// Whether the next allocation or mapping is one to fail.
inline bool must_fail(counted_memory& counts) noexcept {
  if (counts.allow < 0 || counts.allow-- > 0) return false;
  counts.allow = counts.fail_once ? -1 : 0;
  ++counts.failures;
  return true;
}

inline counted_memory& memory() noexcept {
  static counted_memory counts;
  return counts;
}

}  // namespace headwise::test
