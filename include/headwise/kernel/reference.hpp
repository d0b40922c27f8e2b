// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "headwise/config.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/exponential.hpp"
#include "headwise/kernel/product.hpp"

// The specification of every kernel, in plain C++, and the fallback where no faster one is built.

namespace headwise::kernel::reference {
inline namespace HEADWISE_ISA {

/// Floats that the kernels below need beside their arguments.
constexpr std::size_t scratch_floats(std::size_t queries, std::size_t key_size, std::size_t value_size) noexcept {
  return block_rows * (2 * key_size + value_size + queries);
}

/// logits[query x block_rows] of a block: capped(q.k) + bias. Columns from block.rows on are left alone.
template <class Format>
void block_logits(const Format& format, const row_block& block, const query_block& queries, float* scratch,
                  float* logits) noexcept {
  constexpr std::size_t few = 12;  // from here on turning the keys costs less than it saves (measured)
  const std::size_t dim = queries.key_size;
  float* const keys = scratch;
  format.decode(block.keys, keys, block.rows * dim);
  if (queries.count < few) {
    for (std::size_t query = 0; query < queries.count; ++query)
      for (std::size_t row = 0; row < block.rows; ++row)
        logits[query * block_rows + row] = dot(queries.rows + query * dim, keys + row * dim, dim);
  } else {
    float* const turned = scratch + block_rows * dim;  // a product along the keys needs no sums across lanes
    for (std::size_t i = 0; i < dim; ++i)
      for (std::size_t row = 0; row < block.rows; ++row) turned[i * block_rows + row] = keys[row * dim + i];
    for (std::size_t query = 0; query < queries.count; ++query)
      std::fill_n(logits + query * block_rows, block.rows, 0.0F);
    add_product(queries.count, block.rows, dim, queries.rows, dim, turned, block_rows, logits, block_rows);
  }

  const attention_params& params = *queries.params;
  if (params.softcap == 0.0F && block.bias == 0.0F) return;
  for (std::size_t query = 0; query < queries.count; ++query) {
    float* const row = logits + query * block_rows;
    for (std::size_t i = 0; i < block.rows; ++i) row[i] = params.capped(row[i]) + block.bias;
  }
}

/// Turns the first `rows` logits of one query into weights e^(logit - maximum), raising the maximum and rescaling
/// what came before when a larger logit turns up. Returns the factor of what came before.
/// A NaN among the logits becomes a NaN in the sum.
inline float softmax_row(float* logits, std::size_t rows, float& maximum, float& sum) noexcept {
  float largest = maximum;
  for (std::size_t i = 0; i < rows; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const float factor = exp_nonpositive(maximum - largest);
  float lanes[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= rows; i += 16)
    for (std::size_t lane = 0; lane < 16; ++lane) {
      logits[i + lane] = exp_nonpositive(logits[i + lane] - largest);
      lanes[lane] += logits[i + lane];
    }
  for (std::size_t lane = 0; lane < rows % 16; ++lane) {
    logits[i + lane] = exp_nonpositive(logits[i + lane] - largest);
    lanes[lane] += logits[i + lane];
  }
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  maximum = largest;
  sum = sum * factor + lanes[0];
  return factor;
}

/// Adds a block to the softmax of every query row that sees any of it. Rows that a query does not see are not even
/// multiplied by 0, so what they hold does not matter.
template <class Format>
void attend_block(const Format& format, const row_block& block, const query_block& queries, float* scratch,
                  const softmax_rows& state) noexcept {
  float* const values = scratch + 2 * block_rows * queries.key_size;
  float* const weights = values + block_rows * queries.value_size;
  block_logits(format, block, queries, scratch, weights);
  format.decode(block.values, values, block.rows * queries.value_size);

  const std::size_t value_size = queries.value_size;
  const auto visible = [&](std::size_t query) { return queries.visible(query, block.position, block.rows); };
  for (std::size_t query = 0; query < queries.count; ++query) {
    if (visible(query) == 0) continue;
    float* const out = state.out + query * value_size;
    const float factor =
        softmax_row(weights + query * block_rows, visible(query), state.maximum[query], state.sum[query]);
    if (factor != 1.0F)
      for (std::size_t i = 0; i < value_size; ++i) out[i] *= factor;
  }
  for (std::size_t first = 0, last = 0; first < queries.count; first = last) {  // queries that see equally far
    while (last < queries.count && visible(last) == visible(first)) ++last;
    add_product(last - first, value_size, visible(first), weights + first * block_rows, block_rows, values, value_size,
                state.out + first * value_size, value_size);
  }
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel::reference
