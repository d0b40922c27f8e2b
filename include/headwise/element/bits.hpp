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

}  // namespace headwise::detail
