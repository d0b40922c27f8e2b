// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace reference {

/// One head's positions as lists: those kept, and those that have left, both ascending.
struct row_lists {
  std::size_t seen = 0;
  std::vector<std::size_t> kept;
  std::vector<std::size_t> left;

  void append(std::size_t tokens) {
    for (; tokens > 0; --tokens) kept.push_back(seen++);
  }
  /// The oldest `block` rows behind the sinks leave together, as long as `window` recent rows stay. Those that have
  /// left stay away, so D = max(D before, N - S - W), rounded down to whole blocks.
  void fold(std::size_t sinks, std::size_t window, std::size_t block = 1) {
    while (kept.size() >= sinks + window + block) {
      const auto oldest = kept.begin() + static_cast<std::ptrdiff_t>(sinks);
      left.insert(left.end(), oldest, oldest + static_cast<std::ptrdiff_t>(block));
      kept.erase(oldest, oldest + static_cast<std::ptrdiff_t>(block));
    }
  }
  bool keeps(std::size_t position) const { return std::binary_search(kept.begin(), kept.end(), position); }
};

}  // namespace reference
