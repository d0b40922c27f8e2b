// SPDX-License-Identifier: MIT
// Attention of few queries, as in decoding: one pass over the rows for all of them, bound by memory.

#if defined(HEADWISE_SIMD_FEW_QUERIES) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_FEW_QUERIES
#undef HEADWISE_SIMD_FEW_QUERIES
#else
#define HEADWISE_SIMD_FEW_QUERIES
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

#include "headwise/core/key_range.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/simd/rows-inl.hpp"
#include "headwise/kernel/simd/seen_rows-inl.hpp"
#include "headwise/kernel/simd/softmax-inl.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

constexpr std::size_t few_queries = 8;                         // more than these are many
constexpr std::size_t tile_queries = registers == 32 ? 4 : 2;  // whose sums fit the registers

// Measured (AVX-512, d = 128, 4 queries, f16): fetching line by line between the multiplications, into L2, 6 KiB ahead
// in the order of use, takes 1.2 times as long as a plain read; fetching the same lines 4 KiB at once 1.5 times; no
// fetching twice as long. Rows of values that are wider than a tile are taken 4 at a time, so that memory is walked
// nearly in order.
constexpr std::size_t bytes_ahead = 6 * 1024;

/// Fetches cache lines `part`, `part` + Parts ... of the Bytes from `at` on.
template <std::size_t Bytes, std::size_t Parts>
HWY_INLINE void fetch_lines(const std::byte* at, std::size_t part) {
  HEADWISE_SIMD_UNROLL
  for (std::size_t line = 0; line < Bytes; line += 64 * Parts)
    if (line + 64 * part < Bytes) __builtin_prefetch(at + line + 64 * part, 0, 2);
}

/// logits[query][0..3] = queries . rows, where the logits of a query lie block_rows apart. `ahead`: what to fetch
/// meanwhile, as many bytes as the rows have.
template <class Rows, std::size_t Queries>
HWY_INLINE void four_logits(const std::byte* const* rows, std::size_t size, const float* const* queries, float* logits,
                            const std::byte* ahead) {
  constexpr std::size_t sums = (Queries * 4 + lanes - 1) / lanes * lanes;
  vector sum[sums];
  HEADWISE_SIMD_UNROLL
  for (std::size_t s = 0; s < sums; ++s) sum[s] = hn::Zero(tag());
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    vector row[4];
    HEADWISE_SIMD_UNROLL
    for (std::size_t r = 0; r < 4; ++r) row[r] = load<Rows>(rows[r] + i * Rows::bytes);
    HEADWISE_SIMD_UNROLL
    for (std::size_t q = 0; q < Queries; ++q) {
      const vector query = load(queries[q] + i);
      HEADWISE_SIMD_UNROLL
      for (std::size_t r = 0; r < 4; ++r) sum[4 * q + r] = hn::MulAdd(row[r], query, sum[4 * q + r]);
      fetch_lines<4 * lanes * Rows::bytes, Queries>(ahead + 4 * i * Rows::bytes, q);
    }
  }
  if (lanes == 16 && i != size) {
    HEADWISE_SIMD_UNROLL
    for (std::size_t q = 0; q < Queries; ++q) {
      const vector query = load<part::last_eight>(queries[q] + i);
      HEADWISE_SIMD_UNROLL
      for (std::size_t r = 0; r < 4; ++r)
        sum[4 * q + r] = hn::MulAdd(load<Rows, part::last_eight>(rows[r] + i * Rows::bytes), query, sum[4 * q + r]);
    }
  }
  HWY_ALIGN float found[sums];
  HEADWISE_SIMD_UNROLL
  for (std::size_t s = 0; s < sums; s += lanes) hn::Store(sums_of<lanes>(sum + s), tag(), found + s);
  HEADWISE_SIMD_UNROLL
  for (std::size_t q = 0; q < Queries; ++q) std::memcpy(logits + q * block_rows, found + 4 * q, 4 * sizeof(float));
}

