// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace headwise {

/// One KV head: the unit of caching. Never a query head: published head files mix the two.
struct head_id {
  std::size_t layer = 0;
  std::size_t kv_head = 0;

  friend constexpr bool operator==(head_id a, head_id b) noexcept {
    return a.layer == b.layer && a.kv_head == b.kv_head;
  }
  friend constexpr bool operator!=(head_id a, head_id b) noexcept { return !(a == b); }
  friend constexpr bool operator<(head_id a, head_id b) noexcept {
    return a.layer != b.layer ? a.layer < b.layer : a.kv_head < b.kv_head;
  }
};

/// What becomes of a KV head's rows.
enum class head_role : std::uint8_t {
  retrieval,  ///< keeps every row
  local,      ///< keeps sinks and recent rows; everything between is folded
  windowed,   ///< of a layer where the model itself looks back a fixed number of tokens; older rows are dropped exactly
};

constexpr const char* to_string(head_role role) noexcept {
  return role == head_role::retrieval ? "retrieval" : role == head_role::local ? "local" : "windowed";
}

}  // namespace headwise
