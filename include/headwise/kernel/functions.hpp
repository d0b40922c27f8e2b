// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "headwise/core/token_view.hpp"
#include "headwise/kernel/block.hpp"

namespace headwise::kernel {

/// The kernels of one instruction set. Every set computes what reference.hpp says, within rounding; the bits of a
/// result depend on its inputs and on the set alone. Rows are float32, float16 or bfloat16.
struct functions {
  /// What Highway calls the set: AVX3 (AVX-512), AVX2, SSE4, NEON; "reference" for plain C++.
  const char* name;

  /// Head sizes must be multiples of this.
  std::size_t size_unit;

  /// Floats that attend needs beside its arguments.
  std::size_t (*scratch_floats)(std::size_t queries, std::size_t key_size, std::size_t value_size);

  /// Adds `count` runs of rows, in the order of position, to the softmax of every query row that sees any of them.
  /// Rows that a query does not see are not even multiplied by 0, so what they hold does not matter.
  /// `ahead`: how many more runs lie behind those, to be fetched early because they are needed next.
  /// Without values (value_size 0) it gives the softmax alone; each q.k is then summed as add_product does.
  /// A `strip` (or nullptr) also keeps the weights, an entry for each run that any query sees.
  void (*attend)(element_type rows, const row_block* runs, std::size_t count, std::size_t ahead,
                 const query_block& queries, float* scratch, const softmax_rows& state, weight_strip* strip);

  /// Floats of one entry of a strip.
  std::size_t (*strip_floats)(std::size_t queries);
  /// The attention that each row of an entry received in all, once `state` is that of whole queries: to `received`,
  /// one number for each row that any query could see, in the order of the runs.
  void (*received)(const float* entry, std::size_t queries, const softmax_rows& state, float* received);

  /// `count` elements of a caller's tensor or of stored rows as float32.
  void (*widen)(element_type type, const void* elements, float* floats, std::size_t count);
  /// The inverse, rounded to nearest even; finite numbers beyond float16 saturate.
  void (*narrow)(element_type type, const float* floats, void* elements, std::size_t count);

  /// a . b
  float (*dot)(const float* a, const float* b, std::size_t size);
  /// c[rows x columns] += a[rows x depth] b[depth x columns]; a may be read with any two strides.
  void (*add_product)(std::size_t rows, std::size_t columns, std::size_t depth, const float* a, std::size_t a_row,
                      std::size_t a_depth, const float* b, std::size_t b_stride, float* c, std::size_t c_stride);

  /// sums[size] += the rows of [rows x size], one after another, in float64.
  void (*add_rows)(const float* rows, std::size_t count, std::size_t size, double* sums);
  /// a . b in float64
  double (*dot_sums)(const float* a, const double* b, std::size_t size);
};

/// simd_functions (kernel/simd.hpp) of the one file of the program that defines HEADWISE_KERNELS_HERE.
const functions* linked_functions(std::int64_t allowed) noexcept;

}  // namespace headwise::kernel
