// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/shared_value.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/format.hpp"
#include "headwise/fwd.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/store/early_rows.hpp"
#include "headwise/store/page_arena.hpp"
#include "headwise/store/page_layout.hpp"
#include "headwise/store/run.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// The key and value rows of one KV head, by the position of their token:
///
///     early rows        left            reserve          recent rows
///     any positions     (no row here)   [raw_from(),     [kept_from(), length())
///                                        kept_from())
///
/// Early and recent rows are kept: attention sees them. The reserve has left as well, but its rows are still here, so
/// that kept_from() can go back. Reserve and recent rows lie in pages of 64, aligned to the position, so a window that
/// grows or slides never moves a row, and a page goes back to its arena as soon as its last row has left.
/// A copy shares pages and early rows with its original until one of them writes: that is for `reserve` and the
/// `prepare_` functions to find out, which may throw and change nothing that can be seen; what follows them cannot
/// fail.
template <class Format>
class head_rows {
  struct page_table {
    std::size_t first = 0;  // number of the first page: its rows begin at position first * page_rows
    std::vector<page_arena::page> pages;
  };

 public:
  static constexpr std::size_t page_rows = page_layout::rows;

  /// What a prepared retain() or truncate() will put in place.
  class change {
    friend head_rows;
    detail::shared_value<early_rows> early_;
    detail::shared_value<page_table> table_;
  };

  head_rows(const Format& format, std::size_t key_size, std::size_t value_size, page_arena& arena)
      : format_(format), layout_(layout(format, key_size, value_size)), arena_(&arena), table_(page_table{}) {
    detail::require_format<Format>();
  }
  /// A copy of its own, in pages of another arena.
  head_rows(const head_rows& other, page_arena& arena) : head_rows(other) {
    arena_ = &arena;
    page_table& own = table_.own();
    for (page_arena::page& page : own.pages) {
      page_arena::page copied = arena_->take();
      std::memcpy(copied.data(), page.data(), used_page_bytes());
      page = std::move(copied);
    }
  }

  /// How its arena's pages look.
  static page_layout layout(const Format& format, std::size_t key_size, std::size_t value_size) noexcept {
    return page_layout(format.bytes(key_size), format.bytes(value_size));
  }

  std::size_t length() const noexcept { return length_; }  ///< tokens seen
  std::size_t early() const noexcept { return early_ ? early_->size() : 0; }
  std::size_t kept() const noexcept { return early() + (length_ - kept_from_); }
  std::size_t left() const noexcept { return kept_from_ - early(); }  ///< rows that attention sees no more
  std::size_t kept_from() const noexcept { return kept_from_; }       ///< all rows from here on are kept
  std::size_t raw_from() const noexcept { return raw_from_; }         ///< and those from here on still here
  /// Position of the first row that has left; length() if none has.
  std::size_t first_left() const noexcept {
    if (left() == 0) return length_;
    std::size_t first = 0;
    while (first < early() && early_->positions()[first] == first) ++first;
    return first;
  }
  bool keeps(std::size_t position) const noexcept {
    if (position >= kept_from_) return position < length_;
    return early_ && std::binary_search(early_->positions().begin(), early_->positions().end(), position);
  }

  const Format& format() const noexcept { return format_; }
  std::size_t key_bytes() const noexcept { return layout_.key_bytes; }
  std::size_t value_bytes() const noexcept { return layout_.value_bytes; }
  std::size_t row_bytes() const noexcept { return kept() * (key_bytes() + value_bytes()); }
  std::size_t reserve_bytes() const noexcept { return (kept_from_ - raw_from_) * (key_bytes() + value_bytes()); }
  /// Bytes of the rows of its pages that are neither, and of what goes with early rows.
  std::size_t slack_bytes() const noexcept {
    const std::size_t in_pages = length_ - raw_from_;
    return table_->pages.size() * layout_.row_bytes() - in_pages * (key_bytes() + value_bytes()) +
           (early_ ? early_->extra_bytes() : 0) + (next_early_ ? next_early_->bytes() : 0);
  }
  /// Bytes of the rows of pages that copies have too.
  std::size_t shared_bytes() const noexcept {
    const auto shared = std::count_if(table_->pages.begin(), table_->pages.end(),
                                      [&](const page_arena::page& page) { return page.shared() || !table_.alone(); });
    return static_cast<std::size_t>(shared) * layout_.row_bytes();
  }
  std::size_t pages() const noexcept { return table_->pages.size(); }

