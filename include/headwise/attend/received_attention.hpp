// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "headwise/config.hpp"
#include "headwise/core/key_range.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// The attention that each row of a layer received: its weights summed over queries and over the query heads of the
/// group, per KV head. Token-level policies choose rows by it (H2O, SnapKV: method.md, heavy rows). No matrix is held.
/// Workers add in any order and the bits do not depend on it: sums are kept in units of 2^-32.
class received_attention {
 public:
  /// Room for rows at positions 0..length-1 of each KV head. May throw std::bad_alloc.
  received_attention(std::size_t kv_heads, std::size_t length)
      : length_(length), sums_(new std::atomic<std::uint64_t>[kv_heads * length]), queries_(new std::size_t[length]) {
    for (std::size_t i = 0; i < kv_heads * length; ++i) sums_[i].store(0, std::memory_order_relaxed);
    for (std::size_t i = 0; i < length; ++i) queries_[i] = 0;
  }

  std::size_t length() const noexcept { return length_; }

  /// Sum over the queries so far. NaN where a weight was one, and for all rows of a task with a query that is NaN.
  double sum(std::size_t kv_head, std::size_t position) const noexcept {
    const std::uint64_t units = sums_[kv_head * length_ + position].load(std::memory_order_relaxed);
    return units >= not_a_number ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(units) * 0x1p-32;
  }
  /// How many query tokens could see the row: sum / (queries * group) is the mean weight.
  std::size_t queries(std::size_t position) const noexcept { return queries_[position]; }

  /// For attend_schedule: `weight` more for a row, and a query that sees `range`.
  void add(std::size_t kv_head, std::size_t position, float weight) noexcept {
    const bool number = weight >= 0.0F && weight < 0x1p30F;
    const std::uint64_t units =
        number ? static_cast<std::uint64_t>(std::llround(static_cast<double>(weight) * 0x1p32)) : not_a_number;
    std::atomic<std::uint64_t>& sum = sums_[kv_head * length_ + position];
    if (units == not_a_number)
      sum.fetch_or(not_a_number, std::memory_order_relaxed);
    else
      sum.fetch_add(units, std::memory_order_relaxed);
  }
  void count(const key_range& range) noexcept {
    for (std::size_t position = range.begin; position < range.end && position < length_; ++position)
      ++queries_[position];
  }

 private:
  static constexpr std::uint64_t not_a_number = std::uint64_t{1} << 63;

  std::size_t length_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> sums_;
  std::unique_ptr<std::size_t[]> queries_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
