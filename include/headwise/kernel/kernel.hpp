// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "headwise/config.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/format.hpp"
#include "headwise/kernel/functions.hpp"
#include "headwise/kernel/reference.hpp"
#if HEADWISE_WITH_HIGHWAY && !defined(HEADWISE_KERNELS_ELSEWHERE)
#include "headwise/kernel/simd.hpp"
#endif

namespace headwise::kernel {
inline namespace HEADWISE_ISA {

// The one spot where kernels are chosen: the fastest that the processor has, at the first call; the reference where
// nothing faster is built, or a head size does not suit it.

namespace detail {
inline std::atomic<const functions*> chosen{nullptr};
}

/// Chooses among the instruction sets in `sets` (bits as Highway's) that the processor has, for every later call: for
/// tests and comparisons. 0: the reference. Without an argument: back to the best.
inline void choose(std::int64_t sets = -1) noexcept {
  const functions* best = nullptr;
#if HEADWISE_WITH_HIGHWAY && defined(HEADWISE_KERNELS_ELSEWHERE)
  best = linked_functions(sets);
#elif HEADWISE_WITH_HIGHWAY
  best = simd_functions(sets);
#endif
  static_cast<void>(sets);
  detail::chosen.store(best != nullptr ? best : &reference::table(), std::memory_order_release);
}

/// The kernels in use.
inline const functions& fastest() noexcept {
  const functions* best = detail::chosen.load(std::memory_order_acquire);
  if (best == nullptr) {
    choose();
    best = detail::chosen.load(std::memory_order_acquire);
  }
  return *best;
}

/// The kernels for heads of these sizes.
inline const functions& for_sizes(std::size_t key_size, std::size_t value_size) noexcept {
  const functions& best = fastest();
  return key_size % best.size_unit == 0 && value_size % best.size_unit == 0 ? best : reference::table();
}

/// Where a row of a caller's view begins.
inline const std::byte* element_at(const token_view& view, std::size_t token, std::size_t head) noexcept {
  const std::size_t element = view.type == element_type::f32 ? sizeof(float) : sizeof(std::uint16_t);
  const std::size_t offset = token * view.token_stride + head * view.head_stride;
  return static_cast<const std::byte*>(view.data) + offset * element;
}

/// One row of a caller's view as float32: view.dim elements.
inline void read_row(const functions& kernels, const token_view& view, std::size_t token, std::size_t head,
                     float* row) noexcept {
  kernels.widen(view.type, element_at(view, token, head), row, view.dim);
}

/// Stores that row in a format. A type that rows have already is copied bit by bit. `scratch`: view.dim float32.
template <class Format>
void store_row(const functions& kernels, const token_view& view, std::size_t token, std::size_t head,
               const Format& format, std::byte* row, float* scratch) {
  const auto type = headwise::detail::type_of(format);
  if (type == view.type) {
    std::memcpy(row, element_at(view, token, head), format.bytes(view.dim));
  } else if (view.type == element_type::f32) {
    const auto* const floats = reinterpret_cast<const float*>(element_at(view, token, head));
    if (type)
      kernels.narrow(*type, floats, row, view.dim);
    else
      format.encode(floats, row, view.dim);
  } else {
    read_row(kernels, view, token, head, scratch);
    if (type)
      kernels.narrow(*type, scratch, row, view.dim);
    else
      format.encode(scratch, row, view.dim);
  }
}

/// Rows of any format as float32.
template <class Format>
void decode(const functions& kernels, const Format& format, const std::byte* rows, float* floats, std::size_t count) {
  if (const auto type = headwise::detail::type_of(format))
    kernels.widen(*type, rows, floats, count);
  else
    format.decode(rows, floats, count);
}
/// Floats that attend_runs needs.
inline std::size_t scratch_floats(const functions& kernels, std::size_t queries, std::size_t key_size,
                                  std::size_t value_size) noexcept {
  return kernels.scratch_floats(queries, key_size, value_size) + block_rows * (key_size + value_size);
}

/// functions::attend for rows of any format: those that kernels cannot read are decoded a run at a time.
template <class Format>
void attend_runs(const functions& kernels, const Format& format, const row_block* runs, std::size_t count,
                 std::size_t ahead, const query_block& queries, float* scratch, const softmax_rows& state,
                 weight_strip* strip) {
  if (const auto type = headwise::detail::type_of(format))
    return kernels.attend(*type, runs, count, ahead, queries, scratch, state, strip);
  float* const keys = scratch;
  float* const values = keys + block_rows * queries.key_size;
  float* const rest = values + block_rows * queries.value_size;
  for (std::size_t i = 0; i < count; ++i) {
    row_block run = runs[i];
    format.decode(run.keys, keys, run.rows * queries.key_size);
    format.decode(run.values, values, run.rows * queries.value_size);
    run.keys = reinterpret_cast<const std::byte*>(keys);
    run.values = reinterpret_cast<const std::byte*>(values);
    kernels.attend(element_type::f32, &run, 1, 0, queries, rest, state, strip);
  }
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
