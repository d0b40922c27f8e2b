// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

namespace headwise::detail {

inline std::uint32_t bits_of(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Neither infinite nor NaN. Looks at the bits: std::isfinite may be left out where a program is built with -Ofast.
inline bool is_finite(float value) noexcept { return (bits_of(value) & 0x7F800000U) != 0x7F800000U; }

}  // namespace headwise::detail
