// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "headwise/config.hpp"
#include "headwise/element/bits.hpp"

namespace headwise::kernel {
inline namespace HEADWISE_ISA {

/// e^x for x <= 0, within 2 units of the last place; 0 below -87.3, so no subnormal is made. NaN stays NaN.
/// No library call, no branch, and comparisons of bits instead of floats: loops around it vectorise.
/// Cephes' polynomial for expf.
inline float exp_nonpositive(float x) noexcept {
  const std::uint32_t bits = detail::bits_of(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t in_range = magnitude < 0x42AE999AU ? 0xFFFFFFFFU : 0U;  // |x| < 87.3
  const float clamped = detail::float_of(bits & in_range);
  const auto power = static_cast<std::int32_t>(clamped * 1.44269504F - 0.5F);  // nearest integer of a number <= 0
  const float n = static_cast<float>(power);
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const float result = p * detail::float_of(static_cast<std::uint32_t>(power + 127) << 23);
  const std::uint32_t nan = magnitude > 0x7F800000U ? bits : 0U;
  return detail::float_of((detail::bits_of(result) & in_range) | nan);
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
