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
constexpr std::size_t tile_sums = registers / 2;               // vectors that stay in registers
constexpr std::size_t tile_queries = registers == 32 ? 8 : 4;  // that share what is loaded and widened
/// Key rows, and vectors of values, that are at work for so many queries.
constexpr std::size_t tile_width(std::size_t queries) { return 4 * queries <= tile_sums ? 4 : 2; }

// A core waits for as few lines at a time as it has fill buffers, 16 of them here: 9 GB/s where a plain read has 16. So
// what comes next is fetched twice. The next block is fetched into the second-level cache, which has requests of its
// own and reads on by itself, keys and values side by side because two streams are faster than one; and what is used
// next, from there into the first level, so that multiplications find it. Both line by line between the
// multiplications. Measured (AVX-512, d = 128, 4 queries, a cold cache of 8 heads), time over that of a plain read of
// the same pages: f16 1.12, bf16 1.10, f32 1.03; with one fetch 6 KiB ahead 1.35, 1.33, 1.15; without any 2.2 (f16).
constexpr std::size_t bytes_soon = 2 * 1024;  // from what is at work to what goes into the first level

/// What to fetch while some rows are at work.
struct fetched {
  const std::byte* soon;  // into the first level: as many bytes as those rows have
  const std::byte* keys;  // into the second: half as many bytes of each
  const std::byte* values;
};

/// Fetches lines `part`, `part` + Parts ... of the Bytes that are at work, `offset` from the first of them.
template <std::size_t Bytes, std::size_t Parts>
HWY_INLINE void fetch_lines(fetched what, std::size_t offset, std::size_t part) {
  HEADWISE_SIMD_UNROLL
  for (std::size_t line = 64 * part; line < Bytes; line += 64 * Parts) {
    const std::size_t at = offset + line;
    const bool key = (Bytes % 128 == 0 ? line : at) / 64 % 2 == 0;
    __builtin_prefetch(what.soon + at, 0, 3);
    __builtin_prefetch((key ? what.keys : what.values) + at / 128 * 64, 0, 2);
  }
}

/// logits[query][row] = queries . rows for tile_width rows, where the logits of a query lie block_rows apart. `next`:
/// what to fetch meanwhile.
template <class Rows, std::size_t Queries>
HWY_INLINE void few_logits(const std::byte* const* rows, std::size_t size, const float* const* queries, float* logits,
                           fetched next) {
  constexpr std::size_t width = tile_width(Queries);
  constexpr std::size_t sums = (Queries * width + lanes - 1) / lanes * lanes;
  vector sum[sums];
  HEADWISE_SIMD_UNROLL
  for (std::size_t s = 0; s < sums; ++s) sum[s] = hn::Zero(tag());
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    vector row[width];
    HEADWISE_SIMD_UNROLL
    for (std::size_t r = 0; r < width; ++r) row[r] = load<Rows>(rows[r] + i * Rows::bytes);
    HEADWISE_SIMD_UNROLL
    for (std::size_t q = 0; q < Queries; ++q) {
      const vector query = load(queries[q] + i);
      HEADWISE_SIMD_UNROLL
      for (std::size_t r = 0; r < width; ++r) sum[width * q + r] = hn::MulAdd(row[r], query, sum[width * q + r]);
      fetch_lines<width * lanes * Rows::bytes, Queries>(next, width * i * Rows::bytes, q);
    }
  }
  if (lanes == 16 && i != size) {
    HEADWISE_SIMD_UNROLL
    for (std::size_t q = 0; q < Queries; ++q) {
      const vector query = load<part::last_eight>(queries[q] + i);
      HEADWISE_SIMD_UNROLL
      for (std::size_t r = 0; r < width; ++r)
        sum[width * q + r] =
            hn::MulAdd(load<Rows, part::last_eight>(rows[r] + i * Rows::bytes), query, sum[width * q + r]);
    }
  }
  HWY_ALIGN float found[sums];
  HEADWISE_SIMD_UNROLL
  for (std::size_t s = 0; s < sums; s += lanes) hn::Store(sums_of<lanes>(sum + s), tag(), found + s);
  HEADWISE_SIMD_UNROLL
  for (std::size_t q = 0; q < Queries; ++q)
    std::memcpy(logits + q * block_rows, found + width * q, width * sizeof(float));
}

