// SPDX-License-Identifier: MIT
// Attention of many queries: products of matrices.

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

inline std::size_t scratch_floats(std::size_t queries, std::size_t key_size, std::size_t value_size) {
  return padded(queries) * key_size + block_rows * (key_size + value_size + panel) + 3 * panel + 4 * 16;
}

/// out = factor out + weights^T values for the queries of a panel. Tiles of queries that see different rows add the
/// rows that all of them see together, and the others one query at a time.
inline void add_panel(const seen_rows& block, const query_block& queries, std::size_t first, std::size_t count,
                      const float* weights, const float* factor, const float* values, float* out) {
  const std::size_t width = queries.value_size;
  const auto seen = [&](std::size_t q) { return block.seen(queries.sees[(first + q) / queries.group]); };
  const key_range& earliest = queries.sees[first / queries.group];
  const key_range& latest = queries.sees[(first + count - 1) / queries.group];
  if (latest.begin <= block.first_position() && earliest.end > block.last_position()) {
    add_product(count, width, block.count, weights, 1, panel, values, width, out, width, factor);
    return;
  }
  constexpr float one[6] = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
  for (std::size_t q = 0, end = 0; q < count; q = end) {
    end = q + 6 < count ? q + 6 : count;
    const key_range early = seen(q);
    const key_range late = seen(end - 1);
    key_range common{late.begin, early.end};
    if (common.begin >= common.end) common = {late.end, late.end};  // each on its own, all of its rows first
    for (std::size_t i = q; i < end; ++i) {                         // rows before the common ones
      const key_range own = seen(i);
      const std::size_t until = own.end < common.begin ? own.end : common.begin;
      const std::size_t rows = until > own.begin ? until - own.begin : 0;
      add_product(1, width, rows, weights + own.begin * panel + i, 1, panel, values + own.begin * width, width,
                  out + i * width, width, factor + i);
    }
    if (common.begin < common.end)
      add_product(end - q, width, common.end - common.begin, weights + common.begin * panel + q, 1, panel,
                  values + common.begin * width, width, out + q * width, width, one);
    for (std::size_t i = q; i < end; ++i) {  // and behind them
      const key_range own = seen(i);
      const std::size_t from = own.begin > common.end ? own.begin : common.end;
      if (from < own.end)
        add_product(1, width, own.end - from, weights + from * panel + i, 1, panel, values + from * width, width,
                    out + i * width, width, one);
    }
  }
}

inline float* aligned(float* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return p + ((64 - address % 64) % 64) / sizeof(float);
}

/// A strip's entry: weights [panel][row][query of the panel], the maxima they are relative to, and how many rows.
inline std::size_t strip_floats(std::size_t queries) { return padded(queries) * (block_rows + 1) + lanes; }

inline void received(const float* entry, std::size_t queries, const softmax_rows& state, float* received) {
  const tag d;
  const float* const maximum = entry + padded(queries) * block_rows;
  const auto rows = static_cast<std::size_t>(maximum[padded(queries)]);
  for (std::size_t r = 0; r < rows; ++r) received[r] = 0.0F;
  HWY_ALIGN float share[panel];
  for (std::size_t first = 0; first < queries; first += panel) {
    for (std::size_t q = 0; q < panel; ++q) {
      const bool real = first + q < queries && state.sum[first + q] != 0.0F;
      share[q] = real ? maximum[first + q] - state.maximum[first + q] : lowest_logit;
    }
    for (std::size_t q = 0; q < panel; q += lanes) hn::Store(exp_nonpositive(hn::Load(d, share + q)), d, share + q);
    for (std::size_t q = 0; q < panel; ++q)
      if (first + q < queries && state.sum[first + q] != 0.0F) share[q] /= state.sum[first + q];
    for (std::size_t r = 0; r < rows; ++r) {
      vector sum = hn::Zero(d);
      for (std::size_t q = 0; q < panel; q += lanes)
        sum = hn::MulAdd(hn::LoadU(d, entry + first * block_rows + r * panel + q), hn::Load(d, share + q), sum);
      received[r] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

template <class Rows>
void attend_many(const row_block* runs, std::size_t count, const query_block& queries, float* scratch,
                 const softmax_rows& state, weight_strip* strip) {
  const std::size_t key_size = queries.key_size;
  const std::size_t value_size = queries.value_size;
  float* const turned = aligned(scratch);  // [panel][key element][query]: the right side of a product
  float* const scratch_weights = aligned(turned + padded(queries.count) * key_size);
  float* const maximum = scratch_weights + block_rows * panel;
  float* const sum = maximum + panel;
  float* const factor = sum + panel;
  float* const keys = aligned(factor + panel);
  float* const values = aligned(keys + block_rows * key_size);
  for (std::size_t first = 0; first < queries.count; first += panel)
    for (std::size_t q = 0; q < panel; ++q)
      for (std::size_t k = 0; k < key_size; ++k)
        turned[first * key_size + k * panel + q] =
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
    for (std::size_t first = 0; first < queries.count; first += panel) {
      const std::size_t width = queries.count - first < panel ? queries.count - first : panel;
      float* const weights = entry == nullptr ? scratch_weights : entry + first * block_rows;
      const key_range seen{block.seen(queries.sees[first / queries.group]).begin,
                           block.seen(queries.sees[(first + width - 1) / queries.group]).end};
      if (entry != nullptr) {
        if (seen.begin >= seen.end || width != panel || seen.end != block.count)  // what no product reaches
          std::memset(weights, 0, block_rows * panel * sizeof(float));
        for (std::size_t q = 0; q < panel; ++q) entry_maximum[first + q] = lowest_logit;
      }
      if (seen.begin >= seen.end) continue;
      const float* const right = turned + first * key_size;
      for (std::size_t q = 0; q < panel; ++q) {
        maximum[q] = q < width ? state.maximum[first + q] : lowest_logit;
        sum[q] = q < width ? state.sum[first + q] : 0.0F;
      }
      const auto logits_and_softmax = [&](auto vectors) {
        constexpr std::size_t n = decltype(vectors)::value;
        product_panel<n>(seen.end, key_size, keys, key_size, right, panel, weights, panel);
        softmax_panel<n>(weights, block, seen.end, queries, first, width, maximum, sum, factor);
      };
      const std::size_t vectors = (width + lanes - 1) / lanes;
      if constexpr (columns == 4) {
        if (vectors == 4) logits_and_softmax(std::integral_constant<std::size_t, 4>{});
        if (vectors == 3) logits_and_softmax(std::integral_constant<std::size_t, 3>{});
      }
      if (vectors == 2) logits_and_softmax(std::integral_constant<std::size_t, 2>{});
      if (vectors == 1) logits_and_softmax(std::integral_constant<std::size_t, 1>{});
      add_panel(block, queries, first, width, weights, factor, values, state.out + first * value_size);
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
