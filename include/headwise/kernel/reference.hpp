// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "headwise/config.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/exponential.hpp"
#include "headwise/kernel/functions.hpp"
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
  if (queries.count < few && queries.value_size != 0) {
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

/// A strip's entry: weights[query x block_rows], the maxima they are relative to, and how many rows any query saw.
constexpr std::size_t strip_floats(std::size_t queries) noexcept { return queries * (block_rows + 1) + 1; }

/// The attention that each row of an entry received, once the queries' softmax is complete.
inline void received(const float* entry, std::size_t queries, const softmax_rows& state, float* received) noexcept {
  const float* const maximum = entry + queries * block_rows;
  const auto rows = static_cast<std::size_t>(maximum[queries]);
  std::fill_n(received, rows, 0.0F);
  for (std::size_t query = 0; query < queries; ++query) {
    if (state.sum[query] == 0.0F) continue;
    const float share = exp_nonpositive(maximum[query] - state.maximum[query]) / state.sum[query];
    for (std::size_t row = 0; row < rows; ++row) received[row] += share * entry[query * block_rows + row];
  }
}

/// Adds a block to the softmax of every query row that sees any of it. Rows that a query does not see are not even
/// multiplied by 0, so what they hold does not matter.
template <class Format>
void attend_block(const Format& format, const row_block& block, const query_block& queries, float* scratch,
                  const softmax_rows& state, weight_strip* strip = nullptr) noexcept {
  if (queries.count == 0) return;
  float* const values = scratch + 2 * block_rows * queries.key_size;
  float* const weights = values + block_rows * queries.value_size;
  block_logits(format, block, queries, scratch, weights);
  format.decode(block.values, values, block.rows * queries.value_size);

  const std::size_t value_size = queries.value_size;
  const auto visible = [&](std::size_t query) { return queries.visible(query, block.position, block.rows); };
  for (std::size_t query = 0; query < queries.count; ++query) {
    const key_range seen = visible(query);
    if (seen.begin >= seen.end) continue;
    float* const out = state.out + query * value_size;
    const float factor = softmax_row(weights + query * block_rows + seen.begin, seen.end - seen.begin,
                                     state.maximum[query], state.sum[query]);
    if (factor != 1.0F)
      for (std::size_t i = 0; i < value_size; ++i) out[i] *= factor;
  }
  const key_range any{visible(0).begin, visible(queries.count - 1).end};
  if (strip != nullptr && any.begin < any.end) {
    float* const entry = strip->data + strip->blocks++ * strip_floats(queries.count);
    float* const maximum = entry + queries.count * block_rows;
    for (std::size_t query = 0; query < queries.count; ++query) {
      const key_range seen = visible(query);
      for (std::size_t row = any.begin; row < any.end; ++row)
        entry[query * block_rows + row - any.begin] =
            row >= seen.begin && row < seen.end ? weights[query * block_rows + row] : 0.0F;
      maximum[query] = state.maximum[query];
    }
    maximum[queries.count] = static_cast<float>(any.end - any.begin);
  }
  for (std::size_t first = 0, last = 0; first < queries.count; first = last) {  // queries that see equally far
    const key_range seen = visible(first);
    while (last < queries.count && visible(last) == seen) ++last;
    if (seen.begin < seen.end)
      add_product(last - first, value_size, seen.end - seen.begin, weights + first * block_rows + seen.begin,
                  block_rows, values + seen.begin * value_size, value_size, state.out + first * value_size, value_size);
  }
}

/// Calls visit(format) with the format that stores elements of a type.
template <class Visit>
void with_format(element_type type, Visit&& visit) {
  switch (type) {
    case element_type::f32: return visit(float32{});
    case element_type::f16: return visit(float16{});
    case element_type::bf16: return visit(bfloat16{});
  }
}

/// The reference as a table of kernels.
inline const functions& table() noexcept {
  static constexpr functions kernels{
      "reference",
      1,
      [](std::size_t queries, std::size_t key_size, std::size_t value_size) {
        return scratch_floats(queries, key_size, value_size);
      },
      [](element_type type, const row_block* runs, std::size_t count, std::size_t /*ahead*/, const query_block& queries,
         float* scratch, const softmax_rows& state, weight_strip* strip) {
        with_format(type, [&](const auto& format) {
          for (std::size_t i = 0; i < count; ++i) attend_block(format, runs[i], queries, scratch, state, strip);
        });
      },
      [](std::size_t queries) { return strip_floats(queries); },
      received,
      [](element_type type, const void* elements, float* floats, std::size_t count) {
        with_format(type,
                    [&](const auto& format) { format.decode(static_cast<const std::byte*>(elements), floats, count); });
      },
      [](element_type type, const float* floats, void* elements, std::size_t count) {
        with_format(type, [&](const auto& format) { format.encode(floats, static_cast<std::byte*>(elements), count); });
      },
      dot,
      add_product,
      add_rows,
      dot_sums};
  return kernels;
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel::reference
