// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "headwise/config.hpp"

namespace headwise::kernel {
inline namespace HEADWISE_ISA {

/// a.b with 16 running sums, which fit any vector unit and keep the error of long rows small.
inline float dot(const float* a, const float* b, std::size_t size) noexcept {
  float lanes[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= size; i += 16)
    for (std::size_t lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (std::size_t lane = 0; lane < size % 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

/// a b + c. Said outright where there is an instruction for it: left to themselves, compilers contract one loop and not
/// another, and the bits of a row would depend on the rows beside it.
inline float multiply_add(float a, float b, float c) noexcept {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// c[rows x Columns] += a[rows x depth] b[depth x Columns], one tile that stays in registers.
template <std::size_t Rows, std::size_t Columns>
inline void product_tile(std::size_t depth, const float* a, std::size_t a_row, std::size_t a_depth, const float* b,
                         std::size_t b_stride, float* c, std::size_t c_stride) noexcept {
  float sum[Rows][Columns] = {};
  for (std::size_t k = 0; k < depth; ++k)
    for (std::size_t i = 0; i < Rows; ++i) {
      const float factor = a[i * a_row + k * a_depth];
      for (std::size_t j = 0; j < Columns; ++j) sum[i][j] = multiply_add(factor, b[k * b_stride + j], sum[i][j]);
    }
  for (std::size_t i = 0; i < Rows; ++i)
    for (std::size_t j = 0; j < Columns; ++j) c[i * c_stride + j] += sum[i][j];
}

template <std::size_t Rows>
inline void product_rows(std::size_t columns, std::size_t depth, const float* a, std::size_t a_row, std::size_t a_depth,
                         const float* b, std::size_t b_stride, float* c, std::size_t c_stride) noexcept {
  std::size_t j = 0;
  for (; j + 32 <= columns; j += 32) product_tile<Rows, 32>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride);
  for (; j + 8 <= columns; j += 8) product_tile<Rows, 8>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride);
  for (; j < columns; ++j) product_tile<Rows, 1>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride);
}

/// c[rows x columns] += a[rows x depth] b[depth x columns]: element (i, k) of a is a[i * a_row + k * a_depth], b and c
/// are row-major with the given strides.
/// Each element is summed over k in order, so its bits do not depend on the other rows, and then added to c: over many
/// calls the rounding errors grow with their number and not with the number of all rows.
inline void add_product(std::size_t rows, std::size_t columns, std::size_t depth, const float* a, std::size_t a_row,
                        std::size_t a_depth, const float* b, std::size_t b_stride, float* c,
                        std::size_t c_stride) noexcept {
  for (std::size_t tile = 0; tile < rows / 4; ++tile, a += 4 * a_row, c += 4 * c_stride)
    product_rows<4>(columns, depth, a, a_row, a_depth, b, b_stride, c, c_stride);
  for (std::size_t row = 0; row < rows % 4; ++row, a += a_row, c += c_stride)
    product_rows<1>(columns, depth, a, a_row, a_depth, b, b_stride, c, c_stride);
}
inline void add_product(std::size_t rows, std::size_t columns, std::size_t depth, const float* a, std::size_t a_stride,
                        const float* b, std::size_t b_stride, float* c, std::size_t c_stride) noexcept {
  add_product(rows, columns, depth, a, a_stride, 1, b, b_stride, c, c_stride);
}

/// sums[size] += the rows of [rows x size], one after another, in float64.
inline void add_rows(const float* rows, std::size_t count, std::size_t size, double* sums) noexcept {
  for (std::size_t row = 0; row < count; ++row)
    for (std::size_t i = 0; i < size; ++i) sums[i] += static_cast<double>(rows[row * size + i]);
}

/// a . b in float64
inline double dot_sums(const float* a, const double* b, std::size_t size) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
