// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>
#include <vector>

#include "headwise/cache/head_cache.hpp"
#include "headwise/cache/layer_arenas.hpp"
#include "headwise/cache/layer_rules.hpp"
#include "headwise/config.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/store/head_rows.hpp"
#include "headwise/store/page_layout.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// One layer of a cache: its heads, which see the same tokens, and how far their rows have left. What may throw comes
/// first, in `prepare_` functions that change nothing which can be seen; what follows them cannot fail.
template <class Format, class Compensation>
class layer_cache {
 public:
  using head_type = head_cache<Format, Compensation>;

  layer_cache(const Format& format, const Compensation& compensation, const head_plan& plan, std::size_t layer,
              std::pmr::memory_resource* memory, bool rolling)
      : arenas_(new_arenas(format, plan, layer, memory)) {
    const model_shape& shape = plan.shape();
    heads_.reserve(shape.kv_heads);
    for (std::size_t head = 0; head < shape.kv_heads; ++head)
      heads_.emplace_back(format, compensation, shape.key_size(), shape.value_size(),
                          arenas_->of(plan.role({layer, head})));
    progress_.rolling = rolling;
    progress_.kept_from_before.resize(shape.kv_heads);
    leave_end_.resize(shape.kv_heads);
    scratch_.resize(heads_.front().scratch_rows() * (shape.key_size() + shape.value_size()));
  }
  /// A copy whose rows come from another memory.
  layer_cache(const layer_cache& other, const head_plan& plan, std::size_t layer, std::pmr::memory_resource* memory)
      : arenas_(new_arenas(other.heads_.front().format(), plan, layer, memory)),
        progress_(other.progress_),
        leave_end_(other.leave_end_),
        scratch_(other.scratch_) {
    heads_.reserve(other.heads_.size());
    for (std::size_t head = 0; head < other.heads_.size(); ++head)
      heads_.emplace_back(other.heads_[head], arenas_->of(plan.role({layer, head})));
  }
  layer_cache(const layer_cache&) = default;
  layer_cache(layer_cache&&) = default;
  layer_cache& operator=(const layer_cache&) = delete;  // would let the old arenas go before the old heads
  layer_cache& operator=(layer_cache&&) = delete;
  ~layer_cache() = default;

  std::size_t length() const noexcept { return heads_.front().length(); }
  std::size_t heads() const noexcept { return heads_.size(); }
  const head_type& head(std::size_t kv_head) const noexcept { return heads_[kv_head]; }
  std::size_t spare_bytes() const noexcept { return arenas_->spare_bytes(); }

