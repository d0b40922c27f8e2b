// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

namespace headwise {

/// Positions [begin, end) of the keys that a query may see.
struct key_range {
  std::size_t begin = 0;
  std::size_t end = 0;

  /// The part of it among `rows` rows from position `start` on, counted from there.
  key_range within(std::size_t start, std::size_t rows) const noexcept {
    const auto clipped = [&](std::size_t at) { return at <= start ? 0 : (std::min)(rows, at - start); };
    return {clipped(begin), clipped(end)};
  }
  bool operator==(const key_range& other) const noexcept { return begin == other.begin && end == other.end; }
};

}  // namespace headwise