  std::size_t runs() const noexcept {
    const std::size_t early_runs = early_ ? early_->runs() : 0;
    return kept_from_ == length_ ? early_runs : early_runs + pages_in(length_) - kept_from_ / page_rows;
  }
  /// The i-th run of kept rows, in the order of position.
  run run_at(std::size_t i) const noexcept {
    const std::size_t early_runs = early_ ? early_->runs() : 0;
    if (i < early_runs) return early_->run_at(i);
    const std::size_t page = kept_from_ / page_rows + (i - early_runs);
    return raw_run((std::max)(page * page_rows, kept_from_), (std::min)((page + 1) * page_rows, length_));
  }
  /// Calls visit(run) for the rows at positions [begin, end) in order; reserve or recent rows.
  template <class Visit>
  void visit(std::size_t begin, std::size_t end, Visit&& visit) const {
    while (begin < end) {
      const std::size_t next = (std::min)(end, (begin / page_rows + 1) * page_rows);
      visit(raw_run(begin, next));
      begin = next;
    }
  }
  /// The same for the early rows.
  template <class Visit>
  void visit_early(Visit&& visit) const {
    for (std::size_t i = 0; early_ && i < early_->runs(); ++i) visit(early_->run_at(i));
  }

  // --- From a file -----------------------------------------------------------------------------------------------

  /// A head that has seen nothing begins as if all before `raw_from` had left; room for the rows from there on is to be
  /// reserved.
  void restore_from(std::size_t raw_from) noexcept {
    HEADWISE_ASSERT(length_ == 0);
    length_ = kept_from_ = raw_from_ = raw_from;
  }
  /// Then it has these early rows, and calls fill(data, bytes) for the keys and the values of each page's reserve and
  /// recent rows up to `length`.
  template <class Fill>
  void restore(std::size_t length, std::size_t kept_from, early_rows early, Fill&& fill) {
    if (early.size() != 0) early_ = detail::shared_value<early_rows>(std::move(early));
    length_ = length;
    kept_from_ = kept_from;
    visit(raw_from_, length, [&](const run& part) {
      fill(key_at(part.position), part.rows * key_bytes());
      fill(value_at(part.position), part.rows * value_bytes());
    });
  }

  // --- Growing ---------------------------------------------------------------------------------------------------

  /// Makes room for rows up to `length`, in pages that no copy has.
  void reserve(std::size_t length) {
    if (length <= length_) return;
    page_table& own = table_.own();
    if (own.pages.empty()) own.first = raw_from_ / page_rows;
    for (std::size_t page = length_ / page_rows; page < pages_in(length); ++page) {
      if (page - own.first == own.pages.size()) {
        own.pages.push_back(arena_->take());
      } else if (page_arena::page& there = own.pages[page - own.first]; there.shared()) {
        page_arena::page copied = arena_->take();
        if (page * page_rows < length_) copy_rows(there, copied, 0, length_ % page_rows);
        there = std::move(copied);
      }
    }
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
    HEADWISE_ASSERT(length_ == 0 && other.left() == 0 && other.early() == 0);
    page_table& own = table_.owned();
    for (std::size_t i = 0; i < pages_in(other.length_); ++i)  // it may have spare ones
      std::memcpy(own.pages[i].data(), other.table_->pages[i].data(), used_page_bytes());
    length_ = other.length_;
  }

  // --- Letting rows leave ----------------------------------------------------------------------------------------

  /// Makes room for leave(sinks, ...).
  void prepare_leave(std::size_t sinks) {
    table_.own();
    next_early_ = {};
    if (kept_from_ < sinks)
      next_early_ = made_early(early() + sinks - kept_from_, [&](early_rows& made) {
        visit_early([&](const run& part) { add_rows(made, part); });
        visit(kept_from_, sinks, [&](const run& part) { add_rows(made, part); });
      });
  }
  /// The recent rows at positions before `kept_from` leave, but for the sinks, which become early rows; of all that
  /// have left, those from `raw_from` on stay in the reserve.
  void leave(std::size_t sinks, std::size_t kept_from, std::size_t raw_from) noexcept {
    if (kept_from_ < sinks) early_ = std::move(next_early_);
    kept_from_ = kept_from;
    drop_pages_before(raw_from);
  }

  /// Makes room for retain(), which keeps the rows at these positions alone: ascending, and kept now.
  change prepare_retain(const std::vector<std::size_t>& positions) const {
    change next;
    next.table_ = table_;
    next.table_.own();
    const std::size_t recent = recent_of(positions);
    next.early_ = made_early(positions.size() - (length_ - recent), [&](early_rows& made) {
      std::size_t row = 0;  // of early_
      for (std::size_t i = 0; i < positions.size() && positions[i] < recent; ++i) {
        const std::size_t position = positions[i];
        if (position >= kept_from_) {
          made.add(position, key_at(position), value_at(position));
          continue;
        }
        while (early_->positions()[row] != position) ++row;
        made.add(position, early_->key(row), early_->value(row));
      }
    });
    return next;
  }
  void retain(const std::vector<std::size_t>& positions, change next) noexcept {
    put(std::move(next));
    kept_from_ = recent_of(positions);
    drop_pages_before(kept_from_);
  }

  // --- Going back ------------------------------------------------------------------------------------------------