  /// Adds a chunk of tokens. Rolling: rows that exceed the budget leave now. A row that comes alone counts already; a
  /// chunk does not, so that its queries find everything that was stored before it. On an error nothing has changed.
  template <class Rules>
  void append(const token_view& k, const token_view& v, const Rules& rules) {
    const std::size_t old_length = length();
    const bool alone = k.tokens == 1;
    prepare_leave(old_length + (alone ? 1 : 0), progress_.rolling, rules);
    reserve(old_length + k.tokens);
    if (!alone) leave(rules);
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      progress_.kept_from_before[head] = heads_[head].kept_from();
      for (std::size_t token = 0; token < k.tokens; ++token) heads_[head].append(k, v, token, head, scratch_.data());
    }
    progress_.length_before = old_length;
    if (alone) leave(rules);
  }

  template <class Rules>
  void prepare_compress(const Rules& rules) {
    prepare_leave(length(), true, rules);
  }
  /// What exceeds the budget leaves; `rolling`: and does so from now on.
  template <class Rules>
  void compress(const Rules& rules, bool rolling) noexcept {
    leave(rules);
    progress_.rolling = rolling;
    progress_.compressed_at = length();
    progress_.length_before = unknown;
    arenas_->other().trim();  // many pages have come back, and will not be needed again at once
  }

  /// Keeps the rows of a head at these positions alone: ascending, and kept now. On an error nothing has changed.
  void retain(std::size_t kv_head, const std::vector<std::size_t>& positions, const leaving& how) {
    head_type& of = heads_[kv_head];
    auto prepared = of.prepare_retain(positions, how);
    of.retain(positions, std::move(prepared), how, scratch_.data());
    progress_.length_before = unknown;
  }

  using truncated = typename head_type::truncated;

  /// Adds what the heads will be after truncate(length) to `prepared`; false where that is not possible.
  /// `cache_length`: that of the shortest layer.
  template <class Rules>
  bool prepare_truncate(std::size_t length, std::size_t cache_length, const Rules& rules,
                        std::vector<truncated>& prepared) {
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      const auto kept_from = kept_from_at(length, cache_length, head, rules);
      if (!kept_from) return false;
      prepared.push_back(heads_[head].prepare_truncate(length, *kept_from, scratch_.data()));
    }
    return true;
  }
  /// `prepared`: one for each head. `rolls_at_once`: whether rows leave before the first compress().
  void truncate(std::size_t length, truncated* prepared, bool rolls_at_once) noexcept {
    for (head_type& head : heads_) head.truncate(std::move(*prepared++));
    progress_.length_before = unknown;
    progress_.compressed_at = (std::min)(progress_.compressed_at, length);
    if (length == 0) progress_.rolling = rolls_at_once;
  }

  /// The rows of another layer, in this one, which is empty: with what has left the window that both have,
  template <class Other>
  void copy_windowed(const layer_cache<Format, Other>& other) {
    copy_progress(other);
    for (std::size_t head = 0; head < heads_.size(); ++head) heads_[head].copy_rows(other.head(head), arenas_->other());
  }
  /// or where no row has left.
  template <class Other>
  void copy_rows(const layer_cache<Format, Other>& other) {
    copy_progress(other);
    reserve(other.length());
    for (std::size_t head = 0; head < heads_.size(); ++head) heads_[head].copy_rows(other.head(head).rows());
  }

 private:
  template <class, class>
  friend class layer_cache;
  friend struct detail::cache_access;

  static constexpr std::size_t unknown = (std::numeric_limits<std::size_t>::max)();

  /// How the rows came to be where they are, which truncate() asks.
  struct progress {
    bool rolling = false;
    std::size_t compressed_at = 0;              // length at the last compress()
    std::size_t length_before = unknown;        // the last append, if nothing came after it,
    std::vector<std::size_t> kept_from_before;  // and kept_from() of each head then
  };

  static std::shared_ptr<layer_arenas> new_arenas(const Format& format, const head_plan& plan, std::size_t layer,
                                                  std::pmr::memory_resource* memory) {
    const model_shape& shape = plan.shape();
    return std::make_shared<layer_arenas>(head_rows<Format>::layout(format, shape.key_size(), shape.value_size()), plan,
                                          layer, memory);
  }

  template <class Other>
  void copy_progress(const layer_cache<Format, Other>& other) {
    progress_.rolling = other.progress_.rolling;
    progress_.compressed_at = other.progress_.compressed_at;
  }

  /// Room for rows up to `length`: a page for each head, then the next, so that what the heads keep in the end, old
  /// rows or new, lies side by side, and the chunks in between can go back.
  void reserve(std::size_t length) {
    for (std::size_t end = this->length(); end < length;) {
      end = (std::min)(length, (end / page_layout::rows + 1) * page_layout::rows);
      for (head_type& head : heads_) head.reserve(end);
    }
  }

  /// Asks the budgets at `tokens_seen`, and makes room for early rows and summaries. `local`: whether local heads are
  /// to fold.
  template <class Rules>
  void prepare_leave(std::size_t tokens_seen, bool local, const Rules& rules) {
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      leave_end_[head] = rules.rolls(head, local) ? leave_end(tokens_seen, head, rules) : 0;
      if (leave_end_[head] != 0) heads_[head].prepare_leave(rules.how(head));
    }
  }
  template <class Rules>
  void leave(const Rules& rules) noexcept {
    for (std::size_t head = 0; head < heads_.size(); ++head)
      if (leave_end_[head] != 0) heads_[head].leave(leave_end_[head], rules.how(head), scratch_.data());
  }

  /// D = max(0, N - S - W), rounded down to whole blocks of the compensation, and never less than before: where the
  /// rows that leave end.
  template <class Rules>
  std::size_t leave_end(std::size_t tokens_seen, std::size_t head, const Rules& rules) const {
    const leaving how = rules.how(head);
    const std::size_t window = rules.recent_rows(head, tokens_seen);
    const std::size_t from = (std::max)(how.sinks, heads_[head].kept_from());
    if (tokens_seen <= from || window >= tokens_seen - from) return 0;
    const std::size_t block = how.fold ? heads_[head].fold_rows() : 1;
    const std::size_t left = (tokens_seen - window - from) / block * block;
    return left != 0 ? from + left : 0;
  }

  /// From where on a head will keep its rows after truncate(length), if that is possible; 0: no row will have left.
  template <class Rules>
  std::optional<std::size_t> kept_from_at(std::size_t length, std::size_t cache_length, std::size_t kv_head,
                                          const Rules& rules) const {
    const head_type& head = heads_[kv_head];
    const std::size_t first_left = head.rows().first_left();
    if (length <= first_left) return 0;
    const std::size_t now = head.kept_from();
    const std::size_t sinks = (std::min)(now, rules.how(kv_head).sinks);
    const bool all_here = first_left >= head.rows().raw_from();
    if (length < head.last_retain().length) return all_here ? std::optional<std::size_t>(0) : std::nullopt;
    if (length < sinks && head.rows().raw_from() <= sinks) return length;  // early rows alone, and all are here
    const auto within_reserve = [&](std::size_t then) -> std::optional<std::size_t> {
      then = (std::max)(then, sinks);
      if (then == now) return length >= now ? std::optional<std::size_t>(now) : std::nullopt;
      if (then <= first_left) return all_here ? std::optional<std::size_t>(0) : std::nullopt;
      return then >= head.rows().raw_from() ? std::optional<std::size_t>(then) : std::nullopt;
    };
    const bool last_append = length == progress_.length_before;
    if (last_append)
      if (const auto then = within_reserve(progress_.kept_from_before[kv_head])) return then;
    if (const auto then = within_reserve(kept_from_by_rule(length, kv_head, rules))) return then;
    const bool never_arrived = last_append && length == cache_length;
    return never_arrived ? within_reserve(now) : std::nullopt;
  }
  /// What it would be if the tokens up to `length` had come one by one.
  template <class Rules>
  std::size_t kept_from_by_rule(std::size_t length, std::size_t kv_head, const Rules& rules) const {
    const head_type& head = heads_[kv_head];
    const std::size_t now = head.kept_from();
    if (!rules.rolls(kv_head, progress_.rolling || length < progress_.compressed_at)) return now;
    const leaving how = rules.how(kv_head);
    const std::size_t window = rules.recent_rows(kv_head, length);
    const std::size_t first = (std::max)(how.sinks, head.last_retain().kept_from);
    const std::size_t from = (std::max)(first, length > window ? length - window : 0);
    if (from >= now) return now;
    const std::size_t block = how.fold ? head.fold_rows() : 1;
    HEADWISE_ASSERT((now - first) % block == 0);  // rows leave in whole blocks, so this does not fall below `first`
    return now - (now - from + block - 1) / block * block;
  }

  std::shared_ptr<layer_arenas> arenas_;  // before the heads, whose pages return to it
  std::vector<head_type> heads_;
  progress progress_;
  std::vector<std::size_t> leave_end_;  // scratch: where the rows of each head that leave will end; 0: none leaves
  std::vector<float> scratch_;          // a key row and a value row to append, or as many as are folded at a time
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
