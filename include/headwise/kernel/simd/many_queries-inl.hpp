// SPDX-License-Identifier: MIT
// Attention of many queries, as in prefill: products of matrices, panel by panel, bound by arithmetic.

#if defined(HEADWISE_SIMD_MANY_QUERIES) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_MANY_QUERIES
#undef HEADWISE_SIMD_MANY_QUERIES
#else
#define HEADWISE_SIMD_MANY_QUERIES
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "headwise/core/key_range.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/simd/panel-inl.hpp"
#include "headwise/kernel/simd/product-inl.hpp"
#include "headwise/kernel/simd/rows-inl.hpp"
#include "headwise/kernel/simd/seen_rows-inl.hpp"
#include "headwise/kernel/simd/softmax-inl.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// Queries in whole panels.
constexpr std::size_t padded(std::size_t queries) { return (queries + panel_width - 1) / panel_width * panel_width; }

/// functions::scratch_floats: what attend_many lays out, and gaps before the four arrays that begin on a cache line.
inline std::size_t scratch_floats(std::size_t queries, std::size_t key_size, std::size_t value_size) {
  return padded(queries) * key_size + block_rows * (key_size + value_size + panel_width) + 3 * panel_width + 4 * 16;
}

inline float* aligned(float* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return p + ((64 - address % 64) % 64) / sizeof(float);
}

/// functions::strip_floats. An entry of a strip is the weights [panel][row][query of the panel], then the maxima that
/// they are relative to [query, in whole panels], then how many rows they are of.
inline std::size_t strip_floats(std::size_t queries) { return padded(queries) * (block_rows + 1) + lanes; }

/// functions::received
inline void received(const float* entry, std::size_t queries, const softmax_rows& state, float* received) {
  const tag d;
  const float* const maximum = entry + padded(queries) * block_rows;
  const auto rows = static_cast<std::size_t>(maximum[padded(queries)]);
  for (std::size_t r = 0; r < rows; ++r) received[r] = 0.0F;
  HWY_ALIGN float share[panel_width];
  for (std::size_t first = 0; first < queries; first += panel_width) {
    for (std::size_t q = 0; q < panel_width; ++q) {
      const bool real = first + q < queries && state.sum[first + q] != 0.0F;
      share[q] = real ? maximum[first + q] - state.maximum[first + q] : lowest_logit;
    }
    for (std::size_t q = 0; q < panel_width; q += lanes)
      hn::Store(exp_nonpositive(hn::Load(d, share + q)), d, share + q);
    for (std::size_t q = 0; q < panel_width; ++q)
      if (first + q < queries && state.sum[first + q] != 0.0F) share[q] /= state.sum[first + q];
    for (std::size_t r = 0; r < rows; ++r) {
      vector sum = hn::Zero(d);
      for (std::size_t q = 0; q < panel_width; q += lanes)
        sum = hn::MulAdd(hn::LoadU(d, entry + first * block_rows + r * panel_width + q), hn::Load(d, share + q), sum);
      received[r] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

/// functions::attend for any number of queries, and where a strip keeps the weights: a block's rows become float32, and
/// then panel after panel of queries passes over them.
template <class Rows>
void attend_many(const row_block* runs, std::size_t count, const query_block& queries, float* scratch,
                 const softmax_rows& state, weight_strip* strip) {
  const std::size_t key_size = queries.key_size;
  const std::size_t value_size = queries.value_size;
  float* const turned = aligned(scratch);  // [panel][key element][query]: the right side of products with the keys
  float* const scratch_weights = aligned(turned + padded(queries.count) * key_size);  // [row][query] of a panel
  float* const maximum = scratch_weights + block_rows * panel_width;                  // [query] of it, as the next two
  float* const sum = maximum + panel_width;
  float* const factor = sum + panel_width;
  float* const keys = aligned(factor + panel_width);  // [row][element] of a block, as the values
  float* const values = aligned(keys + block_rows * key_size);
  for (std::size_t first = 0; first < queries.count; first += panel_width)
    for (std::size_t q = 0; q < panel_width; ++q)
      for (std::size_t k = 0; k < key_size; ++k)
        turned[first * key_size + k * panel_width + q] =
            first + q < queries.count ? queries.rows[(first + q) * key_size + k] : 0.0F;

  seen_rows block;
  const std::size_t tokens = queries.count / queries.group;
  const key_range any{queries.sees[0].begin, queries.sees[tokens - 1].end};
  for (std::size_t i = 0, end = 0; i < count; i = end) {
    end = strip == nullptr ? block_end(runs, i, count) : i + 1;  // an entry per run
    block.gather(runs + i, end - i, any, key_size * Rows::bytes, value_size * Rows::bytes);
    if (block.count == 0) continue;
    for (std::size_t r = 0; r < block.count; ++r) {
      widen_row<Rows>(block.keys[r], key_size, keys + r * key_size);
      widen_row<Rows>(block.values[r], value_size, values + r * value_size);
    }
    float* const entry = strip == nullptr ? nullptr : strip->data + strip->blocks++ * strip_floats(queries.count);
    float* const entry_maximum = entry == nullptr ? nullptr : entry + padded(queries.count) * block_rows;
    if (entry != nullptr) entry_maximum[padded(queries.count)] = static_cast<float>(block.count);
    for (std::size_t first = 0; first < queries.count; first += panel_width) {
      const std::size_t width = queries.count - first < panel_width ? queries.count - first : panel_width;
      float* const weights = entry == nullptr ? scratch_weights : entry + first * block_rows;
      const key_range seen{block.seen(queries.sees[first / queries.group]).begin,
                           block.seen(queries.sees[(first + width - 1) / queries.group]).end};
      if (entry != nullptr) {
        if (seen.begin >= seen.end || width != panel_width || seen.end != block.count)  // what no product reaches
          std::memset(weights, 0, block_rows * panel_width * sizeof(float));
        for (std::size_t q = 0; q < panel_width; ++q) entry_maximum[first + q] = lowest_logit;
      }
      if (seen.begin >= seen.end) continue;
      const float* const right = turned + first * key_size;
      for (std::size_t q = 0; q < panel_width; ++q) {
        maximum[q] = q < width ? state.maximum[first + q] : lowest_logit;
        sum[q] = q < width ? state.sum[first + q] : 0.0F;
      }
      const auto logits_and_softmax = [&](auto vectors) {
        constexpr std::size_t n = decltype(vectors)::value;
        product_panel<n>(seen.end, key_size, keys, key_size, right, panel_width, weights, panel_width);
        softmax_panel<n>(weights, block, seen.end, queries, first, width, maximum, sum, factor);
      };
      const std::size_t vectors = (width + lanes - 1) / lanes;
      if constexpr (tile_columns == 4) {
        if (vectors == 4) logits_and_softmax(std::integral_constant<std::size_t, 4>{});
        if (vectors == 3) logits_and_softmax(std::integral_constant<std::size_t, 3>{});
      }
      if (vectors == 2) logits_and_softmax(std::integral_constant<std::size_t, 2>{});
      if (vectors == 1) logits_and_softmax(std::integral_constant<std::size_t, 1>{});
      add_panel_values(block, queries, first, width, weights, factor, values, state.out + first * value_size);
      for (std::size_t q = 0; q < width; ++q) {
        state.maximum[first + q] = maximum[q];
        state.sum[first + q] = sum[q];
        if (entry != nullptr) entry_maximum[first + q] = maximum[q];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