/// out[query] = factor[query] out[query] + sum of weights[query][row] rows[row], for Columns vectors from `column` on.
/// `ahead`: what to fetch meanwhile.
template <class Rows, std::size_t Queries, std::size_t Columns, part Part = part::whole>
HWY_INLINE void add_values(const std::byte* const* rows, std::size_t count, std::size_t column, const float* weights,
                           float* const* out, const float* factor, const std::byte* ahead) {
  const tag d;
  vector sum[Queries * Columns];  // of these rows alone: over a long context a single running sum would lose digits
  HEADWISE_SIMD_UNROLL
  for (std::size_t s = 0; s < Queries * Columns; ++s) sum[s] = hn::Zero(d);
  for (std::size_t r = 0; r < count; ++r) {
    vector row[Columns];
    HEADWISE_SIMD_UNROLL
    for (std::size_t c = 0; c < Columns; ++c) row[c] = load<Rows, Part>(rows[r] + (column + c * lanes) * Rows::bytes);
    HEADWISE_SIMD_UNROLL
    for (std::size_t q = 0; q < Queries; ++q) {
      const vector weight = hn::Set(d, weights[q * block_rows + r]);
      HEADWISE_SIMD_UNROLL
      for (std::size_t c = 0; c < Columns; ++c) sum[q * Columns + c] = hn::MulAdd(row[c], weight, sum[q * Columns + c]);
      fetch_lines<Columns * lanes * Rows::bytes, Queries>(ahead + r * Columns * lanes * Rows::bytes, q);
    }
  }
  HEADWISE_SIMD_UNROLL
  for (std::size_t q = 0; q < Queries; ++q) {
    const vector scale = hn::Set(d, factor[q]);
    HEADWISE_SIMD_UNROLL
    for (std::size_t c = 0; c < Columns; ++c) {
      float* const at = out[q] + column + c * lanes;
      store<Part>(hn::MulAdd(load<Part>(at), scale, sum[q * Columns + c]), at);
    }
  }
}

/// What to fetch while a row is at work: the row that is used bytes_ahead later, keys before values before the next
/// block's keys. Addresses alone: the bytes behind the last rows of a page are fetched in vain, and never read.
struct fetch_order {
  const seen_rows& block;
  const std::byte* next_keys;  // or nullptr
  std::size_t key_bytes;
  std::size_t distance;  // in rows, as if all were keys

  fetch_order(const seen_rows& rows, const std::byte* next, std::size_t bytes)
      : block(rows), next_keys(next), key_bytes(bytes), distance(bytes_ahead / bytes / 4 * 4) {
    distance = distance < 4 ? 4 : (distance > block_rows ? block_rows : distance);
  }
  const std::byte* ahead_of_key(std::size_t row) const {
    return row + distance < block.count ? block.keys[row + distance] : ahead_of_value(row - block.count);
  }
  const std::byte* ahead_of_value(std::size_t row) const {  // from -block.count on
    const std::size_t at = row + distance;
    if (at < block.count) return block.values[at];
    return next_keys == nullptr ? block.values[block.count - 1] : next_keys + (at - block.count) * key_bytes;
  }
};

