// SPDX-License-Identifier: MIT
// The rows of a block that queries see. (Nothing in here is a vector, but no two sets may share code.)

#if defined(HEADWISE_SIMD_SEEN_ROWS) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_SEEN_ROWS
#undef HEADWISE_SIMD_SEEN_ROWS
#else
#define HEADWISE_SIMD_SEEN_ROWS
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "headwise/core/key_range.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// Runs [i, end) make up a block: positions with the same multiple of block_rows.
inline std::size_t block_end(const row_block* runs, std::size_t i, std::size_t count) {
  const std::size_t block = runs[i].position / block_rows;
  while (i < count && runs[i].position / block_rows == block) ++i;
  return i;
}

/// The rows of a block that a query sees, wherever they lie.
struct seen_rows {
  std::size_t count = 0;
  bool biased = false;
  const std::byte* keys[block_rows + 3];  // the last one repeated: logits come four at a time
  const std::byte* values[block_rows];
  HWY_ALIGN float bias[block_rows];   // only where biased
  std::size_t run_begin[block_rows];  // indices and positions of the first row of each run
  std::size_t run_position[block_rows + 1];
  std::size_t runs = 0;

  /// The rows of `range` (positions) of these runs, which make up a block.
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
  /// The rows of `range` (positions) as indices.
  key_range seen(const key_range& range) const { return {before(range.begin), before(range.end)}; }
};

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
