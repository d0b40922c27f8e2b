// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/error.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// The sequences with these indices, in this order: what a beam search keeps after a step. An index may come more than
/// once; the copies share what they have in common. Refuses an index that names no sequence; then nothing has been
/// made.
template <class Cache>
[[nodiscard]] std::vector<Cache> gather(const std::vector<Cache>& sequences, const std::vector<std::size_t>& indices) {
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i] >= sequences.size())
      detail::fail("gather: index ", i, " names sequence ", indices[i], " of ", sequences.size());
  std::vector<Cache> gathered;
  gathered.reserve(indices.size());
  for (const std::size_t index : indices) gathered.push_back(sequences[index]);
  return gathered;
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
