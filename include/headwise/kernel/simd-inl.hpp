// SPDX-License-Identifier: MIT
// The kernels of one instruction set, in Highway. simd.hpp includes this file once per set; nobody else does.

#if defined(HEADWISE_SIMD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_INL
#undef HEADWISE_SIMD_INL
#else
#define HEADWISE_SIMD_INL
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/kernel/functions.hpp"
#include "headwise/kernel/product.hpp"

// One-lane and scalable sets keep the reference kernels; SSSE3 and AVX3_DL have nothing that SSE4 and AVX3 lack here.
#undef HEADWISE_SIMD_HERE
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#elif HWY_TARGET != HWY_STATIC_TARGET && (HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_AVX3_DL)
#else
#define HEADWISE_SIMD_HERE
#endif

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using tag = hn::ScalableTag<float>;
using vector = hn::Vec<tag>;
constexpr std::size_t lanes = hn::MaxLanes(tag());
constexpr std::size_t registers = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 32 : 16;
constexpr std::size_t columns = registers == 32 ? 4 : 2;  // vectors of a product's tile

// Arrays of vectors must end up in registers, so every loop over them is unrolled.
#if HWY_COMPILER_CLANG
#define HEADWISE_SIMD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HEADWISE_SIMD_UNROLL _Pragma("GCC unroll 16")
#endif

// ---- Rows as they are stored ---------------------------------------------------------------------------------------

/// float32 from the 16 bits of each lane, for sets without a conversion of their own. Exact, FTZ and DAZ or not.
HWY_INLINE vector from_f16_bits(hn::Vec<hn::RebindToUnsigned<tag>> half) {
  const hn::RebindToUnsigned<tag> u;
  const hn::RebindToSigned<tag> i;
  const tag d;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(u, 0x8000U)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(u, 0x7FFFU)));
  const auto normal = hn::Add(shifted, hn::Set(u, 0x38000000U));
  const auto special = hn::Or(shifted, hn::Set(u, 0x7F800000U));
  const auto mantissa = hn::ConvertTo(d, hn::BitCast(i, hn::And(half, hn::Set(u, 0x3FFU))));
  const auto subnormal = hn::BitCast(u, hn::Mul(mantissa, hn::Set(d, 0x1p-24F)));
  const auto exponent = hn::BitCast(i, hn::And(half, hn::Set(u, 0x7C00U)));
  const auto is_small = hn::RebindMask(u, hn::Eq(exponent, hn::Zero(i)));
  const auto is_special = hn::RebindMask(u, hn::Eq(exponent, hn::Set(i, 0x7C00)));
  const auto magnitude = hn::IfThenElse(is_small, subnormal, hn::IfThenElse(is_special, special, normal));
  return hn::BitCast(d, hn::Or(sign, magnitude));
}

struct f32_rows {
  static constexpr std::size_t bytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* at) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  }
};

struct f16_rows {
  static constexpr std::size_t bytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load([[maybe_unused]] D d, const std::byte* at) {
#if HWY_ARCH_X86 && (HWY_TARGET > HWY_AVX2 || defined(HWY_DISABLE_F16C))  // Highway's own loses infinities and NaNs
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    return from_f16_bits(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(at))));
#else
    const hn::Rebind<hwy::float16_t, D> narrow;
    return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(at)));
#endif
  }
};

struct bf16_rows {
  static constexpr std::size_t bytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* at) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(at)))));
  }
};

/// `lanes` elements, or the last 8 of a row whose size is not a multiple of 16, filled up with zeros.
template <class Rows, bool Half = false>
HWY_INLINE vector load(const std::byte* at) {
  if constexpr (Half && lanes == 16)
    return hn::ZeroExtendVector(tag(), Rows::load(hn::Half<tag>(), at));
  else
    return Rows::load(tag(), at);
}
template <bool Half = false>
HWY_INLINE vector load(const float* at) {
  return load<f32_rows, Half>(reinterpret_cast<const std::byte*>(at));
}
template <bool Half = false>
HWY_INLINE void store(vector v, float* at) {
  if constexpr (Half && lanes == 16)
    hn::StoreU(hn::LowerHalf(hn::Half<tag>(), v), hn::Half<tag>(), at);
  else
    hn::StoreU(v, tag(), at);
}

