// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "headwise/config.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/half.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// bfloat16, 2 bytes an element: float32's range with 8 bits of precision.
struct bfloat16 {
  static constexpr const char* name() noexcept { return "bf16"; }
  static constexpr element_type type() noexcept { return element_type::bf16; }
  static constexpr std::size_t bytes(std::size_t count) noexcept { return count * sizeof(std::uint16_t); }

  static void encode(const float* floats, std::byte* rows, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t half = bf16_from_float(floats[i]);
      std::memcpy(rows + bytes(i), &half, sizeof half);
    }
  }
  static void decode(const std::byte* rows, float* floats, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t half;
      std::memcpy(&half, rows + bytes(i), sizeof half);
      floats[i] = float_from_bf16(half);
    }
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
