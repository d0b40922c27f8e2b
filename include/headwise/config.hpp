// SPDX-License-Identifier: MIT
#pragma once

// The only header, beside version.hpp, that defines macros. All of them begin with HEADWISE_.
//   HEADWISE_ASSERT(condition)   a precondition of the hot path; define it before the first include to change it
//   HEADWISE_EXCEPTIONS          1 where the compiler has exceptions, else 0 (core/error.hpp)
//   HEADWISE_COLD                keeps error paths out of the hot code
//   HEADWISE_WITH_HIGHWAY        1: fast kernels through Google Highway (kernel/simd.hpp); link libhwy
//   HEADWISE_STATIC_DISPATCH     define it to compile the fast kernels for this file's instruction set only
//   HEADWISE_ISA                 names the instruction set this file is compiled for: an inline namespace around all
//   that
//                                computes with rows. So files with different -m flags meet in one program, and none of
//                                them runs another's code; a cache cannot be handed from one to the other (the linker
//                                says so), while plans, scores and views can

#include <cassert>

#ifndef HEADWISE_ASSERT
#define HEADWISE_ASSERT(condition) assert(condition)
#endif

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define HEADWISE_EXCEPTIONS 1
#else
#define HEADWISE_EXCEPTIONS 0
#endif

#if defined(__GNUC__)
#define HEADWISE_COLD __attribute__((cold, noinline))
#else
#define HEADWISE_COLD
#endif

#ifndef HEADWISE_WITH_HIGHWAY
#define HEADWISE_WITH_HIGHWAY 0
#endif

#if defined(__AVX512FP16__) || defined(__AVX512BF16__)
#define HEADWISE_ISA isa_avx512_fp
#elif defined(__AVX512VNNI__)
#define HEADWISE_ISA isa_avx512_vnni
#elif defined(__AVX512F__)
#define HEADWISE_ISA isa_avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define HEADWISE_ISA isa_avx2
#elif defined(__AVX2__)
#define HEADWISE_ISA isa_avx2_without_fma
#elif defined(__AVX__)
#define HEADWISE_ISA isa_avx
#elif defined(__SSE4_1__)
#define HEADWISE_ISA isa_sse4
#elif defined(__ARM_FEATURE_SVE)
#define HEADWISE_ISA isa_sve
#elif defined(__ARM_NEON)
#define HEADWISE_ISA isa_neon
#else
#define HEADWISE_ISA isa_baseline
#endif