// ---- Lanes
// -----------------------------------------------------------------------------------------------------------

/// Adds lanes that are Step apart: lane i of the result comes from a where bit Step of i is clear, else from b.
template <std::size_t Step>
HWY_INLINE vector add_apart(vector a, vector b) {
  const tag d;
  if constexpr (Step == 8) {
    return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  } else if constexpr (Step == 4) {
    return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  } else if constexpr (Step == 2) {
    const hn::Repartition<std::uint64_t, tag> pairs;
    const auto x = hn::BitCast(pairs, a);
    const auto y = hn::BitCast(pairs, b);
    return hn::Add(hn::BitCast(d, hn::OddEven(y, x)), hn::BitCast(d, hn::Shuffle01(hn::OddEven(x, y))));
  } else {
    return hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b)));
  }
}

/// Lane i of the result is the sum of the lanes of a[i]; always in the same order, so neighbours do not matter.
template <std::size_t Count>
HWY_INLINE vector sums_of(const vector* a) {
  if constexpr (Count == 1) {
    return a[0];
  } else {
    vector half[Count / 2];
    HEADWISE_SIMD_UNROLL for (std::size_t i = 0; i < Count / 2; ++i) half[i] =
        add_apart<Count / 2>(a[i], a[i + Count / 2]);
    return sums_of<Count / 2>(half);
  }
}

/// e^x for x <= 0, within 2 units of the last place; 0 below -87.3, so no subnormal is made. NaN stays NaN.
/// Cephes' polynomial for expf; the range is reduced by rounding to the nearest integer.
HWY_INLINE vector exp_nonpositive(vector x) {
  const tag d;
  const hn::RebindToSigned<tag> i;
  const vector lowest = hn::Set(d, -87.3F);
  const auto below = hn::Lt(x, lowest);
  const vector clamped = hn::IfThenElse(below, lowest, x);  // not Max, which may drop a NaN
  const auto power = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504F)));
  const vector n = hn::ConvertTo(d, power);
  const vector r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), hn::NegMulAdd(n, hn::Set(d, 0.693359375F), clamped));
  vector p = hn::MulAdd(hn::Set(d, 1.9875691500e-4F), r, hn::Set(d, 1.3981999507e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0F)));
  const vector scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(power, hn::Set(i, 127))));
  return hn::IfThenZeroElse(below, hn::Mul(p, scale));
}

/// softcap * tanh(x / softcap)
HWY_INLINE vector capped(vector x, float softcap) {
  const tag d;
  const vector y = hn::Mul(x, hn::Set(d, 1.0F / softcap));
  const vector square = hn::Mul(y, y);
  vector series = hn::MulAdd(hn::Set(d, 62.0F / 2835.0F), square, hn::Set(d, -17.0F / 315.0F));  // for small y
  series = hn::MulAdd(series, square, hn::Set(d, 2.0F / 15.0F));
  series = hn::MulAdd(series, square, hn::Set(d, -1.0F / 3.0F));
  series = hn::MulAdd(hn::Mul(series, square), y, y);
  const vector one = hn::Set(d, 1.0F);
  const vector power = exp_nonpositive(hn::Mul(hn::Abs(y), hn::Set(d, -2.0F)));
  const vector large = hn::CopySign(hn::Div(hn::Sub(one, power), hn::Add(one, power)), y);
  const vector tanh = hn::IfThenElse(hn::Lt(hn::Abs(y), hn::Set(d, 0.25F)), series, large);
  return hn::Mul(tanh, hn::Set(d, softcap));
}

/// The larger lane by lane; never a NaN, unless a is one: a NaN logit shows in the sum of weights, and the maximum
/// of the others stays what it was.
HWY_INLINE vector larger(vector a, vector b) { return hn::IfThenElse(hn::Gt(b, a), b, a); }

// ---- Few queries: one pass over the rows for all of them ----------------------------------------------------------
//
// Bound by memory. Measured (AVX-512, d = 128, 4 queries, f16): fetching line by line between the multiplications, into
// L2, 6 KiB ahead in the order of use, takes 1.2 times as long as a plain read; fetching the same lines 4 KiB at once
// 1.5 times; no fetching twice as long. Rows of values that are wider than a tile are taken 4 at a time, so that memory
// is walked nearly in order.

