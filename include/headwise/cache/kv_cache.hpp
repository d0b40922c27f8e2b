// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>
#include <vector>

#include "headwise/cache/cache_options.hpp"
#include "headwise/cache/cache_report.hpp"
#include "headwise/cache/head_cache.hpp"
#include "headwise/cache/regular.hpp"
#include "headwise/config.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/fwd.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/when_to_compress.hpp"
#include "headwise/store/head_rows.hpp"
#include "headwise/store/page_arena.hpp"
#include "headwise/store/page_layout.hpp"

namespace headwise {

/// What becomes of the rows that kv_cache::retain() does not keep.
enum class other_rows : std::uint8_t { fold, drop };

inline namespace HEADWISE_ISA {

/// The KV cache of one sequence, all layers. Retrieval heads keep every row; local heads keep the plan's sinks, the
/// budget's recent rows (and up to a block more, where the compensation folds in blocks), and a summary of everything
/// between; windowed layers keep what the model itself can see. Rows are post-RoPE, keep their positions, and are never
/// changed.
/// A regular value. A copy is a fork: independent, and made in no time, since it shares pages until one side writes to
/// them. Operations on distinct layers may run concurrently, and those on distinct copies.
template <class Format, class Budget, class Compensation>
class kv_cache {
 public:
  using format_type = Format;
  using head_type = head_cache<Format, Compensation>;
  /// Position of an append that says: wherever the layer ends. Not -1, which is what a count below 0 would be.
  static constexpr std::size_t next = (std::numeric_limits<std::size_t>::max)() - 1;

  explicit kv_cache(head_plan plan, Budget budget = Budget{}, Compensation compensation = Compensation{},
                    when_to_compress when = when_to_compress::after_prompt, Format format = Format{},
                    const cache_options& options = {})
      : plan_(std::move(plan)), budget_(std::move(budget)), when_(when), options_(options) {
    require_policies();
    layers_.reserve(shape().layers);
    for (std::size_t layer = 0; layer < shape().layers; ++layer) {
      layers_.emplace_back(new_arenas(format, layer), shape().kv_heads, when_ == when_to_compress::every_append);
      layer_state& made = layers_.back();
      for (std::size_t head = 0; head < shape().kv_heads; ++head)
        made.heads.emplace_back(format, compensation, shape().key_size(), shape().value_size(),
                                made.arenas->of(plan_.role({layer, head})));
      made.scratch.resize(made.heads.front().scratch_rows() * (shape().key_size() + shape().value_size()));
    }
  }

  kv_cache(const kv_cache&) = default;
  /// A copy whose rows come from another memory: nothing is shared, unless the two are equal.
  kv_cache(const kv_cache& other, std::pmr::memory_resource* memory) : kv_cache(other) {
    const bool equal = memory == options_.memory ||
                       (memory != nullptr && options_.memory != nullptr && memory->is_equal(*options_.memory));
    if (equal) return;
    options_.memory = memory;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      layer_state& state = layers_[layer];
      auto arenas = new_arenas(format(), layer);
      std::vector<head_type> heads;
      heads.reserve(state.heads.size());
      for (std::size_t head = 0; head < state.heads.size(); ++head)
        heads.emplace_back(state.heads[head], arenas->of(plan_.role({layer, head})));
      state.heads = std::move(heads);  // before the arenas that their pages return to
      state.arenas = std::move(arenas);
    }
  }
  kv_cache(kv_cache&&) = default;
  /// A copy that fails leaves this cache as it was.
  kv_cache& operator=(const kv_cache& other) { return *this = kv_cache(other); }
  kv_cache& operator=(kv_cache&&) = default;
  ~kv_cache() = default;

  const model_shape& shape() const noexcept { return plan_.shape(); }
  const head_plan& plan() const noexcept { return plan_; }

  /// Tokens seen, whatever has left since: the position of the next token. The smallest over the layers, which differ
  /// only in the middle of a step.
  std::size_t length() const noexcept {
    std::size_t length = next;
    for (const layer_state& layer : layers_) length = (std::min)(length, layer.length());
    return length;
  }
  std::size_t layer_length(std::size_t layer) const { return at(layer).length(); }
  /// How far back the model itself looks in a layer, its own key included; 0: to the beginning. attend() heeds it.
  std::size_t window(std::size_t layer) const noexcept { return plan_.window(layer); }

  /// Adds a chunk of tokens to a layer: k is [tokens, kv_heads, head_dim], v [tokens, kv_heads, value_dim], in any
  /// strides, keys after RoPE. Attend afterwards. `position` is the caller's idea of where the chunk begins; anything
  /// but the layer's length is refused. On an error nothing has changed.
  void append(std::size_t layer, const token_view& k, const token_view& v, std::size_t position = next) {
    layer_state& state = at(layer);
    detail::check_view(k, "append: keys", shape().kv_heads, shape().key_size());
    detail::check_view(v, "append: values", shape().kv_heads, shape().value_size());
    if (k.tokens != v.tokens) detail::fail("append: ", k.tokens, " tokens of keys and ", v.tokens, " of values");
    const std::size_t old_length = state.length();
    if (position != next && position != old_length)
      detail::fail("append: layer ", layer, " ends at position ", old_length, ", found a chunk for ", position);
    if (k.tokens == 0) return;

    // Rolling: rows that exceed the budget leave now. A row that comes alone counts already; a chunk does not, so that
    // its queries find everything that was stored before it.
    const std::size_t length = old_length + k.tokens;
    const bool alone = k.tokens == 1;
    prepare(state, layer, alone ? length : old_length, state.rolling);
    reserve(state, length);
    if (!alone) leave(state, layer);
    for (std::size_t head = 0; head < state.heads.size(); ++head) {
      state.before.kept_from[head] = state.heads[head].kept_from();
      for (std::size_t token = 0; token < k.tokens; ++token)
        state.heads[head].append(k, v, token, head, state.scratch.data());
    }
    state.before.length = old_length;
    if (alone) leave(state, layer);
  }

  /// Folds what exceeds sinks and window in the local heads of a layer, and keeps them rolling from now on (unless the
  /// cache is frozen). Call it after the prompt has been attended to.
  void compress(std::size_t layer) {
    layer_state& state = at(layer);
    prepare(state, layer, state.length(), true);
    compress_prepared(layer);
  }
  void compress() {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      prepare(layers_[layer], layer, layers_[layer].length(), true);
    // Nothing throws any more: all layers are compressed, or none.
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) compress_prepared(layer);
  }

