// SPDX-License-Identifier: MIT
#pragma once

// The fast kernels, compiled for every instruction set from the one this file is compiled for upwards, whatever that
// is: most engines are built for baseline x86-64, and a header that only followed -m flags would silently run SSE2
// there. The program links libhwy, which knows the processor. With HEADWISE_STATIC_DISPATCH they are compiled for this
// file's own set only, and nothing of Highway is linked.
//
// They take 6 s to compile. A program of many files compiles them in one, kernels.cpp for example,
//     #define HEADWISE_KERNELS_HERE
//     #include <headwise/kernel/simd.hpp>
// and defines HEADWISE_KERNELS_ELSEWHERE in the others. (CMake: link headwise::kernels.) So does an engine with
// Highway kernels of its own, since one file cannot have two lists of them.

#include <cstddef>
#include <cstdint>

#include "headwise/config.hpp"
#include "headwise/kernel/functions.hpp"

// Highway 1.0.3 does not build with the flags of AVX3_DL (-march=native of recent servers) unless that set is asked
// for.
#if !defined(HWY_WANT_AVX3_DL) && defined(__AVXVNNI__) && defined(__AVX512VBMI2__) && defined(__AVX512BITALG__)
#define HWY_WANT_AVX3_DL
#include <hwy/detect_targets.h>
#undef HWY_WANT_AVX3_DL
#endif
#include <hwy/detect_targets.h>

#if !defined(HEADWISE_STATIC_DISPATCH) && HWY_TARGETS != HWY_STATIC_TARGET
#if defined(HWY_HIGHWAY_INCLUDED)
#error "headwise: include it before hwy/highway.h, or compile its kernels in another file (headwise/kernel/simd.hpp)"
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "headwise/kernel/simd-inl.hpp"
#include <hwy/foreach_target.h>  // compiles it for the other sets
#undef HWY_TARGET_INCLUDE
#endif
#include <hwy/highway.h>

#include "headwise/kernel/simd-inl.hpp"  // and for the one of this file

#if defined(HEADWISE_STATIC_DISPATCH)
#define HEADWISE_SIMD_SETS HWY_STATIC_TARGET
#define HEADWISE_SIMD_SUPPORTED HWY_STATIC_TARGET
#else
#define HEADWISE_SIMD_SETS HWY_TARGETS
#define HEADWISE_SIMD_SUPPORTED hwy::SupportedTargets()
#endif

namespace headwise::kernel {
inline namespace HEADWISE_ISA {

/// The kernels of the best of the sets `allowed` (bits as Highway's: HWY_AVX2 ...) that the processor has, or nullptr
/// if there are none.
inline const functions* simd_functions(std::int64_t allowed) noexcept {
  const std::int64_t supported = allowed & HEADWISE_SIMD_SUPPORTED;
#if HWY_ARCH_X86
#if HWY_STATIC_TARGET == HWY_AVX3_DL
  if ((supported & HWY_AVX3_DL) != 0) return &N_AVX3_DL::table();
#endif
#if (HEADWISE_SIMD_SETS & HWY_AVX3) != 0
  if ((supported & HWY_AVX3) != 0) return &N_AVX3::table();
#endif
#if (HEADWISE_SIMD_SETS & HWY_AVX2) != 0
  if ((supported & HWY_AVX2) != 0) return &N_AVX2::table();
#endif
#if (HEADWISE_SIMD_SETS & HWY_SSE4) != 0
  if ((supported & HWY_SSE4) != 0) return &N_SSE4::table();
#endif
#if HWY_STATIC_TARGET == HWY_SSSE3
  if ((supported & HWY_SSSE3) != 0) return &N_SSSE3::table();
#endif
#elif (HEADWISE_SIMD_SETS & HWY_NEON) != 0
  if ((supported & HWY_NEON) != 0) return &N_NEON::table();
#endif
  static_cast<void>(supported);
  return nullptr;
}

}  // namespace HEADWISE_ISA

#undef HEADWISE_SIMD_SETS
#undef HEADWISE_SIMD_SUPPORTED

#if defined(HEADWISE_KERNELS_HERE)
const functions* linked_functions(std::int64_t allowed) noexcept { return simd_functions(allowed); }
#endif

}  // namespace headwise::kernel
