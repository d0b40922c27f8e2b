// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>

#include "headwise/config.hpp"
#include "headwise/core/token_view.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Rows as they come, 4 bytes an element.
struct float32 {
  static constexpr const char* name() noexcept { return "f32"; }
  static constexpr element_type type() noexcept { return element_type::f32; }
  static constexpr std::size_t bytes(std::size_t count) noexcept { return count * sizeof(float); }

  static void encode(const float* floats, std::byte* rows, std::size_t count) noexcept {
    if (count != 0) std::memcpy(rows, floats, bytes(count));
  }
  static void decode(const std::byte* rows, float* floats, std::size_t count) noexcept {
    if (count != 0) std::memcpy(floats, rows, bytes(count));
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