/// out[query] = factor[query] out[query] + sum of weights[query][row] rows[row], for Columns vectors from `column` on.
/// `next`: what to fetch meanwhile, `offset` bytes from its begin.
template <class Rows, std::size_t Queries, std::size_t Columns, part Part = part::whole>
HWY_INLINE void add_values(const std::byte* const* rows, std::size_t count, std::size_t column, const float* weights,
                           float* const* out, const float* factor, fetched next, std::size_t offset) {
  const tag d;
  vector sum[Queries * Columns];  // of these rows alone: over a long context a single running sum would lose digits
  HEADWISE_SIMD_UNROLL
  for (std::size_t s = 0; s < Queries * Columns; ++s) sum[s] = hn::Zero(d);
  for (std::size_t r = 0; r < count; ++r) {
    const std::byte* const at = rows[r] + column * Rows::bytes;
    vector weight[Queries];
    HEADWISE_SIMD_UNROLL
    for (std::size_t q = 0; q < Queries; ++q) weight[q] = hn::Set(d, weights[q * block_rows + r]);
    HEADWISE_SIMD_UNROLL
    for (std::size_t c = 0; c < Columns; ++c) {
      const vector row = load<Rows, Part>(at + c * lanes * Rows::bytes);
      HEADWISE_SIMD_UNROLL
      for (std::size_t q = 0; q < Queries; ++q) sum[q * Columns + c] = hn::MulAdd(row, weight[q], sum[q * Columns + c]);
      fetch_lines<Columns * lanes * Rows::bytes, Columns>(next, offset + r * Columns * lanes * Rows::bytes, c);
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

/// Tells what to fetch, step by step. Addresses alone: nothing is read that is no row, though the bytes behind the last
/// row of a page may be fetched in vain.
class fetch_order {
 public:
  /// `next`: the runs behind the block. `tiles`, of which this is number `tile`, share the rows of the next block.
  fetch_order(const seen_rows& block, const row_block* next, const row_block* end, std::size_t key_bytes,
              std::size_t value_bytes, std::size_t tile, std::size_t tiles)
      : block_(block),
        next_keys_(next != end ? next->keys : block.keys[block.count - 1]),
        run_(next),
        end_(end),
        key_bytes_(key_bytes),
        value_bytes_(value_bytes),
        keys_(tile == 0),
        values_(tile == tiles - 1 && tile <= 1) {}

  /// While keys [row, row + count) are at work.
  fetched at_keys(std::size_t row, std::size_t count) {
    const std::size_t soon = row + distance(key_bytes_, count);
    return with_later(soon < block_.count ? block_.keys[soon] : value_or_next(soon - block_.count), block_.keys[row],
                      count / 2);
  }
  fetched at_values(std::size_t row, std::size_t count) {
    return with_later(value_or_next(row + distance(value_bytes_, count)), block_.values[row], count / 2);
  }

 private:
  /// A multiple of `count`, so that rows which are fetched together lie together.
  static std::size_t distance(std::size_t bytes, std::size_t count) {
    const std::size_t rows = bytes_soon / bytes / count * count;
    return rows < count ? count : (rows > block_rows ? block_rows : rows);
  }
  const std::byte* value_or_next(std::size_t row) const {
    return row < block_.count ? block_.values[row] : next_keys_ + (row - block_.count) * key_bytes_;
  }
  /// And `count` more rows of each. `here`: an address that costs nothing.
  fetched with_later(const std::byte* soon, const std::byte* here, std::size_t count) {
    fetched all{soon, here, here};
    if (run_ == end_) return all;
    const std::size_t half = (run_->rows + 1) / 2;
    const std::size_t row = second_half_ ? half + row_ : row_;
    if (keys_) all.keys = run_->keys + row * key_bytes_;
    if (values_) all.values = run_->values + row * value_bytes_;
    if (second_half_) row_ += count;
    second_half_ = !second_half_;
    if (row_ >= half) {
      ++run_;
      row_ = 0;
    }
    return all;
  }

  const seen_rows& block_;
  const std::byte* next_keys_;
  const row_block* run_;  // of the row that is fetched next
  const row_block* end_;
  std::size_t row_ = 0;  // of the first half, and as far into the second one
  bool second_half_ = false;
  std::size_t key_bytes_;
  std::size_t value_bytes_;
  bool keys_;
  bool values_;
};

/// logits[query][row] of a block.
template <class Rows, std::size_t Queries>
HWY_NOINLINE void block_logits(const seen_rows& block, std::size_t size, const float* const* queries, float* logits,
                               fetch_order& order) {
  constexpr std::size_t width = tile_width(Queries);
  for (std::size_t r = 0; r < block.count; r += width)
    few_logits<Rows, Queries>(block.keys + r, size, queries, logits + r, order.at_keys(r, width));
}

/// out[query] = factor[query] out[query] + sum of weights[query][row] values[row] of a block.
template <class Rows, std::size_t Queries>
HWY_NOINLINE void add_block_values(const seen_rows& block, std::size_t size, const float* weights, float* const* out,
                                   float* factor, fetch_order& order) {
  constexpr std::size_t width = tile_width(Queries);
  constexpr std::size_t most = 16;  // rows at a time
  for (std::size_t r = 0; r < block.count; r += most) {
    const std::size_t rows = block.count - r < most ? block.count - r : most;
    const std::byte* const* const values = block.values + r;
    const fetched next = order.at_values(r, most);
    std::size_t c = 0;
    for (; c + width * lanes <= size; c += width * lanes)
      add_values<Rows, Queries, width>(values, rows, c, weights + r, out, factor, next, c * most * Rows::bytes);
    if (width == 4 && c + 2 * lanes <= size) {
      add_values<Rows, Queries, 2>(values, rows, c, weights + r, out, factor, next, c * most * Rows::bytes);
      c += 2 * lanes;
    }
    if (c + lanes <= size) {
      add_values<Rows, Queries, 1>(values, rows, c, weights + r, out, factor, next, c * most * Rows::bytes);
      c += lanes;
    }
    if (lanes == 16 && c != size)
      add_values<Rows, Queries, 1, part::last_eight>(values, rows, c, weights + r, out, factor, next, 0);
    for (std::size_t q = 0; q < Queries; ++q) factor[q] = 1.0F;
  }
}

/// Adds a block to the softmax of Queries queries from `first` on. `order`: what to fetch meanwhile.
template <class Rows, std::size_t Queries>
void attend_tile(const seen_rows& block, const query_block& queries, std::size_t first, fetch_order& order,
                 const softmax_rows& state) {
  HWY_ALIGN float weights[Queries * block_rows];
  const float* query[Queries];
  float* out[Queries];
  float factor[Queries];
  for (std::size_t q = 0; q < Queries; ++q) {
    query[q] = queries.rows + (first + q) * queries.key_size;
    out[q] = state.out + (first + q) * queries.value_size;
  }
  block_logits<Rows, Queries>(block, queries.key_size, query, weights, order);
  for (std::size_t q = 0; q < Queries; ++q)
    factor[q] = softmax_row(weights + q * block_rows, block.count, block.biased ? block.bias : nullptr,
                            queries.params->softcap, state.maximum[first + q], state.sum[first + q]);
  add_block_values<Rows, Queries>(block, queries.value_size, weights, out, factor, order);
}

/// The largest tile of at most `left` queries; returns how many they are.
template <class Rows, std::size_t Queries = tile_queries>
std::size_t attend_largest_tile(std::size_t left, const seen_rows& block, const query_block& queries, std::size_t first,
                                fetch_order& order, const softmax_rows& state) {
  if constexpr (Queries > 1)
    if (left < Queries) return attend_largest_tile<Rows, Queries - 1>(left, block, queries, first, order, state);
  attend_tile<Rows, Queries>(block, queries, first, order, state);
  return Queries;
}

/// functions::attend for at most few_queries and values of some size, without a strip.
template <class Rows>
void attend_few(const row_block* runs, std::size_t count, std::size_t ahead, const query_block& queries,
                const softmax_rows& state) {
  const std::size_t key_bytes = queries.key_size * Rows::bytes;
  const std::size_t value_bytes = queries.value_size * Rows::bytes;
  seen_rows block;
  for (std::size_t i = 0, end = 0; i < count; i = end) {
    end = block_end(runs, i, count);
    const std::size_t start = runs[i].position / block_rows * block_rows;
    const std::size_t tokens = queries.count / queries.group;
    for (std::size_t token = 0, last = 0; token < tokens; token = last) {  // tokens that see the same rows
      const key_range range = queries.sees[token].within(start, block_rows);
      for (last = token + 1; last < tokens && queries.sees[last].within(start, block_rows) == range; ++last) {
      }
      block.gather(runs + i, end - i, queries.sees[token], key_bytes, value_bytes);
      if (block.count == 0) continue;
      const std::size_t first = token * queries.group;
      const std::size_t end_query = last * queries.group;
      const std::size_t tiles = (end_query - first + tile_queries - 1) / tile_queries;
      for (std::size_t q = first, tile = 0; q < end_query; ++tile) {
        fetch_order order(block, runs + end, runs + count + ahead, key_bytes, value_bytes, tile, tiles);
        q += attend_largest_tile<Rows>(end_query - q, block, queries, q, order, state);
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
