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
  /// The oldest row behind the sinks leaves until no more than `window` recent rows are there. Those that have left
  /// stay away, so D = max(D before, N - S - W).
  void fold(std::size_t sinks, std::size_t window) {
    while (kept.size() > sinks && kept.size() - sinks > window) {
      const auto oldest = kept.begin() + static_cast<std::ptrdiff_t>(sinks);
      left.push_back(*oldest);
      kept.erase(oldest);
    }
  }
  bool keeps(std::size_t position) const { return std::binary_search(kept.begin(), kept.end(), position); }
};

}  // namespace reference
