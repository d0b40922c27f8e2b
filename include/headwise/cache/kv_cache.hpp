// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <utility>
#include <vector>

#include "headwise/cache/cache_options.hpp"
#include "headwise/cache/cache_report.hpp"
#include "headwise/cache/head_cache.hpp"
#include "headwise/cache/layer_cache.hpp"
#include "headwise/cache/layer_rules.hpp"
#include "headwise/cache/leaving.hpp"
#include "headwise/cache/regular.hpp"
#include "headwise/config.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/fwd.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/when_to_compress.hpp"

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
  using layer_type = layer_cache<Format, Compensation>;

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
    for (std::size_t layer = 0; layer < shape().layers; ++layer)
      layers_.emplace_back(format, compensation, plan_, layer, options_.memory, rolls_at_once());
  }

  kv_cache(const kv_cache&) = default;
  /// A copy whose rows come from another memory: nothing is shared, unless the two are equal.
  kv_cache(const kv_cache& other, std::pmr::memory_resource* memory) : kv_cache(other) {
    const bool equal = memory == options_.memory ||
                       (memory != nullptr && options_.memory != nullptr && memory->is_equal(*options_.memory));
    if (equal) return;
    options_.memory = memory;
    std::vector<layer_type> layers;
    layers.reserve(layers_.size());
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      layers.emplace_back(layers_[layer], plan_, layer, memory);
    layers_.swap(layers);
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
    for (const layer_type& layer : layers_) length = (std::min)(length, layer.length());
    return length;
  }
  std::size_t layer_length(std::size_t layer) const { return at(layer).length(); }
  /// How far back the model itself looks in a layer, its own key included; 0: to the beginning. attend() heeds it.
  std::size_t window(std::size_t layer) const noexcept { return plan_.window(layer); }

  /// Adds a chunk of tokens to a layer: k is [tokens, kv_heads, head_dim], v [tokens, kv_heads, value_dim], in any
  /// strides, keys after RoPE. Attend afterwards. `position` is the caller's idea of where the chunk begins; anything
  /// but the layer's length is refused. On an error nothing has changed.
  void append(std::size_t layer, const token_view& k, const token_view& v, std::size_t position = next) {
    layer_type& to = at(layer);
    detail::check_view(k, "append: keys", shape().kv_heads, shape().key_size());
    detail::check_view(v, "append: values", shape().kv_heads, shape().value_size());
    if (k.tokens != v.tokens) detail::fail("append: ", k.tokens, " tokens of keys and ", v.tokens, " of values");
    if (position != next && position != to.length())
      detail::fail("append: layer ", layer, " ends at position ", to.length(), ", found a chunk for ", position);
    if (k.tokens != 0) to.append(k, v, rules(layer));
  }

  /// Folds what exceeds sinks and window in the local heads of a layer, and keeps them rolling from now on (unless the
  /// cache is frozen). Call it after the prompt has been attended to.
  void compress(std::size_t layer) {
    layer_type& of = at(layer);
    of.prepare_compress(rules(layer));
    of.compress(rules(layer), when_ != when_to_compress::frozen);
  }
  void compress() {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) layers_[layer].prepare_compress(rules(layer));
    // Nothing throws any more: all layers are compressed, or none.
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      layers_[layer].compress(rules(layer), when_ != when_to_compress::frozen);
  }

  /// Keeps the rows of one head at these positions alone, which is what token-level methods decide; the others are
  /// folded into its summary or dropped. Refuses positions that are not ascending, or not kept now.
  void retain(std::size_t layer, std::size_t kv_head, const std::vector<std::size_t>& positions,
              other_rows others = other_rows::fold) {
    const auto& rows = head(layer, kv_head).rows();
    leaving how = rules(layer).how(kv_head);
    if (others == other_rows::drop) how.fold = false;
    if (others == other_rows::fold && !how.fold)
      detail::fail("retain: rows of KV head ", layer, ".", kv_head, " cannot be folded, since its layer is windowed");
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (i != 0 && positions[i] <= positions[i - 1])
        detail::fail("retain: position ", positions[i], " behind ", positions[i - 1], ", expected ascending positions");
      if (!rows.keeps(positions[i]))
        detail::fail("retain: KV head ", layer, ".", kv_head, " keeps no row at position ", positions[i]);
    }
    layers_[layer].retain(kv_head, positions, how);
  }

  /// Takes tokens back: the first `length` of them stay, and everything is, bit for bit, as if the others had never
  /// been appended (to a cache that was compressed, one by one). False, and nothing has changed, where that is not
  /// possible: where more tokens are asked for than there are, or rows would have to come back that left before the
  /// rollback reserve. Exact for budgets under which D does not fall while tokens arrive.
  /// truncate(length()) always succeeds, and puts a step right that failed at some layer: rows that a local head has
  /// folded for the token that never arrived stay folded, as they will be when it does.
  [[nodiscard]] bool truncate(std::size_t length) {
    const std::size_t now = this->length();
    if (length > now) return false;
    std::vector<typename layer_type::truncated> heads;
    heads.reserve(shape().heads());
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      if (layers_[layer].length() != length && !layers_[layer].prepare_truncate(length, now, rules(layer), heads))
        return false;
    auto* prepared = heads.data();
    for (layer_type& layer : layers_) {
      if (layer.length() == length) continue;
      layer.truncate(length, prepared, rolls_at_once());
      prepared += layer.heads();
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
      const layer_type& from = layers_[layer];
      if (window(layer) != 0 && window(layer) == other.window(layer)) {
        other.layers_[layer].copy_windowed(from);
        continue;
      }
      for (std::size_t head = 0; head < from.heads(); ++head)
        if (const std::size_t left = from.head(head).rows().left(); left != 0)
          detail::fail("with: ", left, " rows of KV head ", layer, ".", head,
                       " have left; policies can change only before");
      other.layers_[layer].copy_rows(from);
    }
    return other;
  }

  /// One head's runs and summary: what attend reads.
  const head_type& head(std::size_t layer, std::size_t kv_head) const {
    const layer_type& of = at(layer);
    if (kv_head >= of.heads())
      detail::fail("kv_cache: no KV head ", layer, ".", kv_head, " in a model of ", to_string(shape()));
    return of.head(kv_head);
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
      report.spare_bytes += layers_[layer].spare_bytes();
      for (std::size_t kv_head = 0; kv_head < shape().kv_heads; ++kv_head) {
        const head_type& head = layers_[layer].head(kv_head);
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

  const Format& format() const noexcept { return layers_.front().head(0).format(); }
  bool rolls_at_once() const noexcept { return when_ == when_to_compress::every_append; }
  layer_rules<Budget> rules(std::size_t layer) const noexcept {
    return {plan_, budget_.get(), layer, options_.rollback_reserve};
  }

  layer_type& at(std::size_t layer) { return const_cast<layer_type&>(std::as_const(*this).at(layer)); }
  const layer_type& at(std::size_t layer) const {
    if (layer >= layers_.size()) detail::fail("kv_cache: no layer ", layer, " in a model of ", to_string(shape()));
    return layers_[layer];
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
  std::vector<layer_type> layers_;
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