constexpr std::size_t few_queries = 8;
constexpr std::size_t tile_queries = registers == 32 ? 4 : 2;
constexpr std::size_t bytes_ahead = 6 * 1024;

/// Line `Part`, `Part` + `Parts` ... of the `Bytes` from `at` on.
template <std::size_t Bytes, std::size_t Parts>
HWY_INLINE void fetch(const std::byte* at, std::size_t part) {
  HEADWISE_SIMD_UNROLL for (std::size_t line = 0; line < Bytes; line += 64 * Parts) if (line + 64 * part < Bytes)
      __builtin_prefetch(at + line + 64 * part, 0, 2);
}

/// logits[query][0..3] = queries . rows
template <class Rows, std::size_t Queries>
HWY_INLINE void four_logits(const std::byte* const* rows, std::size_t size, const float* const* queries, float* logits,
                            const std::byte* ahead) {
  constexpr std::size_t sums = (Queries * 4 + lanes - 1) / lanes * lanes;
  vector sum[sums];
  HEADWISE_SIMD_UNROLL for (std::size_t s = 0; s < sums; ++s) sum[s] = hn::Zero(tag());
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    vector row[4];
    HEADWISE_SIMD_UNROLL for (std::size_t r = 0; r < 4; ++r) row[r] = load<Rows>(rows[r] + i * Rows::bytes);
    HEADWISE_SIMD_UNROLL for (std::size_t q = 0; q < Queries; ++q) {
      const vector query = load(queries[q] + i);
      HEADWISE_SIMD_UNROLL for (std::size_t r = 0; r < 4; ++r) sum[4 * q + r] =
          hn::MulAdd(row[r], query, sum[4 * q + r]);
      fetch<4 * lanes * Rows::bytes, Queries>(ahead + 4 * i * Rows::bytes, q);
    }
  }
  if (lanes == 16 && i != size) {
    HEADWISE_SIMD_UNROLL for (std::size_t q = 0; q < Queries; ++q) {
      const vector query = load<true>(queries[q] + i);
      HEADWISE_SIMD_UNROLL for (std::size_t r = 0; r < 4; ++r) sum[4 * q + r] =
          hn::MulAdd(load<Rows, true>(rows[r] + i * Rows::bytes), query, sum[4 * q + r]);
    }
  }
  HWY_ALIGN float found[sums];
  HEADWISE_SIMD_UNROLL for (std::size_t s = 0; s < sums; s += lanes)
      hn::Store(sums_of<lanes>(sum + s), tag(), found + s);
  HEADWISE_SIMD_UNROLL for (std::size_t q = 0; q < Queries; ++q)
      std::memcpy(logits + q * block_rows, found + 4 * q, 4 * sizeof(float));
}

/// out[query] = factor[query] out[query] + sum of weights[query][row] rows[row], for Columns vectors from `column` on.
template <class Rows, std::size_t Queries, std::size_t Columns, bool Half = false>
HWY_INLINE void add_values(const std::byte* const* rows, std::size_t count, std::size_t column, const float* weights,
                           float* const* out, const float* factor, const std::byte* ahead) {
  const tag d;
  vector sum[Queries * Columns];  // of these rows alone: over a long context a single running sum would lose digits
  HEADWISE_SIMD_UNROLL for (std::size_t s = 0; s < Queries * Columns; ++s) sum[s] = hn::Zero(d);
  for (std::size_t r = 0; r < count; ++r) {
    vector row[Columns];
    HEADWISE_SIMD_UNROLL for (std::size_t c = 0; c < Columns; ++c) row[c] =
        load<Rows, Half>(rows[r] + (column + c * lanes) * Rows::bytes);
    HEADWISE_SIMD_UNROLL for (std::size_t q = 0; q < Queries; ++q) {
      const vector weight = hn::Set(d, weights[q * block_rows + r]);
      HEADWISE_SIMD_UNROLL for (std::size_t c = 0; c < Columns; ++c) sum[q * Columns + c] =
          hn::MulAdd(row[c], weight, sum[q * Columns + c]);
      fetch<Columns * lanes * Rows::bytes, Queries>(ahead + r * Columns * lanes * Rows::bytes, q);
    }
  }
  HEADWISE_SIMD_UNROLL for (std::size_t q = 0; q < Queries; ++q) {
    const vector scale = hn::Set(d, factor[q]);
    HEADWISE_SIMD_UNROLL for (std::size_t c = 0; c < Columns; ++c) {
      float* const at = out[q] + column + c * lanes;
      store<Half>(hn::MulAdd(load<Half>(at), scale, sum[q * Columns + c]), at);
    }
  }
}

