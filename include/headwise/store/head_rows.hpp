// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/format.hpp"
#include "headwise/fwd.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/store/page_arena.hpp"
#include "headwise/store/page_layout.hpp"
#include "headwise/store/run.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// The key and value rows of one KV head: those of tokens 0..length()-1 less one gap of rows that have left. Rows lie
/// in pages of 64, aligned to the token's position, so a window that grows or slides never moves a row, and a page goes
/// back to its arena as soon as its last row has left. Movable; a copy takes its own pages, from an arena of one's
/// choice, which outlives it.
template <class Format>
class head_rows {
 public:
  static constexpr std::size_t page_rows = page_layout::rows;

  head_rows(const Format& format, std::size_t key_size, std::size_t value_size, page_arena& arena) noexcept
      : format_(format),
        key_size_(key_size),
        value_size_(value_size),
        layout_(layout(format, key_size, value_size)),
        arena_(&arena) {
    detail::require_format<Format>();
  }
  head_rows(const head_rows& other, page_arena& arena)
      : head_rows(other.format_, other.key_size_, other.value_size_, arena) {
    pages_.reserve(other.pages_.size());
    for (const page_arena::page& page : other.pages_) {
      pages_.push_back(arena_->take());
      std::memcpy(pages_.back().data(), page.data(), layout_.value_offset + page_rows * layout_.value_bytes);
    }
    length_ = other.length_;
    gap_begin_ = other.gap_begin_;
    gap_end_ = other.gap_end_;
    pages_missing_ = other.pages_missing_;
  }
  head_rows(const head_rows&) = delete;
  head_rows(head_rows&&) = default;
  head_rows& operator=(const head_rows&) = delete;
  head_rows& operator=(head_rows&&) = default;
  ~head_rows() = default;

  /// How its arena's pages look.
  static page_layout layout(const Format& format, std::size_t key_size, std::size_t value_size) noexcept {
    return page_layout(format.bytes(key_size), format.bytes(value_size));
  }

  std::size_t length() const noexcept { return length_; }              ///< tokens seen
  std::size_t left() const noexcept { return gap_end_ - gap_begin_; }  ///< rows that are here no more
  std::size_t kept() const noexcept { return length_ - left(); }
  std::size_t gap_end() const noexcept { return gap_end_; }
  bool keeps(std::size_t position) const noexcept {
    return position < length_ && (position < gap_begin_ || position >= gap_end_);
  }

  const Format& format() const noexcept { return format_; }
  std::size_t key_bytes() const noexcept { return layout_.key_bytes; }
  std::size_t value_bytes() const noexcept { return layout_.value_bytes; }
  std::size_t row_bytes() const noexcept { return kept() * (key_bytes() + value_bytes()); }
  /// Bytes of the rows of its pages that are not kept.
  std::size_t slack_bytes() const noexcept { return pages_.size() * layout_.row_bytes() - row_bytes(); }

  /// Makes room for rows up to `length`. May throw std::bad_alloc; then only spare pages have been added.
  void reserve(std::size_t length) {
    while (page_end() * page_rows < length) pages_.push_back(arena_->take());
  }

  /// Appends the rows of a token and KV head; room for them has been reserved. `scratch` holds the larger of them as
  /// float32.
  void append(const token_view& k, const token_view& v, std::size_t token, std::size_t head, float* scratch) noexcept {
    const kernel::functions& kernels = kernel::fastest();
    kernel::store_row(kernels, k, token, head, format_, key_at(length_), scratch);
    kernel::store_row(kernels, v, token, head, format_, value_at(length_), scratch);
    ++length_;
  }

  /// The rows of another head, of which none has left; room for them has been reserved, and there are none yet.
  void copy_rows(const head_rows& other) noexcept {
    HEADWISE_ASSERT(length_ == 0 && other.left() == 0 && pages_.size() >= pages_in(other.length_));
    for (std::size_t i = 0; i < pages_in(other.length_); ++i)  // it may have spare ones
      std::memcpy(pages_[i].data(), other.pages_[i].data(), layout_.value_offset + page_rows * layout_.value_bytes);
    length_ = other.length_;
  }

  std::size_t runs() const noexcept {
    const std::size_t before_gap = pages_in(gap_begin_);
    if (gap_begin_ == gap_end_) return pages_in(length_);
    return gap_end_ == length_ ? before_gap : before_gap + pages_in(length_) - gap_end_ / page_rows;
  }

  /// The i-th run, in the order of position.
  run run_at(std::size_t i) const noexcept {
    const std::size_t before_gap = pages_in(gap_begin_);
    const bool early = gap_begin_ == gap_end_ || i < before_gap;
    const std::size_t page = early ? i : gap_end_ / page_rows + (i - before_gap);
    const bool gap = gap_begin_ != gap_end_;
    const std::size_t first = early ? page * page_rows : (std::max)(page * page_rows, gap_end_);
    const std::size_t end = (std::min)((page + 1) * page_rows, early && gap ? gap_begin_ : length_);
    return {first, end - first, key_at(first), value_at(first)};
  }

  /// Lets the rows at positions [begin, end) leave, which extends the gap: begin is its begin, unless it is empty.
  /// Calls leaving(run) for each run of them in order, then frees the pages that hold no kept row.
  template <class Leaving>
  void leave(std::size_t begin, std::size_t end, Leaving&& leaving) noexcept {
    for (std::size_t first = (std::max)(begin, gap_end_); first < end;) {
      const std::size_t next = (std::min)(end, (first / page_rows + 1) * page_rows);
      leaving(run{first, next - first, key_at(first), value_at(first)});
      first = next;
    }
    const std::size_t slot = gap_begin_ == gap_end_ ? pages_in(begin) : pages_in(gap_begin_);
    const std::size_t first_page = gap_begin_ == gap_end_ ? slot : slot + pages_missing_;
    const std::size_t last_page = end / page_rows;  // the first page that keeps a row behind the gap
    gap_begin_ = begin;
    gap_end_ = end;
    if (last_page <= first_page) return;
    const auto from = pages_.begin() + static_cast<std::ptrdiff_t>(slot);
    pages_.erase(from, from + static_cast<std::ptrdiff_t>(last_page - first_page));
    pages_missing_ += last_page - first_page;
  }

 private:
  static std::size_t pages_in(std::size_t rows) noexcept { return (rows + page_rows - 1) / page_rows; }
  std::size_t page_end() const noexcept { return pages_.size() + pages_missing_; }

  std::byte* page_of(std::size_t position) const noexcept {
    const std::size_t page = position / page_rows;
    return pages_[position < gap_begin_ || pages_missing_ == 0 ? page : page - pages_missing_].data();
  }
  std::byte* key_at(std::size_t position) const noexcept {
    return page_of(position) + position % page_rows * layout_.key_bytes;
  }
  std::byte* value_at(std::size_t position) const noexcept {
    return page_of(position) + layout_.value_offset + position % page_rows * layout_.value_bytes;
  }

  Format format_;
  std::size_t key_size_;
  std::size_t value_size_;
  page_layout layout_;
  page_arena* arena_;
  std::size_t length_ = 0;
  std::size_t gap_begin_ = 0;  // rows [gap_begin_, gap_end_) have left
  std::size_t gap_end_ = 0;
  std::size_t pages_missing_ = 0;  // pages freed inside the gap; they would be numbered pages_in(gap_begin_) on
  std::vector<page_arena::page> pages_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
