// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "headwise/cache/leaving.hpp"
#include "headwise/config.hpp"
#include "headwise/core/head_plan.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// What the heads of a layer keep: the words of the plan, the budget and the options for one layer.
template <class Budget>
struct layer_rules {
  const head_plan& plan;
  const Budget& budget;
  std::size_t layer;
  std::size_t reserve;

  head_role role(std::size_t head) const { return plan.role({layer, head}); }
  /// Whether rows leave while tokens arrive; `local`: local heads have been told to.
  bool rolls(std::size_t head, bool local) const {
    return role(head) == head_role::windowed || (role(head) == head_role::local && local);
  }
  leaving how(std::size_t head) const {
    const bool windowed = role(head) == head_role::windowed;
    return {windowed ? 0 : plan.sinks(), !windowed, reserve};
  }
  /// Rows that a head which is no retrieval head keeps besides its sinks, W >= 1. May throw what the budget throws.
  std::size_t recent_rows(std::size_t head, std::size_t tokens_seen) const {
    if (role(head) == head_role::windowed) return plan.window(layer);
    return (std::max)(std::size_t{1}, static_cast<std::size_t>(budget({layer, head}, tokens_seen)));
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
