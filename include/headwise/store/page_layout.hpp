// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace headwise {

/// Where the rows of a page lie: the keys of 64 rows first, then their values, since a kernel streams through each.
/// Sizes of heads and formats are powers of two, and so would be every distance between rows; two gaps break that:
///   - keys and values of a token are an odd number of cache lines off, more than a row has: never in the same set of
///     the first-level cache, 4 KiB apart;
///   - pages that follow each other in memory begin at different places of the system's 4 KiB pages, an odd number of
///     lines apart, so that the heads of a layer do not all touch new memory at the same token.
struct page_layout {
  static constexpr std::size_t rows = 64;
  static constexpr std::size_t line = 64;

  std::size_t key_bytes;     ///< of one row
  std::size_t value_bytes;   ///< of one row
  std::size_t value_offset;  ///< of the first value from the first key
  std::size_t bytes;         ///< from one page to the next, a multiple of 64

  constexpr page_layout(std::size_t key_row_bytes, std::size_t value_row_bytes) noexcept
      : key_bytes(key_row_bytes),
        value_bytes(value_row_bytes),
        value_offset((lines(rows * key_bytes) + gap(key_bytes)) * line),
        bytes(((value_offset / line + lines(rows * value_bytes) + gap(key_bytes) - 1) | 1) * line) {}

  /// Bytes of its rows: what is no gap.
  constexpr std::size_t row_bytes() const noexcept { return rows * (key_bytes + value_bytes); }

 private:
  static constexpr std::size_t lines(std::size_t of_bytes) noexcept { return (of_bytes + line - 1) / line; }
  /// Odd, and more lines than a row has.
  static constexpr std::size_t gap(std::size_t row_bytes) noexcept { return (lines(row_bytes) + 1) | 1; }
};

}  // namespace headwise