/// The rows of a block that a query sees, wherever they lie.
struct seen_rows {
  std::size_t count = 0;
  bool biased = false;
  const std::byte* keys[block_rows + 3];  // the last one repeated: logits come four at a time
  const std::byte* values[block_rows];
  HWY_ALIGN float bias[block_rows];   // where biased
  std::size_t run_begin[block_rows];  // indices and positions of the first row of each run
  std::size_t run_position[block_rows + 1];
  std::size_t runs = 0;

  void gather(const row_block* from, std::size_t run_count, key_range range, std::size_t key_bytes,
              std::size_t value_bytes) {
    count = 0;
    runs = 0;
    biased = false;
    for (std::size_t i = 0; i < run_count; ++i) {
      const row_block& run = from[i];
      const key_range part = range.within(run.position, run.rows);
      if (part.begin >= part.end) continue;
      run_begin[runs] = count;
      run_position[runs++] = run.position + part.begin;
      biased = biased || run.bias != 0.0F;
      const std::byte* const key = run.keys + part.begin * key_bytes;
      const std::byte* const value = run.values + part.begin * value_bytes;
      const std::size_t rows = part.end - part.begin;
      for (std::size_t r = 0; r < rows; ++r) keys[count + r] = key + r * key_bytes;
      for (std::size_t r = 0; r < rows; ++r) values[count + r] = value + r * value_bytes;
      count += rows;
    }
    if (biased)
      for (std::size_t i = 0, row = 0; i < run_count; ++i) {
        const key_range part = range.within(from[i].position, from[i].rows);
        for (std::size_t r = part.begin; r < part.end; ++r) bias[row++] = from[i].bias;
      }
    if (count != 0)
      for (std::size_t r = 0; r < 3; ++r) keys[count + r] = keys[count - 1];
  }

  std::size_t first_position() const { return run_position[0]; }
  std::size_t last_position() const { return run_position[runs - 1] + (count - run_begin[runs - 1]) - 1; }
  /// How many of the rows lie before `position`.
  std::size_t before(std::size_t position) const {
    std::size_t i = runs;
    while (i != 0 && run_position[i - 1] >= position) --i;
    if (i == 0) return 0;
    const std::size_t end = i == runs ? count : run_begin[i];
    const std::size_t row = run_begin[i - 1] + (position - run_position[i - 1]);
    return row < end ? row : end;
  }
  key_range seen(const key_range& range) const { return {before(range.begin), before(range.end)}; }
};

