// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace headwise {

/// How rows leave a head: behind which sinks, whether they are folded or dropped, and how many tokens' worth of them
/// stay in the reserve.
struct leaving {
  std::size_t sinks;
  bool fold;
  std::size_t reserve;
};

}  // namespace headwise