/// Adds a block to the softmax of Queries queries from `first` on. `order`: what to fetch meanwhile, or nullptr.
template <class Rows, std::size_t Queries>
HWY_NOINLINE void attend_tile(const seen_rows& block, const query_block& queries, std::size_t first,
                              const fetch_order* order, const softmax_rows& state) {
  HWY_ALIGN float weights[Queries * block_rows];
  const float* query[Queries];
  float* out[Queries];
  float factor[Queries];
  for (std::size_t q = 0; q < Queries; ++q) {
    query[q] = queries.rows + (first + q) * queries.key_size;
    out[q] = state.out + (first + q) * queries.value_size;
  }
  for (std::size_t r = 0; r < block.count; r += 4)
    four_logits<Rows, Queries>(block.keys + r, queries.key_size, query, weights + r,
                               order != nullptr ? order->ahead_of_key(r) : block.keys[r]);
  for (std::size_t q = 0; q < Queries; ++q)
    factor[q] = softmax_row(weights + q * block_rows, block.count, block.biased ? block.bias : nullptr,
                            queries.params->softcap, state.maximum[first + q], state.sum[first + q]);
  const std::size_t value_rows = queries.value_size > 4 * lanes ? 4 : 16;
  for (std::size_t r = 0; r < block.count; r += value_rows) {
    const std::size_t rows = block.count - r < value_rows ? block.count - r : value_rows;
    const std::byte* const* const values = block.values + r;
    const std::byte* const ahead = order != nullptr ? order->ahead_of_value(r) : values[0];
    std::size_t c = 0;
    for (; c + 4 * lanes <= queries.value_size; c += 4 * lanes)
      add_values<Rows, Queries, 4>(values, rows, c, weights + r, out, factor, ahead + c * value_rows * Rows::bytes);
    if (c + 2 * lanes <= queries.value_size) {
      add_values<Rows, Queries, 2>(values, rows, c, weights + r, out, factor, ahead + c * value_rows * Rows::bytes);
      c += 2 * lanes;
    }
    if (c + lanes <= queries.value_size) {
      add_values<Rows, Queries, 1>(values, rows, c, weights + r, out, factor, ahead + c * value_rows * Rows::bytes);
      c += lanes;
    }
    if (lanes == 16 && c != queries.value_size)
      add_values<Rows, Queries, 1, part::last_eight>(values, rows, c, weights + r, out, factor, values[0]);
    for (float& f : factor) f = 1.0F;
  }
}

/// The largest tile of at most `left` queries; returns how many they are.
template <class Rows>
std::size_t attend_largest_tile(std::size_t left, const seen_rows& block, const query_block& queries, std::size_t first,
                                const fetch_order* order, const softmax_rows& state) {
  if constexpr (tile_queries == 4) {
    if (left >= 4) return attend_tile<Rows, 4>(block, queries, first, order, state), 4;
    if (left == 3) return attend_tile<Rows, 3>(block, queries, first, order, state), 3;
  }
  if (left >= 2) return attend_tile<Rows, 2>(block, queries, first, order, state), 2;
  return attend_tile<Rows, 1>(block, queries, first, order, state), 1;
}

/// functions::attend for at most few_queries and values of some size, without a strip.
template <class Rows>
void attend_few(const row_block* runs, std::size_t count, const std::byte* next_keys, const query_block& queries,
                const softmax_rows& state) {
  const std::size_t key_bytes = queries.key_size * Rows::bytes;
  const std::size_t value_bytes = queries.value_size * Rows::bytes;
  seen_rows block;
  for (std::size_t i = 0, end = 0; i < count; i = end) {
    end = block_end(runs, i, count);
    const std::byte* const next = end < count ? runs[end].keys : next_keys;
    const std::size_t start = runs[i].position / block_rows * block_rows;
    const std::size_t tokens = queries.count / queries.group;
    for (std::size_t token = 0, last = 0; token < tokens; token = last) {  // tokens that see the same rows
      const key_range range = queries.sees[token].within(start, block_rows);
      for (last = token + 1; last < tokens && queries.sees[last].within(start, block_rows) == range; ++last) {
      }
      block.gather(runs + i, end - i, queries.sees[token], key_bytes, value_bytes);
      if (block.count == 0) continue;
      const fetch_order order(block, next, key_bytes);
      const fetch_order* fetching = &order;
      for (std::size_t q = token * queries.group, end_query = last * queries.group; q < end_query;) {
        q += attend_largest_tile<Rows>(end_query - q, block, queries, q, fetching, state);
        fetching = nullptr;  // the first tile has fetched what comes
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