/// What to fetch while a row is at work: the row that is used bytes_ahead later, keys before values before the next
/// block's keys.
struct fetch_order {
  const seen_rows& block;
  const std::byte* next_keys;  // or nullptr
  std::size_t key_bytes;
  std::size_t distance;  // in rows

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

/// Turns `count` logits into weights e^(logit - maximum); returns the factor of what came before.
HWY_INLINE float softmax_row(float* logits, std::size_t count, const float* bias, float softcap, float& maximum,
                             float& sum) {
  const tag d;
  for (std::size_t r = count; r % lanes != 0; ++r) logits[r] = lowest_logit;
  vector largest = hn::Set(d, maximum);
  for (std::size_t r = 0; r < count; r += lanes) {
    vector x = hn::Load(d, logits + r);
    if (softcap > 0.0F || bias != nullptr) {
      if (softcap > 0.0F) x = capped(x, softcap);
      if (bias != nullptr) x = hn::Add(x, hn::Load(d, bias + r));
      if (r + lanes > count) x = hn::IfThenElse(hn::FirstN(d, count - r), x, hn::Set(d, lowest_logit));
      hn::Store(x, d, logits + r);
    }
    largest = larger(largest, x);
  }
  largest = hn::MaxOfLanes(d, largest);
  const float factor = hn::GetLane(exp_nonpositive(hn::Sub(hn::Set(d, maximum), largest)));
  vector total = hn::Zero(d);
  for (std::size_t r = 0; r < count; r += lanes) {
    vector weight = exp_nonpositive(hn::Sub(hn::Load(d, logits + r), largest));
    if (r + lanes > count) weight = hn::IfThenElseZero(hn::FirstN(d, count - r), weight);
    hn::Store(weight, d, logits + r);
    total = hn::Add(total, weight);
  }
  maximum = hn::GetLane(largest);
  sum = sum * factor + hn::GetLane(hn::SumOfLanes(d, total));
  return factor;
}

/// `Queries` queries from `first` on against a block. `order`: what to fetch meanwhile, or nullptr.
template <class Rows, std::size_t Queries>
HWY_NOINLINE void few_tile(const seen_rows& block, const query_block& queries, std::size_t first,
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
      add_values<Rows, Queries, 1, true>(values, rows, c, weights + r, out, factor, values[0]);
    for (float& f : factor) f = 1.0F;
  }
}

/// The largest tile of at most `left` queries; returns how many they are.
template <class Rows>
std::size_t few_tiles(std::size_t left, const seen_rows& block, const query_block& queries, std::size_t first,
                      const fetch_order* order, const softmax_rows& state) {
  if constexpr (tile_queries == 4) {
    if (left >= 4) return few_tile<Rows, 4>(block, queries, first, order, state), 4;
    if (left == 3) return few_tile<Rows, 3>(block, queries, first, order, state), 3;
  }
  if (left >= 2) return few_tile<Rows, 2>(block, queries, first, order, state), 2;
  return few_tile<Rows, 1>(block, queries, first, order, state), 1;
}

/// Runs [i, end) make up a block: positions with the same multiple of block_rows.
inline std::size_t block_end(const row_block* runs, std::size_t i, std::size_t count) {
  const std::size_t block = runs[i].position / block_rows;
  while (i < count && runs[i].position / block_rows == block) ++i;
  return i;
}

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
        q += few_tiles<Rows>(end_query - q, block, queries, q, fetching, state);
        fetching = nullptr;  // the first tile has fetched what comes
      }
    }
  }
}

// ---- Many queries: matrix products
// ------------------------------------------------------------------------------------

enum class into { store, add };

/// c[Rows x Columns vectors] = a[Rows x depth] b[depth x Columns vectors], or c = factor c + that; one tile that stays
/// in registers. Without factors, c = c + that.
template <into Mode, std::size_t Rows, std::size_t Columns, bool Half = false>
HWY_INLINE void product_tile(std::size_t depth, const float* a, std::size_t a_row, std::size_t a_depth, const float* b,
                             std::size_t b_stride, float* c, std::size_t c_stride, const float* factor) {
  const tag d;
  vector sum[Rows * Columns];
  HEADWISE_SIMD_UNROLL for (std::size_t i = 0; i < Rows * Columns; ++i) sum[i] = hn::Zero(d);
  for (std::size_t k = 0; k < depth; ++k) {
    vector right[Columns];
    HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < Columns; ++j) right[j] = load<Half>(b + k * b_stride + j * lanes);
    HEADWISE_SIMD_UNROLL for (std::size_t i = 0; i < Rows; ++i) {
      const vector left = hn::Set(d, a[i * a_row + k * a_depth]);
      HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < Columns; ++j) sum[i * Columns + j] =
          hn::MulAdd(left, right[j], sum[i * Columns + j]);
    }
  }
  HEADWISE_SIMD_UNROLL for (std::size_t i = 0; i < Rows; ++i)
      HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < Columns; ++j) {
    float* const at = c + i * c_stride + j * lanes;
    if constexpr (Mode == into::store)
      store<Half>(sum[i * Columns + j], at);
    else if (factor == nullptr)
      store<Half>(hn::Add(load<Half>(at), sum[i * Columns + j]), at);
    else
      store<Half>(hn::MulAdd(load<Half>(at), hn::Set(d, factor[i]), sum[i * Columns + j]), at);
  }
}

