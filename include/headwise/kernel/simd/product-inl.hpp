// SPDX-License-Identifier: MIT
// Products of matrices: tiles of sums that stay in registers.

#if defined(HEADWISE_SIMD_PRODUCT) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_PRODUCT
#undef HEADWISE_SIMD_PRODUCT
#else
#define HEADWISE_SIMD_PRODUCT
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "headwise/kernel/simd/rows-inl.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

constexpr std::size_t tile_columns = registers == 32 ? 4 : 2;  // vectors of the widest tile
constexpr std::size_t panel_width = tile_columns * lanes;      // floats of it

enum class into { store, add };

/// c[Rows x Columns vectors] = a[Rows x depth] b[depth x Columns vectors]; or c = factor c + that, with a factor per
/// row or, where it is nullptr, 1. Element (i, k) of a is a[i * a_row + k * a_depth].
template <into Into, std::size_t Rows, std::size_t Columns, part Part = part::whole>
HWY_INLINE void product_tile(std::size_t depth, const float* a, std::size_t a_row, std::size_t a_depth, const float* b,
                             std::size_t b_stride, float* c, std::size_t c_stride, const float* factor) {
  const tag d;
  vector sum[Rows * Columns];
  HEADWISE_SIMD_UNROLL
  for (std::size_t i = 0; i < Rows * Columns; ++i) sum[i] = hn::Zero(d);
  for (std::size_t k = 0; k < depth; ++k) {
    vector right[Columns];
    HEADWISE_SIMD_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) right[j] = load<Part>(b + k * b_stride + j * lanes);
    HEADWISE_SIMD_UNROLL
    for (std::size_t i = 0; i < Rows; ++i) {
      const vector left = hn::Set(d, a[i * a_row + k * a_depth]);
      HEADWISE_SIMD_UNROLL
      for (std::size_t j = 0; j < Columns; ++j) sum[i * Columns + j] = hn::MulAdd(left, right[j], sum[i * Columns + j]);
    }
  }
  HEADWISE_SIMD_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
    HEADWISE_SIMD_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      float* const at = c + i * c_stride + j * lanes;
      if constexpr (Into == into::store)
        store<Part>(sum[i * Columns + j], at);
      else if (factor == nullptr)
        store<Part>(hn::Add(load<Part>(at), sum[i * Columns + j]), at);
      else
        store<Part>(hn::MulAdd(load<Part>(at), hn::Set(d, factor[i]), sum[i * Columns + j]), at);
    }
  }
}

/// Rows of a tile of Columns vectors that fills the registers.
template <std::size_t Columns>
constexpr std::size_t tile_rows = registers == 32 ? (Columns == 4   ? 6
                                                     : Columns == 3 ? 8
                                                     : Columns == 2 ? 12
                                                                    : 16)
                                                  : (Columns == 2 ? 6 : 12);

/// c[rows x Columns vectors] = a[rows x depth] b[depth x Columns vectors]: one panel of a product.
template <std::size_t Columns>
HWY_NOINLINE void product_panel(std::size_t rows, std::size_t depth, const float* a, std::size_t a_row, const float* b,
                                std::size_t b_stride, float* c, std::size_t c_stride) {
  constexpr std::size_t step = tile_rows<Columns>;
  std::size_t i = 0;
  for (; i + step <= rows; i += step)
    product_tile<into::store, step, Columns>(depth, a + i * a_row, a_row, 1, b, b_stride, c + i * c_stride, c_stride,
                                             nullptr);
  for (; i + 4 <= rows; i += 4)
    product_tile<into::store, 4, Columns>(depth, a + i * a_row, a_row, 1, b, b_stride, c + i * c_stride, c_stride,
                                          nullptr);
  for (; i < rows; ++i)
    product_tile<into::store, 1, Columns>(depth, a + i * a_row, a_row, 1, b, b_stride, c + i * c_stride, c_stride,
                                          nullptr);
}

/// c[Rows x width] = factor c + a[Rows x depth] b[depth x width]; `width`: a multiple of 8.
template <std::size_t Rows>
HWY_NOINLINE void scale_add_product_rows(std::size_t width, std::size_t depth, const float* a, std::size_t a_row,
                                         std::size_t a_depth, const float* b, std::size_t b_stride, float* c,
                                         std::size_t c_stride, const float* factor) {
  std::size_t j = 0;
  for (; j + panel_width <= width; j += panel_width)
    product_tile<into::add, Rows, tile_columns>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
  if (tile_columns == 4 && j + 2 * lanes <= width) {
    product_tile<into::add, Rows, 2>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
    j += 2 * lanes;
  }
  for (; j + lanes <= width; j += lanes)
    product_tile<into::add, Rows, 1>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
  if (lanes == 16 && j != width)
    product_tile<into::add, Rows, 1, part::last_eight>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride,
                                                       factor);
}

/// The same for any number of rows.
inline void scale_add_product(std::size_t rows, std::size_t width, std::size_t depth, const float* a, std::size_t a_row,
                              std::size_t a_depth, const float* b, std::size_t b_stride, float* c, std::size_t c_stride,
                              const float* factor) {
  std::size_t i = 0;
  const auto at = [&](const float* p) { return p == nullptr ? nullptr : p + i; };
  for (; i + 6 <= rows; i += 6)
    scale_add_product_rows<6>(width, depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride, c_stride,
                              at(factor));
  for (; i + 2 <= rows; i += 2)
    scale_add_product_rows<2>(width, depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride, c_stride,
                              at(factor));
  for (; i < rows; ++i)
    scale_add_product_rows<1>(width, depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride, c_stride,
                              at(factor));
}

/// functions::add_product, of any width.
inline void add_product(std::size_t rows, std::size_t width, std::size_t depth, const float* a, std::size_t a_row,
                        std::size_t a_depth, const float* b, std::size_t b_stride, float* c, std::size_t c_stride) {
  const std::size_t whole = width / 8 * 8;
  scale_add_product(rows, whole, depth, a, a_row, a_depth, b, b_stride, c, c_stride, nullptr);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = whole; j < width; ++j) {
      float sum = 0.0F;
      for (std::size_t k = 0; k < depth; ++k) sum += a[i * a_row + k * a_depth] * b[k * b_stride + j];
      c[i * c_stride + j] += sum;
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
