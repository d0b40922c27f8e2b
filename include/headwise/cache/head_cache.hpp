// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "headwise/cache/leaving.hpp"
#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/key_range.hpp"
#include "headwise/core/shared_value.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/store/head_rows.hpp"

namespace headwise {
namespace detail {
struct cache_access;  // cache/snapshot.hpp
}
inline namespace HEADWISE_ISA {

/// One KV head of a cache: the rows it keeps and the summary of those that left. What attend reads. A copy shares both
/// until one side changes them. Where there is a reserve, a second summary, the checkpoint, stands for the rows that
/// left before it, so that the first can be folded anew from there.
template <class Format, class Compensation>
class head_cache {
  using rows_type = head_rows<Format>;
  using summary_type = typename Compensation::summary;
  using shared_summary = detail::shared_value<summary_type>;

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
        checkpoint_(other.checkpoint_),
        last_retain_(other.last_retain_),
        key_size_(other.key_size_),
        value_size_(other.value_size_) {}

  const rows_type& rows() const noexcept { return rows_; }
  std::size_t key_size() const noexcept { return key_size_; }
  std::size_t value_size() const noexcept { return value_size_; }
  const Format& format() const noexcept { return rows_.format(); }
  const Compensation& compensation() const noexcept { return compensation_; }

  std::size_t length() const noexcept { return rows_.length(); }
  std::size_t runs() const noexcept { return rows_.runs(); }
  run run_at(std::size_t i) const noexcept { return rows_.run_at(i); }

  /// Rows that the summary stands for, and those that nothing stands for.
  std::size_t folded() const noexcept { return summary_ ? compensation_.folded(*summary_) : 0; }
  std::size_t dropped() const noexcept { return rows_.left() - folded(); }
  /// The last retain(): how many tokens there were, and from where on it kept all their rows.
  struct retention {
    std::size_t length = 0;
    std::size_t kept_from = 0;
  };
  const retention& last_retain() const noexcept { return last_retain_; }
  /// All rows at positions from here on are kept.
  std::size_t kept_from() const noexcept { return rows_.kept_from(); }
  /// Whether a query that sees these keys can be answered. A mask or a window that begins among rows that have left
  /// gives no answer, unless retain() alone took them, and dropped them, before the query came: nobody wants those.
  bool answers(const key_range& sees) const noexcept {
    if (sees.begin >= kept_from() || (sees.begin == 0 && sees.end >= kept_from())) return true;
    return folded() == 0 && kept_from() == last_retain_.kept_from && sees.end >= last_retain_.length;
  }
  std::size_t summary_bytes() const noexcept {
    return (summary_ ? compensation_.bytes(*summary_) : 0) + (checkpoint_ ? compensation_.bytes(*checkpoint_) : 0);
  }
  /// There is one once a row has left.
  const summary_type& summary() const noexcept { return *summary_; }

  /// The summary's row for a scaled query; folded() > 0.
  summary_logit evaluate(const float* query, const attention_params& params, float* value_out) const noexcept {
    return compensation_.evaluate(*summary_, query, params, value_out);
  }

  /// Room for rows up to `length`. May throw; nothing visible changes.
  void reserve(std::size_t length) { rows_.reserve(length); }
  /// The rows of another head, of which some may have left but none was folded, in pages of an arena.
  template <class Other>
  void copy_rows(const head_cache<Format, Other>& other, page_arena& arena) {
    rows_ = rows_type(other.rows(), arena);
    last_retain_ = {other.last_retain().length, other.last_retain().kept_from};
  }
  /// The rows of another head, of which none has left; there is room for them.
  void copy_rows(const rows_type& rows) noexcept { rows_.copy_rows(rows); }
  void append(const token_view& k, const token_view& v, std::size_t token, std::size_t head, float* scratch) noexcept {
    rows_.append(k, v, token, head, scratch);
  }

  /// Rows that leave together (policy/compensation.hpp).
  std::size_t fold_rows() const noexcept { return detail::fold_rows(compensation_); }
  /// Rows that are decoded at a time: whole blocks, and few enough for the first-level cache.
  std::size_t scratch_rows() const noexcept { return (16 + fold_rows() - 1) / fold_rows() * fold_rows(); }

  /// Makes room for leave(). May throw; nothing visible changes.
  void prepare_leave(const leaving& how) {
    rows_.prepare_leave(how.sinks);
    prepare_summaries(how);
  }
  /// The recent rows at positions before `end` leave: whole blocks, if they are folded. `scratch` holds scratch_rows()
  /// key rows and as many value rows.
  void leave(std::size_t end, const leaving& how, float* scratch) noexcept {
    const bool first = rows_.kept_from() < how.sinks;
    const std::size_t raw_from = first ? how.sinks : rows_.raw_from();
    std::size_t stays_from = end;
    if (how.reserve != 0) {  // r tokens ago, fewer rows had left; as many fewer as they are, but for part of a block
      const std::size_t block = how.fold ? fold_rows() : 1;
      const std::size_t stay = how.reserve + block - 1;
      stays_from = end - raw_from <= stay ? raw_from : raw_from + (end - raw_from - stay) / block * block;
    }
    if (how.fold) {
      fold(summary_.owned(), first ? how.sinks : rows_.kept_from(), end, scratch);
      if (how.reserve != 0) fold(checkpoint_.owned(), raw_from, stays_from, scratch);
    }
    rows_.leave(how.sinks, end, stays_from);
  }

  using retained = typename rows_type::change;

  /// Makes room for retain(). May throw; nothing visible changes.
  retained prepare_retain(const std::vector<std::size_t>& positions, const leaving& how) {
    prepare_summaries(how);
    return rows_.prepare_retain(positions);
  }
  /// Keeps the rows at these positions alone: ascending, and kept now. The last block that is folded may not be full.
  void retain(const std::vector<std::size_t>& positions, retained prepared, const leaving& how,
              float* scratch) noexcept {
    if (how.fold) {
      folding step{*this, summary_.owned(), scratch};
      std::size_t i = 0;
      const auto fold_others = [&](const run& part) {
        for (std::size_t row = 0; row < part.rows; ++row) {
          if (i < positions.size() && positions[i] == part.position + row)
            ++i;
          else
            step.add(
                {part.position + row, 1, part.keys + row * rows_.key_bytes(), part.values + row * rows_.value_bytes()});
        }
      };
      rows_.visit_early(fold_others);
      rows_.visit(rows_.kept_from(), rows_.length(), fold_others);
      step.end();
    }
    checkpoint_ = how.reserve != 0 ? summary_ : shared_summary();
    rows_.retain(positions, std::move(prepared));
    last_retain_ = {rows_.length(), rows_.kept_from()};
  }

  /// What a prepared truncate() will put in place.
  struct truncated {
    std::size_t length;
    std::size_t kept_from;
    typename rows_type::change rows;
    shared_summary summary;
  };

  /// Computes the state after `length` tokens, of which those from `kept_from` on are kept (head_rows::truncate), with
  /// the same bits as if the others had never been. May throw; nothing changes.
  truncated prepare_truncate(std::size_t length, std::size_t kept_from, float* scratch) const {
    truncated next{length, kept_from, rows_.prepare_truncate(length, kept_from), {}};
    if (kept_from == rows_.kept_from()) {
      next.summary = summary_;
    } else if (kept_from != 0 && checkpoint_) {
      next.summary = checkpoint_;
      fold(next.summary.own(), rows_.raw_from(), kept_from, scratch);
    }
    return next;
  }
  void truncate(truncated next) noexcept {
    rows_.truncate(next.length, next.kept_from, std::move(next.rows));
    summary_ = std::move(next.summary);
    if (next.kept_from != 0) return;
    checkpoint_ = {};
    last_retain_ = {};
  }

 private:
  friend struct detail::cache_access;

  /// Rows on their way into a summary, a handful at a time.
  struct folding {
    const head_cache& head;
    summary_type& summary;
    float* scratch;
    std::size_t rows = 0;  // decoded, not folded yet: a block may lie in two pages

    void add(const run& part) noexcept {
      const kernel::functions& kernels = kernel::fastest();
      const std::size_t most = head.scratch_rows();
      const head_cache& h = head;
      for (std::size_t first = 0, count = 0; first < part.rows; first += count) {
        count = (std::min)(part.rows - first, most - rows);
        kernel::decode(kernels, h.format(), part.keys + first * h.rows_.key_bytes(), scratch + rows * h.key_size_,
                       count * h.key_size_);
        kernel::decode(kernels, h.format(), part.values + first * h.rows_.value_bytes(),
                       scratch + most * h.key_size_ + rows * h.value_size_, count * h.value_size_);
        rows += count;
        if (rows == most) end();
      }
    }
    void end() noexcept {
      if (rows == 0) return;
      detail::fold_into(head.compensation_, summary, scratch, head.key_size_,
                        scratch + head.scratch_rows() * head.key_size_, head.value_size_, rows);
      rows = 0;
    }
  };

  void fold(summary_type& summary, std::size_t begin, std::size_t end, float* scratch) const noexcept {
    folding step{*this, summary, scratch};
    rows_.visit(begin, end, [&](const run& part) { step.add(part); });
    step.end();
  }

  void prepare_summaries(const leaving& how) {
    if (!how.fold) return;
    if (how.reserve != 0) prepare(checkpoint_);  // first: where there is a summary, there is a checkpoint
    prepare(summary_);
  }
  void prepare(shared_summary& summary) {
    if (summary)
      summary.own();
    else
      summary = shared_summary(compensation_.make_summary(key_size_, value_size_));
  }

  rows_type rows_;
  Compensation compensation_;
  shared_summary summary_;     // or none
  shared_summary checkpoint_;  // or none
  retention last_retain_;
  std::size_t key_size_;
  std::size_t value_size_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
