// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "headwise/core/head_id.hpp"
#include "headwise/policy/identity.hpp"

namespace headwise {

// A budget says how many recent rows a local head keeps (W). Any copyable callable will do, a lambda too.
//   | Expression                | Returns     | Meaning                                                    | May throw |
//   | budget(head, tokens_seen) | std::size_t | recent rows to keep, the newest counted, sinks not counted | yes       |
// 0 is read as 1: the newest row always stays. A budget may shrink; what was folded stays folded.
// One that a cache is to be saved with has an identity, too (policy/identity.hpp).
// The do-nothing member is unlimited_budget.

/// The paper's: max(min_recent, tokens_seen / divisor), rounded down; S_0 = 4000 and C = 5.
struct razor_budget {
  std::size_t min_recent = 4000;
  std::size_t divisor = 5;  ///< 0 switches the share off: a fixed window of min_recent

  constexpr std::size_t operator()(head_id, std::size_t tokens_seen) const noexcept {
    return divisor == 0 ? min_recent : (std::max)(min_recent, tokens_seen / divisor);
  }
  static constexpr const char* name() noexcept { return "razor"; }
  constexpr std::array<std::size_t, 2> parameters() const noexcept { return {min_recent, divisor}; }
};

/// The same number of rows at every length.
struct fixed_budget {
  std::size_t rows = 4000;
  constexpr std::size_t operator()(head_id, std::size_t) const noexcept { return rows; }
  static constexpr const char* name() noexcept { return "fixed"; }
  constexpr std::array<std::size_t, 1> parameters() const noexcept { return {rows}; }
};

/// Keeps everything.
struct unlimited_budget {
  constexpr std::size_t operator()(head_id, std::size_t) const noexcept {
    return (std::numeric_limits<std::size_t>::max)();
  }
  static constexpr const char* name() noexcept { return "unlimited"; }
};

namespace detail {

template <class Budget>
constexpr void require_budget() {
  static_assert(std::is_invocable_r_v<std::size_t, const Budget&, head_id, std::size_t>,
                "headwise: a budget is called as budget(head_id, tokens_seen), const, and returns the number of recent "
                "rows to keep (policy/budget.hpp)");
  static_assert(std::is_copy_constructible_v<Budget>, "headwise: a budget must be copyable (policy/budget.hpp)");
}

template <class Budget>
constexpr void require_saveable_budget() {
  static_assert(has_identity<Budget>,
                "headwise: a cache can be saved only if its budget says who it is: name() and, unless it has no data "
                "members, parameters() (policy/identity.hpp). A lambda cannot; write a struct");
}

}  // namespace detail
}  // namespace headwise
