// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace headwise {

/// Contiguous rows of one head that share one logit bias: what every store emits and every kernel consumes. Full heads,
/// windows, rings and hand-merged tokens (one row with bias ln(count)) are lists of runs in the order of position.
/// A run has at most 64 rows and does not cross a position that is a multiple of 64.
struct run {
  std::size_t position = 0;  ///< of the first row, counted in tokens seen
  std::size_t rows = 0;
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  float bias = 0.0F;
};

}  // namespace headwise
