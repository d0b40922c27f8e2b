// SPDX-License-Identifier: MIT
// A panel: as many queries as the widest tile of a product has columns, against the rows of a block.

#if defined(HEADWISE_SIMD_PANEL) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_PANEL
#undef HEADWISE_SIMD_PANEL
#else
#define HEADWISE_SIMD_PANEL
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "headwise/core/key_range.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/simd/product-inl.hpp"
#include "headwise/kernel/simd/seen_rows-inl.hpp"
#include "headwise/kernel/simd/softmax-inl.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// Turns a panel's logits [row][query] of the first `rows` rows of a block into weights; `count` queries from `first`
/// on, in Columns vectors. The factors of what came before go to `factor`. Lanes are queries, so maxima and sums need
/// no shuffles.
template <std::size_t Columns>
HWY_NOINLINE void softmax_panel(float* logits, const seen_rows& block, std::size_t rows, const query_block& queries,
                                std::size_t first, std::size_t count, float* maximum, float* sum, float* factor) {
  const tag d;
  const float softcap = queries.params->softcap;
  HWY_ALIGN std::int32_t begin[Columns * lanes];  // rows that each query sees
  HWY_ALIGN std::int32_t end[Columns * lanes];
  bool every[Columns];  // whether every lane of a vector sees every row
  for (std::size_t c = 0; c < Columns; ++c) every[c] = true;
  for (std::size_t q = 0; q < Columns * lanes; ++q) {
    const bool same = q != 0 && q < count && (first + q) % queries.group != 0;  // as the query before: of one token
    const key_range own = q >= count ? key_range{0, rows}
                          : same
                              ? key_range{static_cast<std::size_t>(begin[q - 1]), static_cast<std::size_t>(end[q - 1])}
                              : block.seen(queries.sees[(first + q) / queries.group]);
    begin[q] = static_cast<std::int32_t>(own.begin);
    end[q] = static_cast<std::int32_t>(own.end);
    if (own.begin != 0 || own.end < rows) every[q / lanes] = false;
  }
  const hn::RebindToSigned<tag> integer;
  HEADWISE_SIMD_UNROLL
  for (std::size_t c = 0; c < Columns; ++c) {
    const bool all = every[c];
    float* const column = logits + c * lanes;
    const vector old = hn::Load(d, maximum + c * lanes);
    vector largest = old;
    for (std::size_t r = 0; r < rows; ++r) {
      vector x = hn::LoadU(d, column + r * panel_width);
      if (softcap > 0.0F || block.biased || !all) {
        if (softcap > 0.0F) x = capped(x, softcap);
        if (block.biased) x = hn::Add(x, hn::Set(d, block.bias[r]));
        if (!all) {
          const auto row = hn::Set(integer, static_cast<std::int32_t>(r));
          const auto seen = hn::AndNot(hn::Lt(row, hn::Load(integer, begin + c * lanes)),
                                       hn::Lt(row, hn::Load(integer, end + c * lanes)));
          x = hn::IfThenElse(hn::RebindMask(d, seen), x, hn::Set(d, lowest_logit));
        }
        hn::StoreU(x, d, column + r * panel_width);
      }
      largest = larger(largest, x);
    }
    const vector scale = exp_nonpositive(hn::Sub(old, largest));
    vector total = hn::Zero(d);
    for (std::size_t r = 0; r < rows; ++r) {
      vector weight = exp_nonpositive(hn::Sub(hn::LoadU(d, column + r * panel_width), largest));
      if (!all) {
        const auto row = hn::Set(integer, static_cast<std::int32_t>(r));
        const auto seen = hn::AndNot(hn::Lt(row, hn::Load(integer, begin + c * lanes)),
                                     hn::Lt(row, hn::Load(integer, end + c * lanes)));
        weight = hn::IfThenElseZero(hn::RebindMask(d, seen), weight);
      }
      hn::StoreU(weight, d, column + r * panel_width);
      total = hn::Add(total, weight);
    }
    hn::Store(largest, d, maximum + c * lanes);
    hn::Store(hn::MulAdd(hn::Load(d, sum + c * lanes), scale, total), d, sum + c * lanes);
    hn::Store(scale, d, factor + c * lanes);
  }
}

/// out = factor out + weights^T values for `count` queries of a panel, from `first` on. Tiles of queries that see
/// different rows add the rows that all of them see together, and the others one query at a time.
inline void add_panel_values(const seen_rows& block, const query_block& queries, std::size_t first, std::size_t count,
                             const float* weights, const float* factor, const float* values, float* out) {
  const std::size_t width = queries.value_size;
  const auto seen = [&](std::size_t q) { return block.seen(queries.sees[(first + q) / queries.group]); };
  const key_range& earliest = queries.sees[first / queries.group];
  const key_range& latest = queries.sees[(first + count - 1) / queries.group];
  if (latest.begin <= block.first_position() && earliest.end > block.last_position()) {
    scale_add_product(count, width, block.count, weights, 1, panel_width, values, width, out, width, factor);
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
      scale_add_product(1, width, rows, weights + own.begin * panel_width + i, 1, panel_width,
                        values + own.begin * width, width, out + i * width, width, factor + i);
    }
    if (common.begin < common.end)
      scale_add_product(end - q, width, common.end - common.begin, weights + common.begin * panel_width + q, 1,
                        panel_width, values + common.begin * width, width, out + q * width, width, one);
    for (std::size_t i = q; i < end; ++i) {  // and behind them
      const key_range own = seen(i);
      const std::size_t from = own.begin > common.end ? own.begin : common.end;
      if (from < own.end)
        scale_add_product(1, width, own.end - from, weights + from * panel_width + i, 1, panel_width,
                          values + from * width, width, out + i * width, width, one);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
