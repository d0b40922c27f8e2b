// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "headwise/config.hpp"
#include "headwise/element/bits.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

// Exact conversions between float32 and the two 16-bit formats: round to nearest, ties to even; subnormals, signed
// zeros, infinities and NaNs (sign and leading payload bits) kept. Integer arithmetic, and one subtraction of normal
// numbers that is exact, so neither the rounding mode nor FTZ/DAZ in the caller's MXCSR changes a bit. Written with
// selects instead of branches: compilers vectorise the loops around them.

/// IEEE binary16 bits of a float32. Beyond 65519.99 it gives infinity, as IEEE does.
inline std::uint16_t f16_from_float(float value) noexcept {
  const std::uint32_t bits = detail::bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t exponent = magnitude >> 23;

  const std::uint32_t rebased = magnitude - 0x38000000U;  // exponent bias 127 -> 15
  const std::uint32_t rounded = (rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13;
  const std::uint32_t normal = rounded > 0x7C00U ? 0x7C00U : rounded;

  // Below 2^-14 the result counts units of 2^-24; below 2^-25 a shift of 25 leaves 0.
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t shift = exponent < 102U ? 25U : (exponent > 112U ? 14U : 126U - exponent);
  const std::uint32_t subnormal = (mantissa + (1U << (shift - 1U)) - 1U + ((mantissa >> shift) & 1U)) >> shift;

  const std::uint32_t payload = (magnitude >> 13) & 0x3FFU;
  const std::uint32_t nan = 0x7C00U | (payload != 0U ? payload : 0x200U);

  const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  return static_cast<std::uint16_t>(sign | (magnitude > 0x7F800000U ? nan : (exponent == 255U ? 0x7C00U : finite)));
}

inline float float_from_f16(std::uint16_t half) noexcept {
  const std::uint32_t bits = half;
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t shifted = (bits & 0x7FFFU) << 13;
  const std::uint32_t normal = shifted + 0x38000000U;
  const std::uint32_t special = shifted | 0x7F800000U;
  // m * 2^-24 = 2^-14 (1 + m / 1024) - 2^-14: no subnormal float32 is touched, so DAZ does not matter. The sign is
  // cleared because x - x is -0 where the program rounds down.
  const float difference = detail::float_of(shifted + 0x38800000U) - detail::float_of(0x38800000U);
  const std::uint32_t subnormal = detail::bits_of(difference) & 0x7FFFFFFFU;
  const std::uint32_t magnitude = shifted >= 0x0F800000U ? special : (shifted < 0x00800000U ? subnormal : normal);
  return detail::float_of(sign | magnitude);
}

/// bfloat16 bits of a float32. Beyond 3.396e38 it gives infinity, as IEEE rounding does.
inline std::uint16_t bf16_from_float(float value) noexcept {
  const std::uint32_t bits = detail::bits_of(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t high = bits >> 16;
  const std::uint32_t nan = (high & 0x7FU) != 0U ? high : (high | 0x40U);
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded);
}

inline float float_from_bf16(std::uint16_t half) noexcept {
  return detail::float_of(static_cast<std::uint32_t>(half) << 16);
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
