// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/store/head_rows.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// One KV head of a cache: the rows it keeps and the summary of those that left. What attend reads.
template <class Format, class Compensation>
class head_cache {
 public:
  head_cache(const Format& format, const Compensation& compensation, std::size_t key_size, std::size_t value_size,
             page_arena& arena)
      : rows_(format, key_size, value_size, arena),
        compensation_(compensation),
        key_size_(key_size),
        value_size_(value_size) {}

  /// A copy, its rows in pages of another arena.
  head_cache(const head_cache& other, page_arena& arena)
      : rows_(other.rows_, arena),
        compensation_(other.compensation_),
        summary_(other.summary_),
        key_size_(other.key_size_),
        value_size_(other.value_size_) {}

  const head_rows<Format>& rows() const noexcept { return rows_; }
  std::size_t key_size() const noexcept { return key_size_; }
  std::size_t value_size() const noexcept { return value_size_; }
  const Format& format() const noexcept { return rows_.format(); }

  std::size_t length() const noexcept { return rows_.length(); }
  std::size_t runs() const noexcept { return rows_.runs(); }
  run run_at(std::size_t i) const noexcept { return rows_.run_at(i); }

  /// Rows that the summary stands for, and those that nothing stands for.
  std::size_t folded() const noexcept { return summary_ ? compensation_.folded(*summary_) : 0; }
  std::size_t dropped() const noexcept { return rows_.left() - folded(); }
  /// All rows at positions from here on are kept.
  std::size_t kept_from() const noexcept { return rows_.gap_end(); }
  std::size_t summary_bytes() const noexcept { return summary_ ? compensation_.bytes(*summary_) : 0; }
  const typename Compensation::summary& summary() const noexcept { return *summary_; }

  /// The summary's row for a scaled query; folded() > 0.
  summary_logit evaluate(const float* query, const attention_params& params, float* value_out) const noexcept {
    return compensation_.evaluate(*summary_, query, params, value_out);
  }

  /// Room for rows up to `length`, and for a summary before rows leave. May throw; nothing visible changes.
  void reserve(std::size_t length) { rows_.reserve(length); }
  void reserve_summary() {
    if (!summary_) summary_.emplace(compensation_.make_summary(key_size_, value_size_));
  }
  /// The rows of another head, of which none has left; there is room for them.
  void copy_rows(const head_rows<Format>& rows) noexcept { rows_.copy_rows(rows); }
  void append(const token_view& k, const token_view& v, std::size_t token, std::size_t head, float* scratch) noexcept {
    rows_.append(k, v, token, head, scratch);
  }

  /// Rows that leave together (policy/compensation.hpp).
  std::size_t fold_rows() const noexcept { return detail::fold_rows(compensation_); }
  /// Rows that fold() has decoded at a time: whole blocks, and few enough for the first-level cache.
  std::size_t scratch_rows() const noexcept { return (16 + fold_rows() - 1) / fold_rows() * fold_rows(); }

  /// Folds the rows at positions [begin, end), less those that have left already: whole blocks. `scratch` holds
  /// scratch_rows() key rows and as many value rows.
  void fold(std::size_t begin, std::size_t end, float* scratch) noexcept {
    const kernel::functions& kernels = kernel::fastest();
    const std::size_t most = scratch_rows();
    float* const keys = scratch;
    float* const values = scratch + most * key_size_;
    std::size_t rows = 0;  // decoded, not folded yet: a block may lie in two pages
    const auto fold_decoded = [&] {
      detail::fold_into(compensation_, *summary_, keys, key_size_, values, value_size_, rows);
      rows = 0;
    };
    rows_.leave(begin, end, [&](const run& leaving) {
      for (std::size_t first = 0, count = 0; first < leaving.rows; first += count) {
        count = (std::min)(leaving.rows - first, most - rows);
        kernel::decode(kernels, format(), leaving.keys + first * rows_.key_bytes(), keys + rows * key_size_,
                       count * key_size_);
        kernel::decode(kernels, format(), leaving.values + first * rows_.value_bytes(), values + rows * value_size_,
                       count * value_size_);
        rows += count;
        if (rows == most) fold_decoded();
      }
    });
    if (rows != 0) fold_decoded();
  }

 private:
  head_rows<Format> rows_;
  Compensation compensation_;
  std::optional<typename Compensation::summary> summary_;
  std::size_t key_size_;
  std::size_t value_size_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