/// Rows of the tile of `Columns` vectors that fills the registers.
template <std::size_t Columns>
constexpr std::size_t tile_rows = registers == 32 ? (Columns == 4   ? 6
                                                     : Columns == 3 ? 8
                                                     : Columns == 2 ? 12
                                                                    : 16)
                                                  : (Columns == 2 ? 6 : 12);

/// c[rows x Columns vectors] = a b
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

/// c[Rows x width] = factor c + a[Rows x depth] b[depth x width], where width is a multiple of 8
template <std::size_t Rows>
HWY_NOINLINE void add_product_rows(std::size_t width, std::size_t depth, const float* a, std::size_t a_row,
                                   std::size_t a_depth, const float* b, std::size_t b_stride, float* c,
                                   std::size_t c_stride, const float* factor) {
  std::size_t j = 0;
  for (; j + columns * lanes <= width; j += columns * lanes)
    product_tile<into::add, Rows, columns>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
  if (columns == 4 && j + 2 * lanes <= width) {
    product_tile<into::add, Rows, 2>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
    j += 2 * lanes;
  }
  for (; j + lanes <= width; j += lanes)
    product_tile<into::add, Rows, 1>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
  if (lanes == 16 && j != width)
    product_tile<into::add, Rows, 1, true>(depth, a, a_row, a_depth, b + j, b_stride, c + j, c_stride, factor);
}

/// The same for any number of rows.
inline void add_product(std::size_t rows, std::size_t width, std::size_t depth, const float* a, std::size_t a_row,
                        std::size_t a_depth, const float* b, std::size_t b_stride, float* c, std::size_t c_stride,
                        const float* factor) {
  std::size_t i = 0;
  const auto at = [&](auto* p) { return p == nullptr ? nullptr : p + i; };
  for (; i + 6 <= rows; i += 6)
    add_product_rows<6>(width, depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride, c_stride,
                        at(factor));
  for (; i + 2 <= rows; i += 2)
    add_product_rows<2>(width, depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride, c_stride,
                        at(factor));
  for (; i < rows; ++i)
    add_product_rows<1>(width, depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride, c_stride,
                        at(factor));
}

constexpr std::size_t panel = columns * lanes;  // queries of a panel
constexpr std::size_t padded(std::size_t queries) { return (queries + panel - 1) / panel * panel; }

inline std::size_t scratch_floats(std::size_t queries, std::size_t key_size, std::size_t value_size) {
  return padded(queries) * key_size + block_rows * (key_size + value_size + panel) + 3 * panel + 4 * 16;
}

