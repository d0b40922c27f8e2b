// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/aligned_memory.hpp"
#include "headwise/kernel/block.hpp"
#include "headwise/store/run.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Rows kept one by one behind which others have left: the sinks, and what retain() chose. Packed, so that a handful of
/// them does not hold a page each. Once complete they are never changed; copies of a cache share them.
class early_rows {
 public:
  /// Room for `count` rows.
  early_rows(std::size_t count, std::size_t key_bytes, std::size_t value_bytes)
      : key_bytes_(key_bytes),
        value_bytes_(value_bytes),
        value_offset_((count * key_bytes + alignment - 1) / alignment * alignment),
        rows_(value_offset_ + count * value_bytes) {
    positions_.reserve(count);
    run_begins_.reserve(count);
  }

  /// Adds a row behind the others, of a later position.
  void add(std::size_t position, const std::byte* key, const std::byte* value) noexcept {
    const std::size_t row = size();
    if (row == 0 || position != positions_.back() + 1 || position % kernel::block_rows == 0) run_begins_.push_back(row);
    positions_.push_back(position);
    std::memcpy(rows_.data() + row * key_bytes_, key, key_bytes_);
    std::memcpy(rows_.data() + value_offset_ + row * value_bytes_, value, value_bytes_);
  }

  std::size_t size() const noexcept { return positions_.size(); }
  const std::vector<std::size_t>& positions() const noexcept { return positions_; }
  const std::byte* key(std::size_t row) const noexcept { return rows_.data() + row * key_bytes_; }
  const std::byte* value(std::size_t row) const noexcept { return rows_.data() + value_offset_ + row * value_bytes_; }
  std::size_t bytes() const noexcept {
    return rows_.size() + (positions_.capacity() + run_begins_.capacity()) * sizeof(std::size_t);
  }
  /// Those beside the rows'.
  std::size_t extra_bytes() const noexcept { return bytes() - size() * (key_bytes_ + value_bytes_); }

  std::size_t runs() const noexcept { return run_begins_.size(); }
  run run_at(std::size_t i) const noexcept {
    const std::size_t row = run_begins_[i];
    const std::size_t end = i + 1 < runs() ? run_begins_[i + 1] : size();
    return {positions_[row], end - row, key(row), value(row)};
  }

 private:
  static constexpr std::size_t alignment = aligned_memory::alignment;

  std::size_t key_bytes_;
  std::size_t value_bytes_;
  std::size_t value_offset_;
  aligned_memory rows_;
  std::vector<std::size_t> positions_;   // ascending
  std::vector<std::size_t> run_begins_;  // the row that each run begins with
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
