// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

// The 16-bit formats by definition, in double arithmetic: no bits of a float are looked at. Needs the default rounding
// mode.

namespace reference {

/// A binary interchange format of IEEE 754: sign, biased exponent, fraction.
struct binary_format {
  int exponent_bits;
  int fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t infinity() const { return ((1U << exponent_bits) - 1U) << fraction_bits; }
  std::uint32_t sign() const { return 1U << (exponent_bits + fraction_bits); }
};

inline constexpr binary_format f16{5, 10};
inline constexpr binary_format bf16{8, 7};

/// The number that a pattern stands for.
inline double value_of(binary_format format, std::uint32_t pattern) {
  const double sign = (pattern & format.sign()) != 0 ? -1.0 : 1.0;
  const std::uint32_t magnitude = pattern & (format.sign() - 1U);
  if (magnitude > format.infinity()) return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  if (magnitude == format.infinity()) return sign * std::numeric_limits<double>::infinity();
  const int exponent = static_cast<int>(magnitude >> format.fraction_bits);
  const auto fraction = static_cast<double>(magnitude & ((1U << format.fraction_bits) - 1U));
  const double hidden = exponent == 0 ? 0.0 : std::ldexp(1.0, format.fraction_bits);
  return sign * std::ldexp(hidden + fraction, std::max(exponent, 1) - format.bias() - format.fraction_bits);
}

/// The pattern of the nearest number, ties to even; beyond the largest one by half a step or more: infinity.
/// Not for NaN.
inline std::uint32_t pattern_of(binary_format format, double value) {
  const std::uint32_t sign = std::signbit(value) ? format.sign() : 0U;
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  if (magnitude > std::numeric_limits<double>::max()) return sign | format.infinity();
  const int smallest = 1 - format.bias();
  const int exponent = std::max(std::ilogb(magnitude), smallest);
  if (exponent > format.bias()) return sign | format.infinity();
  // Counts steps of the format; reaching the next power of two carries into the exponent, as it should.
  const double steps = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const double pattern = std::ldexp(exponent - smallest, format.fraction_bits) + steps;
  return sign | std::min(static_cast<std::uint32_t>(pattern), format.infinity());
}

/// What a format makes of a finite number.
inline double rounded(binary_format format, double value) { return value_of(format, pattern_of(format, value)); }

}  // namespace reference