/// Logits of one panel, [row][query], to weights; the factors of what came before go to `factor`. Lanes are queries,
/// so maxima and sums need no shuffles. `some`: not every query sees every row.
template <std::size_t Columns>
HWY_NOINLINE void softmax_panel(float* logits, const seen_rows& block, std::size_t rows, const query_block& queries,
                                std::size_t first, std::size_t count, float* maximum, float* sum, float* factor) {
  const tag d;
  const float softcap = queries.params->softcap;
  HWY_ALIGN std::int32_t begin[Columns * lanes];
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
  HEADWISE_SIMD_UNROLL for (std::size_t c = 0; c < Columns; ++c) {
    const bool all = every[c];
    float* const column = logits + c * lanes;
    const vector old = hn::Load(d, maximum + c * lanes);
    vector largest = old;
    for (std::size_t r = 0; r < rows; ++r) {
      vector x = hn::LoadU(d, column + r * panel);
      if (softcap > 0.0F || block.biased || !all) {
        if (softcap > 0.0F) x = capped(x, softcap);
        if (block.biased) x = hn::Add(x, hn::Set(d, block.bias[r]));
        if (!all) {
          const auto row = hn::Set(integer, static_cast<std::int32_t>(r));
          const auto seen = hn::AndNot(hn::Lt(row, hn::Load(integer, begin + c * lanes)),
                                       hn::Lt(row, hn::Load(integer, end + c * lanes)));
          x = hn::IfThenElse(hn::RebindMask(d, seen), x, hn::Set(d, lowest_logit));
        }
        hn::StoreU(x, d, column + r * panel);
      }
      largest = larger(largest, x);
    }
    const vector scale = exp_nonpositive(hn::Sub(old, largest));
    vector total = hn::Zero(d);
    for (std::size_t r = 0; r < rows; ++r) {
      vector weight = exp_nonpositive(hn::Sub(hn::LoadU(d, column + r * panel), largest));
      if (!all) {
        const auto row = hn::Set(integer, static_cast<std::int32_t>(r));
        const auto seen = hn::AndNot(hn::Lt(row, hn::Load(integer, begin + c * lanes)),
                                     hn::Lt(row, hn::Load(integer, end + c * lanes)));
        weight = hn::IfThenElseZero(hn::RebindMask(d, seen), weight);
      }
      hn::StoreU(weight, d, column + r * panel);
      total = hn::Add(total, weight);
    }
    hn::Store(largest, d, maximum + c * lanes);
    hn::Store(hn::MulAdd(hn::Load(d, sum + c * lanes), scale, total), d, sum + c * lanes);
    hn::Store(scale, d, factor + c * lanes);
  }
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

template <class Rows>
HWY_INLINE void widen_row(const std::byte* row, std::size_t size, float* out) {
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) store(load<Rows>(row + i * Rows::bytes), out + i);
  if (lanes == 16 && i != size) store<true>(load<Rows, true>(row + i * Rows::bytes), out + i);
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

// ---- The table
// --------------------------------------------------------------------------------------------------------

template <class Rows>
void attend_rows(const row_block* runs, std::size_t count, const std::byte* next, const query_block& queries,
                 float* scratch, const softmax_rows& state, weight_strip* strip) {
  if (queries.count <= few_queries && strip == nullptr && queries.value_size != 0)
    attend_few<Rows>(runs, count, next, queries, state);
  else
    attend_many<Rows>(runs, count, queries, scratch, state, strip);
}

inline void attend(element_type type, const row_block* runs, std::size_t count, const std::byte* next,
                   const query_block& queries, float* scratch, const softmax_rows& state, weight_strip* strip) {
  if (queries.count == 0) return;
  switch (type) {
    case element_type::f32: return attend_rows<f32_rows>(runs, count, next, queries, scratch, state, strip);
    case element_type::f16: return attend_rows<f16_rows>(runs, count, next, queries, scratch, state, strip);
    case element_type::bf16: return attend_rows<bf16_rows>(runs, count, next, queries, scratch, state, strip);
  }
}

inline void widen(element_type type, const void* elements, float* floats, std::size_t count) {
  const auto* const at = static_cast<const std::byte*>(elements);
  const std::size_t whole = count / lanes * lanes;
  switch (type) {
    case element_type::f32: std::memcpy(floats, at, count * sizeof(float)); return;
    case element_type::f16:
      widen_row<f16_rows>(at, whole, floats);
      return float16::decode(at + whole * 2, floats + whole, count - whole);
    case element_type::bf16:
      widen_row<bf16_rows>(at, whole, floats);
      return bfloat16::decode(at + whole * 2, floats + whole, count - whole);
  }
}

inline void narrow(element_type type, const float* floats, void* elements, std::size_t count) {
  auto* const at = static_cast<std::byte*>(elements);
  std::size_t i = 0;
  const tag d;
  switch (type) {
    case element_type::f32: std::memcpy(at, floats, count * sizeof(float)); return;
    case element_type::f16:
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
      for (; i + lanes <= count; i += lanes) {
        const vector x = hn::LoadU(d, floats + i);
        const vector largest = hn::Set(d, 65504.0F);
        const vector magnitude = hn::Abs(x);
        const auto beyond = hn::And(hn::Gt(magnitude, largest), hn::Le(magnitude, hn::Set(d, 3.4028234e38F)));
        if (!hn::AllTrue(d, hn::Eq(x, x))) {  // keep every bit of a NaN that fits
          float16::encode(floats + i, at + i * 2, lanes);
          continue;
        }
        const hn::Rebind<hwy::float16_t, tag> half;
        hn::StoreU(hn::DemoteTo(half, hn::IfThenElse(beyond, hn::CopySign(largest, x), x)), half,
                   reinterpret_cast<hwy::float16_t*>(at + i * 2));
      }
#endif
      return float16::encode(floats + i, at + i * 2, count - i);
    case element_type::bf16: {
      for (; i + lanes <= count; i += lanes) {
        const hn::RebindToUnsigned<tag> u;
        const hn::RebindToSigned<tag> s;
        const hn::Rebind<std::uint16_t, tag> half;
        const vector x = hn::LoadU(d, floats + i);
        if (!hn::AllTrue(d, hn::Eq(x, x))) {
          bfloat16::encode(floats + i, at + i * 2, lanes);
          continue;
        }
        const auto bits = hn::BitCast(u, x);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1U));
        const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFU))));
        hn::StoreU(hn::DemoteTo(half, hn::BitCast(s, rounded)), half, reinterpret_cast<std::uint16_t*>(at + i * 2));
      }
      return bfloat16::encode(floats + i, at + i * 2, count - i);
    }
  }
}

