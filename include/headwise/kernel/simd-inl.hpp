// SPDX-License-Identifier: MIT
// The kernels of one instruction set, in Highway: the table of what the parts in simd/ compute. simd.hpp includes this
// file once per set; nobody else does.

#if defined(HEADWISE_SIMD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_INL
#undef HEADWISE_SIMD_INL
#else
#define HEADWISE_SIMD_INL
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "headwise/core/token_view.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/functions.hpp"
#include "headwise/kernel/simd/few_queries-inl.hpp"
#include "headwise/kernel/simd/many_queries-inl.hpp"
#include "headwise/kernel/simd/product-inl.hpp"
#include "headwise/kernel/simd/rows-inl.hpp"
#include "headwise/kernel/simd/sums-inl.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// Few queries are bound by memory, many by arithmetic. The softmax alone is promised the sums of add_product.
template <class Rows>
void attend_rows(const row_block* runs, std::size_t count, std::size_t ahead, const query_block& queries,
                 float* scratch, const softmax_rows& state, weight_strip* strip) {
  if (queries.count <= few_queries && strip == nullptr && queries.value_size != 0)
    attend_few<Rows>(runs, count, ahead, queries, state);
  else
    attend_many<Rows>(runs, count, queries, scratch, state, strip);
}

/// functions::attend
inline void attend(element_type type, const row_block* runs, std::size_t count, std::size_t ahead,
                   const query_block& queries, float* scratch, const softmax_rows& state, weight_strip* strip) {
  if (queries.count == 0) return;
  switch (type) {
    case element_type::f32: return attend_rows<f32_rows>(runs, count, ahead, queries, scratch, state, strip);
    case element_type::f16: return attend_rows<f16_rows>(runs, count, ahead, queries, scratch, state, strip);
    case element_type::bf16: return attend_rows<bf16_rows>(runs, count, ahead, queries, scratch, state, strip);
  }
}

inline const functions& table() {
  constexpr const char* name = &HWY_STR(HWY_NAMESPACE)[2];  // without "N_"
  static constexpr functions kernels{name,   8,   scratch_floats, attend,   strip_floats, received, widen,
                                     narrow, dot, add_product,    add_rows, dot_sums};
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#undef HEADWISE_SIMD_HERE
#undef HEADWISE_SIMD_UNROLL
#endif  // toggle