  /// Makes room for truncate(length, kept_from). Where no row will have left, the early rows go back into pages, so
  /// that nothing tells the head from one that never went further.
  change prepare_truncate(std::size_t length, std::size_t kept_from) const {
    change next;
    next.table_ = table_;
    page_table& made = next.table_.own();
    if (kept_from != 0 || !early_) {
      const std::size_t end = (std::max)(pages_in(length), made.first);
      if (end < made.first + made.pages.size()) made.pages.resize(end - made.first);
      next.early_ = early_before(length);
      return next;
    }
    made.pages.clear();
    made.first = 0;
    for (std::size_t page = 0; page < pages_in(length); ++page) made.pages.push_back(arena_->take());
    const auto put = [&](const run& part) {
      for (std::size_t row = 0; row < part.rows && part.position + row < length; ++row) {
        const std::size_t slot = (part.position + row) % page_rows;
        std::byte* const page = made.pages[(part.position + row) / page_rows].data();
        std::memcpy(page + slot * key_bytes(), part.keys + row * key_bytes(), key_bytes());
        std::memcpy(page + layout_.value_offset + slot * value_bytes(), part.values + row * value_bytes(),
                    value_bytes());
      }
    };
    visit_early(put);
    visit((std::max)(raw_from_, early()), length, put);
    return next;
  }
  /// Back to `length` tokens, of which those from `kept_from` on are kept. `kept_from` is kept_from() or less: from
  /// raw_from() on, or 0, which no row has left, if all that have left are in the reserve or behind `length`.
  void truncate(std::size_t length, std::size_t kept_from, change next) noexcept {
    put(std::move(next));
    length_ = length;
    kept_from_ = kept_from;
    raw_from_ = (std::min)(raw_from_, kept_from);
  }

 private:
  static std::size_t pages_in(std::size_t rows) noexcept { return (rows + page_rows - 1) / page_rows; }
  std::size_t used_page_bytes() const noexcept { return layout_.value_offset + page_rows * layout_.value_bytes; }

  std::byte* page_of(std::size_t position) const noexcept {
    return table_->pages[position / page_rows - table_->first].data();
  }
  std::byte* key_at(std::size_t position) const noexcept {
    return page_of(position) + position % page_rows * layout_.key_bytes;
  }
  std::byte* value_at(std::size_t position) const noexcept {
    return page_of(position) + layout_.value_offset + position % page_rows * layout_.value_bytes;
  }
  run raw_run(std::size_t begin, std::size_t end) const noexcept {
    return {begin, end - begin, key_at(begin), value_at(begin)};
  }
  void copy_rows(const page_arena::page& from, const page_arena::page& to, std::size_t first,
                 std::size_t rows) const noexcept {
    std::memcpy(to.data() + first * layout_.key_bytes, from.data() + first * layout_.key_bytes,
                rows * layout_.key_bytes);
    std::memcpy(to.data() + layout_.value_offset + first * layout_.value_bytes,
                from.data() + layout_.value_offset + first * layout_.value_bytes, rows * layout_.value_bytes);
  }

  void put(change next) noexcept {
    early_ = std::move(next.early_);
    table_ = std::move(next.table_);
  }
  template <class Fill>
  detail::shared_value<early_rows> made_early(std::size_t count, Fill&& fill) const {
    if (count == 0) return {};
    early_rows made(count, key_bytes(), value_bytes());
    fill(made);
    return detail::shared_value<early_rows>(std::move(made));
  }
  detail::shared_value<early_rows> early_before(std::size_t length) const {
    if (!early_ || early_->positions().back() < length) return early_;
    const auto& positions = early_->positions();
    const auto count = std::lower_bound(positions.begin(), positions.end(), length) - positions.begin();
    return made_early(static_cast<std::size_t>(count), [&](early_rows& made) {
      for (std::size_t row = 0; positions[row] < length; ++row)
        made.add(positions[row], early_->key(row), early_->value(row));
    });
  }
  void add_rows(early_rows& made, const run& part) const noexcept {
    for (std::size_t row = 0; row < part.rows; ++row)
      made.add(part.position + row, part.keys + row * key_bytes(), part.values + row * value_bytes());
  }
  /// Where the positions up to the newest begin that have no gap any more.
  std::size_t recent_of(const std::vector<std::size_t>& positions) const noexcept {
    std::size_t recent = length_;
    for (std::size_t i = positions.size(); i > 0 && recent > kept_from_ && positions[i - 1] == recent - 1; --i)
      --recent;
    return recent;
  }
  void drop_pages_before(std::size_t raw_from) noexcept {
    raw_from_ = raw_from;
    page_table& own = table_.owned();
    const std::size_t first = raw_from / page_rows;
    if (first <= own.first) return;
    const auto begin = own.pages.begin();
    own.pages.erase(begin, begin + static_cast<std::ptrdiff_t>((std::min)(first - own.first, own.pages.size())));
    own.first = first;
  }

  Format format_;
  page_layout layout_;
  page_arena* arena_;
  std::size_t length_ = 0;
  std::size_t kept_from_ = 0;
  std::size_t raw_from_ = 0;
  detail::shared_value<early_rows> early_;  // or none
  detail::shared_value<page_table> table_;
  detail::shared_value<early_rows> next_early_;  // what leave() will put in place
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