  /// Keeps the rows of one head at these positions alone, which is what token-level methods decide; the others are
  /// folded into its summary or dropped. Refuses positions that are not ascending, or not kept now.
  void retain(std::size_t layer, std::size_t kv_head, const std::vector<std::size_t>& positions,
              other_rows others = other_rows::fold) {
    static_cast<void>(head(layer, kv_head));
    layer_state& state = at(layer);
    head_type& of = state.heads[kv_head];
    auto how = leaving({layer, kv_head});
    if (others == other_rows::drop) how.fold = false;
    if (others == other_rows::fold && !how.fold)
      detail::fail("retain: rows of KV head ", layer, ".", kv_head, " cannot be folded, since its layer is windowed");
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (i != 0 && positions[i] <= positions[i - 1])
        detail::fail("retain: position ", positions[i], " behind ", positions[i - 1], ", expected ascending positions");
      if (!of.rows().keeps(positions[i]))
        detail::fail("retain: KV head ", layer, ".", kv_head, " keeps no row at position ", positions[i]);
    }
    auto prepared = of.prepare_retain(positions, how);
    of.retain(positions, std::move(prepared), how, state.scratch.data());
    state.before.length = next;
  }

  /// Takes tokens back: the first `length` of them stay, and everything is, bit for bit, as if the others had never
  /// been appended (to a cache that was compressed, one by one). False, and nothing has changed, where that is not
  /// possible: where more tokens are asked for than there are, or rows would have to come back that left before the
  /// rollback reserve. Exact for budgets under which D does not fall while tokens arrive.
  /// truncate(length()) always succeeds, and puts a step right that failed at some layer: rows that a local head has
  /// folded for the token that never arrived stay folded, as they will be when it does.
  [[nodiscard]] bool truncate(std::size_t length) {
    if (length > this->length()) return false;
    std::vector<typename head_type::truncated> prepared;
    prepared.reserve(shape().heads());
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      layer_state& state = layers_[layer];
      if (state.length() == length) continue;
      for (std::size_t head = 0; head < state.heads.size(); ++head) {
        const auto kept_from = kept_from_at(length, {layer, head});
        if (!kept_from) return false;
        prepared.push_back(state.heads[head].prepare_truncate(length, *kept_from, state.scratch.data()));
      }
    }
    auto head_state = prepared.begin();
    for (layer_state& state : layers_) {
      if (state.length() == length) continue;
      for (head_type& head : state.heads) head.truncate(std::move(*head_state++));
      state.before.length = next;
      state.compressed_at = (std::min)(state.compressed_at, length);
      if (length == 0) state.rolling = when_ == when_to_compress::every_append;
    }
    return true;
  }

  /// A cache of the same rows under another plan and other policies. Refused once a row has left any head, since what
  /// one policy has folded another cannot unfold; but layers that have the same window in both plans stay as they are.
  template <class OtherBudget, class OtherCompensation>
  kv_cache<Format, OtherBudget, OtherCompensation> with(head_plan plan, OtherBudget budget,
                                                        OtherCompensation compensation) const {
    if (plan.shape() != shape())
      detail::fail("with: the plan is for ", to_string(plan.shape()), ", the cache for ", to_string(shape()));
    kv_cache<Format, OtherBudget, OtherCompensation> other(std::move(plan), std::move(budget), compensation, when_,
                                                           format(), options_);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      auto& changed = other.layers_[layer];
      changed.rolling = layers_[layer].rolling;
      changed.compressed_at = layers_[layer].compressed_at;
      if (window(layer) != 0 && window(layer) == other.window(layer)) {
        for (std::size_t head = 0; head < shape().kv_heads; ++head)
          changed.heads[head].copy_rows(layers_[layer].heads[head], changed.arenas->other);
        continue;
      }
      for (std::size_t head = 0; head < shape().kv_heads; ++head) {
        const head_type& rows = layers_[layer].heads[head];
        if (rows.rows().left() != 0)
          detail::fail("with: ", rows.rows().left(), " rows of KV head ", layer, ".", head,
                       " have left; policies can change only before");
      }
      other.reserve(changed, layers_[layer].length());
      for (std::size_t head = 0; head < shape().kv_heads; ++head)
        changed.heads[head].copy_rows(layers_[layer].heads[head].rows());
    }
    return other;
  }

  /// One head's runs and summary: what attend reads.
  const head_type& head(std::size_t layer, std::size_t kv_head) const {
    const layer_state& state = at(layer);
    if (kv_head >= state.heads.size())
      detail::fail("kv_cache: no KV head ", layer, ".", kv_head, " in a model of ", to_string(shape()));
    return state.heads[kv_head];
  }

  /// Positions of the rows a head keeps, ascending.
  std::vector<std::size_t> kept_positions(std::size_t layer, std::size_t kv_head) const {
    const head_type& rows = head(layer, kv_head);
    std::vector<std::size_t> positions;
    positions.reserve(rows.rows().kept());
    for (std::size_t i = 0; i < rows.runs(); ++i) {
      const run part = rows.run_at(i);
      for (std::size_t row = 0; row < part.rows; ++row) positions.push_back(part.position + row);
    }
    return positions;
  }

  cache_report report() const {
    cache_report report;
    report.tokens = length();
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      report.spare_bytes += layers_[layer].arenas->spare_bytes(
          head_rows<Format>::layout(format(), shape().key_size(), shape().value_size()));
      for (std::size_t kv_head = 0; kv_head < shape().kv_heads; ++kv_head) {
        const head_type& head = layers_[layer].heads[kv_head];
        const head_id id{layer, kv_head};
        report.add({id, plan_.role(id), head.rows().kept(), head.folded(), head.dropped(), head.rows().row_bytes(),
                    head.rows().slack_bytes(), head.rows().reserve_bytes(), head.summary_bytes(),
                    head.rows().shared_bytes()});
        report.dense_bytes += head.length() * (head.rows().key_bytes() + head.rows().value_bytes());
      }
    }
    return report;
  }

 private:
  template <class, class, class>
  friend class kv_cache;
  friend struct detail::cache_access;

  /// Two, so that what compress() frees does not lie among the pages of heads that keep everything. Copies share them.
  struct layer_arenas {
    layer_arenas(std::size_t page_bytes, std::size_t layer, std::size_t retrieval_heads, std::size_t other_heads,
                 std::pmr::memory_resource* memory) noexcept
        : retrieval(page_bytes, retrieval_heads, layer, memory), other(page_bytes, other_heads, layer, memory) {}

    page_arena& of(head_role role) noexcept { return role == head_role::retrieval ? retrieval : other; }
    std::size_t spare_bytes(const page_layout& page) const noexcept {
      return retrieval.held_bytes() + other.held_bytes() - (retrieval.pages() + other.pages()) * page.row_bytes();
    }

    page_arena retrieval;
    page_arena other;
  };

  struct layer_state {
    layer_state(std::shared_ptr<layer_arenas> empty, std::size_t kv_heads, bool starts_rolling)
        : arenas(std::move(empty)), rolling(starts_rolling), leave_end(kv_heads, 0) {
      heads.reserve(kv_heads);
      before.kept_from.resize(kv_heads);
    }
    layer_state(const layer_state&) = default;
    layer_state(layer_state&&) = default;
    layer_state& operator=(const layer_state&) = delete;  // would let the old arenas go before the old heads
    layer_state& operator=(layer_state&&) = delete;
    ~layer_state() = default;

    std::size_t length() const noexcept { return heads.front().length(); }

    std::shared_ptr<layer_arenas> arenas;  // before the heads, whose pages return to it
    std::vector<head_type> heads;
    bool rolling;
    std::size_t compressed_at = 0;  // length at the last compress()
    struct {
      std::size_t length = next;           // next: not known
      std::vector<std::size_t> kept_from;  // of each head
    } before;                              // the last append
    std::vector<std::size_t> leave_end;    // scratch: where the rows of each head that leave will end; 0: none leaves
    std::vector<float> scratch;            // a key row and a value row to append, or as many as are folded at a time
  };

  std::shared_ptr<layer_arenas> new_arenas(const Format& format, std::size_t layer) const {
    std::size_t retrieval_heads = 0;
    for (std::size_t head = 0; head < shape().kv_heads; ++head)
      retrieval_heads += plan_.role({layer, head}) == head_role::retrieval;
    return std::make_shared<layer_arenas>(
        head_rows<Format>::layout(format, shape().key_size(), shape().value_size()).bytes, layer, retrieval_heads,
        shape().kv_heads - retrieval_heads, options_.memory);
  }

  const Format& format() const noexcept { return layers_.front().heads.front().format(); }

  layer_state& at(std::size_t layer) { return const_cast<layer_state&>(std::as_const(*this).at(layer)); }
  const layer_state& at(std::size_t layer) const {
    if (layer >= layers_.size()) detail::fail("kv_cache: no layer ", layer, " in a model of ", to_string(shape()));
    return layers_[layer];
  }

  typename head_type::leaving leaving(head_id id) const {
    const bool windowed = plan_.role(id) == head_role::windowed;
    return {windowed ? 0 : plan_.sinks(), !windowed, options_.rollback_reserve};
  }
  /// Rows that a head which is no retrieval head keeps besides its sinks, W >= 1. May throw what the budget throws.
  std::size_t recent_rows(head_id id, std::size_t tokens_seen) const {
    if (plan_.role(id) == head_role::windowed) return plan_.window(id.layer);
    return (std::max)(std::size_t{1}, static_cast<std::size_t>(budget_.get()(id, tokens_seen)));
  }

  /// Everything that may throw, before rows leave a layer: asks the budgets at `tokens_seen`, and makes room for early
  /// rows and summaries. `local`: whether local heads are to fold; windowed ones always let rows go.
  void prepare(layer_state& state, std::size_t layer, std::size_t tokens_seen, bool local) {
    for (std::size_t head = 0; head < state.heads.size(); ++head) {
      const head_id id{layer, head};
      const head_role role = plan_.role(id);
      const bool rolls = role == head_role::windowed || (role == head_role::local && local);
      state.leave_end[head] = rolls ? leave_end(id, tokens_seen) : 0;
      if (state.leave_end[head] != 0) state.heads[head].prepare_leave(leaving(id));
    }
  }

  /// Room for rows up to `length`: a page for each head, then the next, so that what the heads keep in the end, old
  /// rows or new, lies side by side, and the chunks in between can go back.
  static void reserve(layer_state& state, std::size_t length) {
    for (std::size_t end = state.length(); end < length;) {
      end = (std::min)(length, (end / page_layout::rows + 1) * page_layout::rows);
      for (head_type& head : state.heads) head.reserve(end);
    }
  }

  /// D = max(0, N - S - W), rounded down to whole blocks of the compensation, and never less than before: where the
  /// rows that leave end.
  std::size_t leave_end(head_id id, std::size_t tokens_seen) const {
    const head_type& head = layers_[id.layer].heads[id.kv_head];
    const auto how = leaving(id);
    const std::size_t window = recent_rows(id, tokens_seen);
    const std::size_t from = (std::max)(how.sinks, head.kept_from());
    if (tokens_seen <= from || window >= tokens_seen - from) return 0;
    const std::size_t block = how.fold ? head.fold_rows() : 1;
    const std::size_t left = (tokens_seen - window - from) / block * block;
    return left != 0 ? from + left : 0;
  }

  /// From where on a head will keep its rows after truncate(length), if that is possible; 0: no row will have left.
  std::optional<std::size_t> kept_from_at(std::size_t length, head_id id) const {
    const layer_state& state = layers_[id.layer];
    const head_type& head = state.heads[id.kv_head];
    const std::size_t first_left = head.rows().first_left();
    if (length <= first_left) return 0;
    const std::size_t now = head.kept_from();
    const std::size_t sinks = (std::min)(now, leaving(id).sinks);
    const bool all_here = first_left >= head.rows().raw_from();
    if (length < head.last_retain().length) return all_here ? std::optional<std::size_t>(0) : std::nullopt;
    if (length < sinks && head.rows().raw_from() <= sinks) return length;  // early rows alone, and all are here
    const auto within_reserve = [&](std::size_t then) -> std::optional<std::size_t> {
      then = (std::max)(then, sinks);
      if (then == now) return length >= now ? std::optional<std::size_t>(now) : std::nullopt;
      if (then <= first_left) return all_here ? std::optional<std::size_t>(0) : std::nullopt;
      return then >= head.rows().raw_from() ? std::optional<std::size_t>(then) : std::nullopt;
    };
    const bool last_append = length == state.before.length;
    if (last_append)
      if (const auto then = within_reserve(state.before.kept_from[id.kv_head])) return then;
    if (const auto then = within_reserve(kept_from_by_rule(length, id))) return then;
    const bool never_arrived = last_append && length == this->length();
    return never_arrived ? within_reserve(now) : std::nullopt;
  }
  /// What it would be if the tokens up to `length` had come one by one.
  std::size_t kept_from_by_rule(std::size_t length, head_id id) const {
    const layer_state& state = layers_[id.layer];
    const head_type& head = state.heads[id.kv_head];
    const head_role role = plan_.role(id);
    const std::size_t now = head.kept_from();
    if (role == head_role::retrieval) return now;
    if (role == head_role::local && !state.rolling && length >= state.compressed_at) return now;
    const auto how = leaving(id);
    const std::size_t window = recent_rows(id, length);
    const std::size_t from =
        (std::max)({how.sinks, head.last_retain().kept_from, length > window ? length - window : 0});
    if (from >= now) return now;
    const std::size_t block = how.fold ? head.fold_rows() : 1;
    return now - (now - from + block - 1) / block * block;
  }

  void leave(layer_state& state, std::size_t layer) noexcept {
    for (std::size_t head = 0; head < state.heads.size(); ++head)
      if (state.leave_end[head] != 0)
        state.heads[head].leave(state.leave_end[head], leaving({layer, head}), state.scratch.data());
  }

  void compress_prepared(std::size_t layer) noexcept {
    layer_state& state = layers_[layer];
    leave(state, layer);
    state.rolling = when_ != when_to_compress::frozen;
    state.compressed_at = state.length();
    state.before.length = next;
    state.arenas->other.trim();  // many pages have come back, and will not be needed again at once
  }

  static constexpr void require_policies() {
    detail::require_format<Format>();
    detail::require_budget<Budget>();
    detail::require_compensation<Compensation>();
  }

  head_plan plan_;
  detail::regular<Budget> budget_;
  when_to_compress when_;
  cache_options options_;
  std::vector<layer_state> layers_;
};

/// A cache for one sequence. `Format` says how rows are stored, the policies decide what stays.
template <class Format, class Budget, class Compensation>
kv_cache<Format, Budget, Compensation> make_cache(head_plan plan, Budget budget, Compensation compensation,
                                                  when_to_compress when, Format format) {
  return make_cache<Format>(std::move(plan), std::move(budget), std::move(compensation), when, std::move(format),
                            cache_options{});
}
template <class Format, class Budget, class Compensation>
kv_cache<Format, Budget, Compensation> make_cache(head_plan plan, Budget budget, Compensation compensation,
                                                  when_to_compress when, Format format, const cache_options& options) {
  return kv_cache<Format, Budget, Compensation>(std::move(plan), std::move(budget), std::move(compensation), when,
                                                std::move(format), options);
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
