// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "headwise/config.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/half.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// IEEE binary16, 2 bytes an element. Finite values beyond +-65504 are stored as +-65504.
struct float16 {
  static constexpr const char* name() noexcept { return "f16"; }
  static constexpr element_type type() noexcept { return element_type::f16; }
  static constexpr std::size_t bytes(std::size_t count) noexcept { return count * sizeof(std::uint16_t); }

  static void encode(const float* floats, std::byte* rows, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t half = f16_from_float(saturated(floats[i]));
      std::memcpy(rows + bytes(i), &half, sizeof half);
    }
  }
  static void decode(const std::byte* rows, float* floats, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t half;
      std::memcpy(&half, rows + bytes(i), sizeof half);
      floats[i] = float_from_f16(half);
    }
  }

 private:
  /// A key beyond the range stays finite, since infinity times a query's zero would be NaN; infinities and NaNs stay.
  static float saturated(float value) noexcept {
    constexpr float largest = 65504.0F;
    const float magnitude = std::fabs(value);
    return magnitude > largest && magnitude <= (std::numeric_limits<float>::max)() ? std::copysign(largest, value)
                                                                                   : value;
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
