// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"

namespace headwise::kernel {
inline namespace HEADWISE_ISA {

/// Most rows that a kernel sees at once: one page of the store.
inline constexpr std::size_t block_rows = 64;

/// Where the running maximum of a softmax starts. Finite, because some engines are built with -ffinite-math-only.
inline constexpr float lowest_logit = std::numeric_limits<float>::lowest();

/// Contiguous rows of one head, in the format they are stored in, that share one logit bias.
struct row_block {
  const std::byte* keys;
  const std::byte* values;
  std::size_t rows;
  std::size_t position;  ///< of the first row
  float bias;
};

/// The query rows of a task: `count` rows of `key_size` float32, already multiplied by the logit scale.
/// Rows of one query token are adjacent: `group` of them, one per query head.
struct query_block {
  const float* rows;
  std::size_t count;
  std::size_t group;
  std::size_t key_size;
  std::size_t value_size;
  const attention_params* params;
  std::size_t position;  ///< of the first query token

  /// How many of the `most` rows from position `start` on query row `query` may see: those up to its own
  /// position.
  std::size_t visible(std::size_t query, std::size_t start, std::size_t most) const noexcept {
    const std::size_t end = position + query / group + 1;
    return end <= start ? 0 : (std::min)(most, end - start);
  }
};

/// An unfinished softmax per query row: out / sum is the attention over what was seen so far.
struct softmax_rows {
  float* maximum;  ///< [count]
  float* sum;      ///< [count], of e^(logit - maximum)
  float* out;      ///< [count x value_size], the same weights times the values

  void clear(std::size_t count, std::size_t value_size) const noexcept {
    std::fill_n(maximum, count, lowest_logit);
    std::fill_n(sum, count, 0.0F);
    std::fill_n(out, count * value_size, 0.0F);
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