inline float dot(const float* a, const float* b, std::size_t size) {
  const tag d;
  vector sum[2] = {hn::Zero(d), hn::Zero(d)};
  std::size_t i = 0;
  for (; i + 2 * lanes <= size; i += 2 * lanes)
    HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < 2; ++j) sum[j] =
        hn::MulAdd(hn::LoadU(d, a + i + j * lanes), hn::LoadU(d, b + i + j * lanes), sum[j]);
  for (; i + lanes <= size; i += lanes) sum[0] = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum[0]);
  float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[0], sum[1])));
  for (; i < size; ++i) total += a[i] * b[i];
  return total;
}

inline void add_product_any(std::size_t rows, std::size_t width, std::size_t depth, const float* a, std::size_t a_row,
                            std::size_t a_depth, const float* b, std::size_t b_stride, float* c, std::size_t c_stride) {
  const std::size_t whole = width / 8 * 8;
  add_product(rows, whole, depth, a, a_row, a_depth, b, b_stride, c, c_stride, nullptr);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = whole; j < width; ++j) {
      float sum = 0.0F;
      for (std::size_t k = 0; k < depth; ++k) sum += a[i * a_row + k * a_depth] * b[k * b_stride + j];
      c[i * c_stride + j] += sum;
    }
}

#if HWY_HAVE_FLOAT64
/// Four registers of sums stay where they are while the rows go by; bits do not depend on how many rows come at a time.
inline void add_rows(const float* rows, std::size_t count, std::size_t size, double* sums) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t n = lanes / 2;
  std::size_t i = 0;
  for (; i + 4 * n <= size; i += 4 * n) {
    hn::Vec<decltype(d)> sum[4];
    HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < 4; ++j) sum[j] = hn::LoadU(d, sums + i + j * n);
    for (std::size_t row = 0; row < count; ++row)
      HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < 4; ++j) sum[j] =
          hn::Add(sum[j], hn::PromoteTo(d, hn::LoadU(narrow, rows + row * size + i + j * n)));
    HEADWISE_SIMD_UNROLL for (std::size_t j = 0; j < 4; ++j) hn::StoreU(sum[j], d, sums + i + j * n);
  }
  for (; i < size; ++i)
    for (std::size_t row = 0; row < count; ++row) sums[i] += static_cast<double>(rows[row * size + i]);
}

inline double dot_sums(const float* a, const double* b, std::size_t size) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t n = lanes / 2;
  auto sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + n <= size; i += n) sum = hn::MulAdd(hn::PromoteTo(d, hn::LoadU(narrow, a + i)), hn::LoadU(d, b + i), sum);
  double total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < size; ++i) total += static_cast<double>(a[i]) * b[i];
  return total;
}
#else  // plain loops
using kernel::add_rows;
using kernel::dot_sums;
#endif

inline const functions& table() {
  constexpr const char* name = &HWY_STR(HWY_NAMESPACE)[2];  // without "N_"
  static constexpr functions kernels{name,   8,   scratch_floats,  attend,   strip_floats, received, widen,
                                     narrow, dot, add_product_any, add_rows, dot_sums};
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#undef HEADWISE_SIMD_UNROLL
#endif  // HEADWISE_SIMD_HERE
#undef HEADWISE_SIMD_HERE
#endif  // toggle
