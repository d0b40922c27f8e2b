// SPDX-License-Identifier: MIT
// The vectors of one instruction set, and whether it has kernels at all. Every other part includes this one.

#if defined(HEADWISE_SIMD_VECTORS) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_VECTORS
#undef HEADWISE_SIMD_VECTORS
#else
#define HEADWISE_SIMD_VECTORS
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "headwise/config.hpp"

// HEADWISE_SIMD_HERE: the set has kernels. One-lane and scalable sets keep the reference kernels; SSSE3 and AVX3_DL
// have nothing that SSE4 and AVX3 lack here. (Parts are included for every set and then are empty: Highway's guard
// counts.)
#undef HEADWISE_SIMD_HERE
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#elif HWY_TARGET != HWY_STATIC_TARGET && (HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_AVX3_DL)
#else
#define HEADWISE_SIMD_HERE
#endif

// Arrays of vectors must end up in registers, so every loop over them is unrolled. simd-inl.hpp undefines both macros.
#undef HEADWISE_SIMD_UNROLL
#if HWY_COMPILER_CLANG
#define HEADWISE_SIMD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HEADWISE_SIMD_UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using tag = hn::ScalableTag<float>;
using vector = hn::Vec<tag>;
constexpr std::size_t lanes = hn::MaxLanes(tag());                                       // 4, 8 or 16
constexpr std::size_t registers = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 32 : 16;  // that hold a vector each

/// Adds lanes that are Step apart: lane i of the result comes from a where bit Step of i is clear, else from b.
template <std::size_t Step>
HWY_INLINE vector add_apart(vector a, vector b) {
  const tag d;
  if constexpr (Step == 8) {
    return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  } else if constexpr (Step == 4) {
    return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  } else if constexpr (Step == 2) {
    const hn::Repartition<std::uint64_t, tag> pairs;
    const auto x = hn::BitCast(pairs, a);
    const auto y = hn::BitCast(pairs, b);
    return hn::Add(hn::BitCast(d, hn::OddEven(y, x)), hn::BitCast(d, hn::Shuffle01(hn::OddEven(x, y))));
  } else {
    return hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b)));
  }
}

/// Lane i of the result is the sum of the lanes of a[i]; always in the same order, so neighbours do not matter.
template <std::size_t Count>
HWY_INLINE vector sums_of(const vector* a) {
  if constexpr (Count == 1) {
    return a[0];
  } else {
    vector half[Count / 2];
    HEADWISE_SIMD_UNROLL
    for (std::size_t i = 0; i < Count / 2; ++i) half[i] = add_apart<Count / 2>(a[i], a[i + Count / 2]);
    return sums_of<Count / 2>(half);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
