// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "headwise/core/key_range.hpp"

namespace headwise {

// A mask says which keys a query may see.
//   | Expression     | Returns   | Meaning                                                              | May throw |
//   | mask(position) | key_range | positions of the keys that the query at `position` sees; neither end | no        |
//   |                |           | may fall from one position to the next                               |           |
// A lambda is a mask. The summary of folded rows is seen by queries whose range begins at 0.

/// Its own key and all before it: the default.
struct causal {
  key_range operator()(std::size_t position) const noexcept { return {0, position + 1}; }
};

/// The newest `window` keys only: models with sliding-window attention.
struct windowed {
  std::size_t window = 4096;
  key_range operator()(std::size_t position) const noexcept {
    return {position + 1 > window ? position + 1 - window : 0, position + 1};
  }
};

/// Tokens of the prefix see each other in both directions; those behind it are causal (prefix-LM).
struct prefix_lm {
  std::size_t prefix = 0;
  key_range operator()(std::size_t position) const noexcept { return {0, (std::max)(prefix, position + 1)}; }
};

namespace detail {

template <class Mask>
constexpr void require_mask() {
  static_assert(std::is_invocable_r_v<key_range, const Mask&, std::size_t>,
                "headwise: a mask is called with the position of a query and returns the key_range that it sees "
                "(attend/mask.hpp)");
}

}  // namespace detail
}  // namespace headwise
