// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/key_range.hpp"

// What goes into kernels and comes out. Plain types without the name of an instruction set, unlike everything that
// computes: a program's kernels may be compiled in a file of its own, with other flags.

namespace headwise::kernel {

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
  const key_range* sees;  ///< [count / group], begin and end never falling from one query token to the next

  /// What query row `query` may see of the `most` rows from position `start` on.
  key_range visible(std::size_t query, std::size_t start, std::size_t most) const noexcept {
    return sees[query / group].within(start, most);
  }
};

/// An unfinished softmax per query row: out / sum is the attention over what was seen so far.
struct softmax_rows {
  float* maximum;  ///< [count]
  float* sum;      ///< [count], of e^(logit - maximum)
  float* out;      ///< [count x value_size], the same weights times the values
};

/// The weights of whole queries against all their rows, kept until their sums are known. A kernel adds an entry per run
/// that any query sees; how it lies in memory is the kernel's own business.
struct weight_strip {
  float* data;         ///< room for `blocks` entries of functions::strip_floats
  std::size_t blocks;  ///< entries so far
};

inline namespace HEADWISE_ISA {

/// A softmax that has seen nothing.
inline void clear(const softmax_rows& state, std::size_t count, std::size_t value_size) noexcept {
  std::fill_n(state.maximum, count, lowest_logit);
  std::fill_n(state.sum, count, 0.0F);
  std::fill_n(state.out, count * value_size, 0.0F);
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
