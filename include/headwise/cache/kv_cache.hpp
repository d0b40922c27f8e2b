// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

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

namespace headwise {
inline namespace HEADWISE_ISA {

/// The KV cache of one sequence, all layers. Retrieval heads keep every row; local heads keep the plan's sinks, the
/// budget's recent rows (and up to a block more, where the compensation folds in blocks), and a summary of everything
/// between. Rows are post-RoPE, keep their positions, and are never
/// changed. A regular value: a copy is independent. Operations on distinct layers may run concurrently.
template <class Format, class Budget, class Compensation>
class kv_cache {
 public:
  using format_type = Format;
  using head_type = head_cache<Format, Compensation>;
  /// Position of an append that says: wherever the layer ends.
  static constexpr std::size_t next = (std::numeric_limits<std::size_t>::max)();

  explicit kv_cache(head_plan plan, Budget budget = Budget{}, Compensation compensation = Compensation{},
                    when_to_compress when = when_to_compress::after_prompt, Format format = Format{})
      : plan_(std::move(plan)), budget_(std::move(budget)), when_(when) {
    require_policies();
    make_layers(format, nullptr, [&](std::size_t, std::size_t, page_arena& arena) {
      return head_type(format, compensation, shape().key_size(), shape().value_size(), arena);
    });
  }

  kv_cache(const kv_cache& other) : plan_(other.plan_), budget_(other.budget_), when_(other.when_) {
    if (other.layers_.empty()) return;  // it has been moved from
    make_layers(other.format(), other.layers_.data(), [&](std::size_t layer, std::size_t head, page_arena& arena) {
      return head_type(other.layers_[layer].heads[head], arena);
    });
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
    prepare(state, layer, state.rolling ? (alone ? length : old_length) : 0, length);
    for (std::size_t head = 0; head < state.heads.size(); ++head) {
      if (!alone) fold(state, head);
      for (std::size_t token = 0; token < k.tokens; ++token)
        state.heads[head].append(k, v, token, head, state.scratch.data());
      if (alone) fold(state, head);
    }
  }

  /// Folds what exceeds sinks and window in the local heads of a layer, and keeps them rolling from now on (unless the
  /// cache is frozen). Call it after the prompt has been attended to.
  void compress(std::size_t layer) {
    layer_state& state = at(layer);
    prepare(state, layer, state.length(), 0);
    fold(state);
  }
  void compress() {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      prepare(layers_[layer], layer, layers_[layer].length(), 0);
    for (layer_state& state : layers_) fold(state);  // nothing throws any more: all layers are compressed, or none
  }

  /// A cache of the same rows under another plan and other policies. Refused once a row has left any head, since what
  /// one policy has folded another cannot unfold.
  template <class OtherBudget, class OtherCompensation>
  kv_cache<Format, OtherBudget, OtherCompensation> with(head_plan plan, OtherBudget budget,
                                                        OtherCompensation compensation) const {
    if (plan.shape() != shape())
      detail::fail("with: the plan is for ", to_string(plan.shape()), ", the cache for ", to_string(shape()));
    kv_cache<Format, OtherBudget, OtherCompensation> other(std::move(plan), std::move(budget), compensation, when_,
                                                           format());
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      auto& changed = other.layers_[layer];
      changed.rolling = layers_[layer].rolling;
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
      report.spare_bytes += layers_[layer].arenas->held_bytes();
      for (std::size_t kv_head = 0; kv_head < shape().kv_heads; ++kv_head) {
        const head_type& rows = layers_[layer].heads[kv_head];
        const head_id id{layer, kv_head};
        report.add({id, plan_.role(id), rows.rows().kept(), rows.folded(), rows.dropped(), rows.rows().row_bytes(),
                    rows.rows().slack_bytes(), rows.summary_bytes()});
        report.dense_bytes += rows.length() * (rows.rows().key_bytes() + rows.rows().value_bytes());
      }
    }
    report.spare_bytes -= report.row_bytes + report.slack_bytes;
    return report;
  }

 private:
  template <class, class, class>
  friend class kv_cache;

  /// Two, so that what compress() frees does not lie among the pages of heads that keep everything.
  struct layer_arenas {
    layer_arenas(std::size_t page_bytes, std::size_t layer, std::size_t retrieval_heads,
                 std::size_t local_heads) noexcept
        : retrieval(page_bytes, retrieval_heads, layer), local(page_bytes, local_heads, layer) {}

    page_arena& of(head_role role) noexcept { return role == head_role::retrieval ? retrieval : local; }
    std::size_t held_bytes() const noexcept { return retrieval.held_bytes() + local.held_bytes(); }

    page_arena retrieval;
    page_arena local;
  };

  struct layer_state {
    layer_state(const model_shape& shape, bool starts_rolling, std::unique_ptr<layer_arenas> empty)
        : arenas(std::move(empty)), rolling(starts_rolling), fold_end(shape.kv_heads, 0) {
      heads.reserve(shape.kv_heads);
    }
    layer_state(layer_state&&) = default;
    layer_state& operator=(layer_state&&) = delete;  // would let the old arenas go before the old heads
    ~layer_state() = default;

    std::size_t length() const noexcept { return heads.front().length(); }

    std::unique_ptr<layer_arenas> arenas;  // before the heads, whose pages return to it
    std::vector<head_type> heads;
    bool rolling;
    std::vector<std::size_t> fold_end;  // scratch: where the folded rows of each head will end; 0: nothing leaves
    std::vector<float> scratch;         // a key row and a value row to append, or as many as are folded at a time
  };

  /// Layers whose heads are make_head(layer, kv_head, arena); rolling as those `from` which they are copied, if any.
  template <class MakeHead>
  void make_layers(const Format& format, const layer_state* from, MakeHead&& make_head) {
    const std::size_t page_bytes = head_rows<Format>::layout(format, shape().key_size(), shape().value_size()).bytes;
    layers_.reserve(shape().layers);
    for (std::size_t layer = 0; layer < shape().layers; ++layer) {
      std::size_t local_heads = 0;
      for (std::size_t head = 0; head < shape().kv_heads; ++head)
        local_heads += plan_.role({layer, head}) == head_role::local;
      layers_.emplace_back(
          shape(), from != nullptr ? from[layer].rolling : when_ == when_to_compress::every_append,
          std::make_unique<layer_arenas>(page_bytes, layer, shape().kv_heads - local_heads, local_heads));
      layer_state& made = layers_.back();
      for (std::size_t head = 0; head < shape().kv_heads; ++head)
        made.heads.push_back(make_head(layer, head, made.arenas->of(plan_.role({layer, head}))));
      made.scratch.resize(made.heads.front().scratch_rows() * (shape().key_size() + shape().value_size()));
    }
  }

  const Format& format() const noexcept { return layers_.front().heads.front().format(); }

  layer_state& at(std::size_t layer) { return const_cast<layer_state&>(std::as_const(*this).at(layer)); }
  const layer_state& at(std::size_t layer) const {
    if (layer >= layers_.size()) detail::fail("kv_cache: no layer ", layer, " in a model of ", to_string(shape()));
    return layers_[layer];
  }

  /// Everything that may throw, before anything changes: asks the budget for each local head at `tokens_seen` (0: fold
  /// nothing), and makes room for the summaries and for rows up to `length`.
  void prepare(layer_state& state, std::size_t layer, std::size_t tokens_seen, std::size_t length) {
    for (std::size_t head = 0; head < state.heads.size(); ++head) {
      state.fold_end[head] = tokens_seen == 0 ? 0 : fold_end({layer, head}, state.heads[head], tokens_seen);
      if (state.fold_end[head] != 0) state.heads[head].reserve_summary();
    }
    reserve(state, length);
  }

  /// Room for rows up to `length`: a page for each head, then the next, so that what the heads keep in the end, old
  /// rows or new, lies side by side, and the chunks in between can go back.
  static void reserve(layer_state& state, std::size_t length) {
    for (std::size_t end = state.length(); end < length;) {
      end = (std::min)(length, end + page_layout::rows);
      for (head_type& head : state.heads) head.reserve(end);
    }
  }

  /// D = max(0, N - S - W), rounded down to whole blocks of the compensation, and never less than before: rows
  /// [S, S + D) leave.
  std::size_t fold_end(head_id id, const head_type& head, std::size_t tokens_seen) const {
    if (plan_.role(id) == head_role::retrieval) return 0;
    const std::size_t window = (std::max)(std::size_t{1}, static_cast<std::size_t>(budget_.get()(id, tokens_seen)));
    if (tokens_seen <= plan_.sinks() || window >= tokens_seen - plan_.sinks()) return 0;
    const std::size_t block = head.fold_rows();
    const std::size_t left = (tokens_seen - plan_.sinks() - window) / block * block;
    return left != 0 && plan_.sinks() + left > head.kept_from() ? plan_.sinks() + left : 0;
  }

  void fold(layer_state& state, std::size_t head) noexcept {
    if (state.fold_end[head] != 0) state.heads[head].fold(plan_.sinks(), state.fold_end[head], state.scratch.data());
  }

  void fold(layer_state& state) noexcept {
    for (std::size_t head = 0; head < state.heads.size(); ++head) fold(state, head);
    state.rolling = when_ != when_to_compress::frozen;
    state.arenas->local.trim();  // many pages have come back, and will not be needed again at once
  }

  static constexpr void require_policies() {
    detail::require_format<Format>();
    detail::require_budget<Budget>();
    detail::require_compensation<Compensation>();
  }

  head_plan plan_;
  detail::regular<Budget> budget_;
  when_to_compress when_;
  std::vector<layer_state> layers_;
};

/// A cache for one sequence. `Format` says how rows are stored, the policies decide what stays.
template <class Format, class Budget, class Compensation>
kv_cache<Format, Budget, Compensation> make_cache(head_plan plan, Budget budget, Compensation compensation,
                                                  when_to_compress when, Format format) {
  return kv_cache<Format, Budget, Compensation>(std::move(plan), std::move(budget), std::move(compensation), when,
                                                std::move(format));
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
