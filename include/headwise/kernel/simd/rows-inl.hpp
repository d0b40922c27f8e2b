// SPDX-License-Identifier: MIT
// Rows as they are stored: their elements as float32, a vector at a time, and back.

#if defined(HEADWISE_SIMD_ROWS) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_ROWS
#undef HEADWISE_SIMD_ROWS
#else
#define HEADWISE_SIMD_ROWS
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "headwise/core/token_view.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// float32 from the 16 bits of each lane, for sets without a conversion of their own. Exact, FTZ and DAZ or not.
HWY_INLINE vector from_f16_bits(hn::Vec<hn::RebindToUnsigned<tag>> half) {
  const hn::RebindToUnsigned<tag> u;
  const hn::RebindToSigned<tag> i;
  const tag d;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(u, 0x8000U)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(u, 0x7FFFU)));
  const auto normal = hn::Add(shifted, hn::Set(u, 0x38000000U));
  const auto special = hn::Or(shifted, hn::Set(u, 0x7F800000U));
  const auto mantissa = hn::ConvertTo(d, hn::BitCast(i, hn::And(half, hn::Set(u, 0x3FFU))));
  const auto subnormal = hn::BitCast(u, hn::Mul(mantissa, hn::Set(d, 0x1p-24F)));
  const auto exponent = hn::BitCast(i, hn::And(half, hn::Set(u, 0x7C00U)));
  const auto is_small = hn::RebindMask(u, hn::Eq(exponent, hn::Zero(i)));
  const auto is_special = hn::RebindMask(u, hn::Eq(exponent, hn::Set(i, 0x7C00)));
  const auto magnitude = hn::IfThenElse(is_small, subnormal, hn::IfThenElse(is_special, special, normal));
  return hn::BitCast(d, hn::Or(sign, magnitude));
}

// How rows of each type are read: `bytes` of an element; load(d, at): the first elements from `at` on, one per lane of
// d.

struct f32_rows {
  static constexpr std::size_t bytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* at) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  }
};

struct f16_rows {
  static constexpr std::size_t bytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load([[maybe_unused]] D d, const std::byte* at) {
#if HWY_ARCH_X86 && (HWY_TARGET > HWY_AVX2 || defined(HWY_DISABLE_F16C))  // Highway's own loses infinities and NaNs
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    return from_f16_bits(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(at))));
#else
    const hn::Rebind<hwy::float16_t, D> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(at)));
#endif
  }
};

struct bf16_rows {
  static constexpr std::size_t bytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* at) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(at)))));
  }
};

/// Head sizes are multiples of 8, so a row may end in half of a vector of 16 lanes.
enum class part { whole, last_eight };

/// A vector of a row's elements. The lanes above the last eight are zeros.
template <class Rows, part Part = part::whole>
HWY_INLINE vector load(const std::byte* at) {
  if constexpr (Part == part::last_eight && lanes == 16)
    return hn::ZeroExtendVector(tag(), Rows::load(hn::Half<tag>(), at));
  else
    return Rows::load(tag(), at);
}
template <part Part = part::whole>
HWY_INLINE vector load(const float* at) {
  return load<f32_rows, Part>(reinterpret_cast<const std::byte*>(at));
}
template <part Part = part::whole>
HWY_INLINE void store(vector v, float* at) {
  if constexpr (Part == part::last_eight && lanes == 16)
    hn::StoreU(hn::LowerHalf(hn::Half<tag>(), v), hn::Half<tag>(), at);
  else
    hn::StoreU(v, tag(), at);
}

/// `size`: a multiple of 8.
template <class Rows>
HWY_INLINE void widen_row(const std::byte* row, std::size_t size, float* out) {
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) store(load<Rows>(row + i * Rows::bytes), out + i);
  if (lanes == 16 && i != size) store<part::last_eight>(load<Rows, part::last_eight>(row + i * Rows::bytes), out + i);
}

/// functions::widen
inline void widen(element_type type, const void* elements, float* floats, std::size_t count) {
  const auto* const at = static_cast<const std::byte*>(elements);
  const std::size_t whole = count / lanes * lanes;
  switch (type) {
    case element_type::f32: std::memcpy(floats, at, count * sizeof(float)); return;
    case element_type::f16:
      widen_row<f16_rows>(at, whole, floats);
      return float16::decode(at + whole * 2, floats + whole, count - whole);
    case element_type::bf16:
      widen_row<bf16_rows>(at, whole, floats);
      return bfloat16::decode(at + whole * 2, floats + whole, count - whole);
  }
}

/// functions::narrow. A vector with a NaN is left to the format, which keeps every bit of it that fits.
inline void narrow(element_type type, const float* floats, void* elements, std::size_t count) {
  auto* const at = static_cast<std::byte*>(elements);
  std::size_t i = 0;
  const tag d;
  switch (type) {
    case element_type::f32: std::memcpy(at, floats, count * sizeof(float)); return;
    case element_type::f16:
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
      for (; i + lanes <= count; i += lanes) {
        const vector x = hn::LoadU(d, floats + i);
        const vector largest = hn::Set(d, 65504.0F);
        const vector magnitude = hn::Abs(x);
        const auto beyond = hn::And(hn::Gt(magnitude, largest), hn::Le(magnitude, hn::Set(d, 3.4028234e38F)));
        if (!hn::AllTrue(d, hn::Eq(x, x))) {
          float16::encode(floats + i, at + i * 2, lanes);
          continue;
        }
        const hn::Rebind<hwy::float16_t, tag> half;
        hn::StoreU(hn::DemoteTo(half, hn::IfThenElse(beyond, hn::CopySign(largest, x), x)), half,
                   reinterpret_cast<hwy::float16_t*>(at + i * 2));
      }
#endif
      return float16::encode(floats + i, at + i * 2, count - i);
    case element_type::bf16: {
      for (; i + lanes <= count; i += lanes) {
        const hn::RebindToUnsigned<tag> u;
        const hn::RebindToSigned<tag> s;
        const hn::Rebind<std::uint16_t, tag> half;
        const vector x = hn::LoadU(d, floats + i);
        if (!hn::AllTrue(d, hn::Eq(x, x))) {
          bfloat16::encode(floats + i, at + i * 2, lanes);
          continue;
        }
        const auto bits = hn::BitCast(u, x);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1U));
        const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFU))));
        hn::StoreU(hn::DemoteTo(half, hn::BitCast(s, rounded)), half, reinterpret_cast<std::uint16_t*>(at + i * 2));
      }
      return bfloat16::encode(floats + i, at + i * 2, count - i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
