// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/executor.hpp"
#include "headwise/core/head_scores.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/probe/repeated_tokens.hpp"
#include "headwise/probe/target_rules.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Scores every query head while an engine prefills the probe: it sees the queries and keys of each layer, chunk by
/// chunk, and measures the attention mass on the rules' targets. Of the attention matrix only a block of logits exists
/// at a time: O(N^2 d) work, and as memory the probe's own keys in float32 (46 MB for SmolLM2-135M at 2001 tokens).
/// The default rules are echo and induction.
template <class... Rules>
class head_scorer {
  static_assert(sizeof...(Rules) > 0, "headwise: a head_scorer needs at least one target rule");

 public:
  /// `params`: the model's scale and softcap.
  head_scorer(const model_shape& shape, repeated_tokens probe, const attention_params& params = {})
      : head_scorer(shape, std::move(probe), params, Rules{}...) {}
  head_scorer(const model_shape& shape, repeated_tokens probe, const attention_params& params, Rules... rules)
      : shape_(shape), probe_(std::move(probe)), params_(params), rules_(std::move(rules)...) {
    check(shape);
    check(params);
    (detail::require_target_rule<Rules>(), ...);
    params_.scale = params.scale_for(shape.key_size());
    layers_.resize(shape.layers);
  }

  /// A chunk of one layer, after RoPE: q is [tokens, query_heads, head_dim], k [tokens, kv_heads, head_dim], in any
  /// strides. Chunks of a layer come in order. Refuses other shapes, and more tokens than the probe has.
  template <class Executor = serial>
  void observe(std::size_t layer, const token_view& q, const token_view& k, const Executor& executor = {}) {
    if (layer >= shape_.layers) detail::fail("head_scorer: no layer ", layer, " in a model of ", to_string(shape_));
    detail::check_view(q, "head_scorer: queries", shape_.query_heads, shape_.key_size());
    detail::check_view(k, "head_scorer: keys", shape_.kv_heads, shape_.key_size());
    if (q.tokens != k.tokens) detail::fail("head_scorer: ", q.tokens, " queries and ", k.tokens, " keys");
    layer_state& state = layers_[layer];
    if (k.tokens > probe_.size() - state.seen)
      detail::fail("head_scorer: layer ", layer, " has seen ", state.seen, " tokens, found ", k.tokens,
                   " more for a probe of ", probe_.size());
    if (k.tokens == 0) return;

    const std::size_t dim = shape_.key_size();
    if (state.keys.empty()) {
      state.keys.resize(shape_.kv_heads * probe_.size() * dim);
      state.mass.resize(shape_.query_heads);
    }
    for (std::size_t head = 0; head < shape_.kv_heads; ++head)
      for (std::size_t token = 0; token < k.tokens; ++token)
        kernel::read_row(kernel::fastest(), k, token, head,
                         state.keys.data() + (head * probe_.size() + state.seen + token) * dim);

    const std::size_t blocks = (q.tokens + block_queries - 1) / block_queries;
    std::vector<std::vector<masses>> found(shape_.kv_heads * blocks);  // [kv head, block][query head of the group]
    std::vector<std::vector<float>> scratch(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      found[i].resize(shape_.group());
      scratch[i].resize(scratch_floats());
    }
    executor(found.size(), [&](std::size_t i) {
      score(state, q, i / blocks, i % blocks * block_queries, scratch[i].data(), found[i].data());
    });
    for (std::size_t i = 0; i < found.size(); ++i)  // always added in the same order
      for (std::size_t g = 0; g < shape_.group(); ++g)
        for (std::size_t rule = 0; rule < rule_count; ++rule) {
          masses& total = state.mass[i / blocks * shape_.group() + g];
          total.sum[rule] += found[i][g].sum[rule];
          total.rows[rule] += found[i][g].rows[rule];
        }
    state.seen += k.tokens;
  }

  /// The scores, a column per rule. Refuses while a layer has not seen the whole probe, or a rule named no target.
  head_scores scores() const {
    head_scores result(shape_);
    std::size_t rule = 0;
    std::apply([&](const auto&... each) { (result.add(each.name(), column(rule++, each.name())), ...); }, rules_);
    return result;
  }

 private:
  static constexpr std::size_t rule_count = sizeof...(Rules);
  static constexpr std::size_t block_queries = 32;

  struct masses {  // of one query head, per rule: attention on targets, and the rows that had one
    std::array<double, rule_count> sum{};
    std::array<std::size_t, rule_count> rows{};
  };
  struct layer_state {
    std::size_t seen = 0;
    std::vector<float> keys;   // [kv head, token, element]
    std::vector<masses> mass;  // [query head]
  };

  std::size_t scratch_floats() const noexcept {
    const std::size_t rows = block_queries * shape_.group();
    return rows * (shape_.key_size() + kernel::block_rows + 2 + rule_count) +
           kernel::reference::scratch_floats(rows, shape_.key_size(), 0);
  }

  /// Scores up to block_queries queries of the chunk, from `first` on, for the query heads of one KV head.
  void score(const layer_state& state, const token_view& q, std::size_t kv_head, std::size_t first, float* scratch,
             masses* found) const noexcept {
    const std::size_t dim = shape_.key_size();
    const std::size_t group = shape_.group();
    const std::size_t tokens = (std::min)(block_queries, q.tokens - first);
    const std::size_t rows = tokens * group;
    float* const queries = scratch;
    float* const maximum = queries + rows * dim;
    float* const sum = maximum + rows;
    float* const on_targets = sum + rows;  // [row, rule]
    float* const logits = on_targets + rows * rule_count;
    float* const rest = logits + rows * kernel::block_rows;
    std::fill_n(on_targets, rows * rule_count, 0.0F);
    for (std::size_t row = 0; row < rows; ++row) {
      kernel::read_row(kernel::fastest(), q, first + row / group, kv_head * group + row % group, queries + row * dim);
      for (std::size_t i = 0; i < dim; ++i) queries[row * dim + i] *= params_.scale;
      maximum[row] = kernel::lowest_logit;
      sum[row] = 0.0F;
    }
    const float* const keys = state.keys.data() + kv_head * probe_.size() * dim;
    const std::size_t position = state.seen + first;
    key_range sees[block_queries];
    for (std::size_t token = 0; token < tokens; ++token) sees[token] = {0, position + token + 1};
    const kernel::query_block block{queries, rows, group, dim, 0, &params_, sees};

    // A softmax without values: of each row its sum of weights, and the part of that sum which falls on targets. They
    // are the very same weights, so the share is right however large the logits are.
    for (std::size_t start = 0; start < position + tokens; start += kernel::block_rows) {
      const std::size_t count = (std::min)(kernel::block_rows, position + tokens - start);
      const auto* bytes = reinterpret_cast<const std::byte*>(keys + start * dim);
      kernel::reference::block_logits(float32{}, {bytes, nullptr, count, start, 0.0F}, block, rest, logits);
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t visible = block.visible(row, start, count).end;
        float* const weights = logits + row * kernel::block_rows;
        float* const on_target = on_targets + row * rule_count;
        const float factor = kernel::reference::softmax_row(weights, visible, maximum[row], sum[row]);
        for (std::size_t rule = 0; rule < rule_count; ++rule) on_target[rule] *= factor;
        for_each_target(position + row / group, [&](std::size_t rule, std::size_t target) {
          if (target >= start && target - start < visible) on_target[rule] += weights[target - start];
        });
      }
    }
    for (std::size_t row = 0; row < rows; ++row) {
      std::array<bool, rule_count> any{};
      for_each_target(position + row / group, [&](std::size_t rule, std::size_t) { any[rule] = true; });
      for (std::size_t rule = 0; rule < rule_count; ++rule) {
        if (!any[rule]) continue;
        const double mass = static_cast<double>(on_targets[row * rule_count + rule]) / static_cast<double>(sum[row]);
        found[row % group].sum[rule] += mass > 1.0 ? 1.0 : mass;  // rounding alone goes above 1; a NaN stays one
        ++found[row % group].rows[rule];
      }
    }
  }

  /// visit(rule, target) for all targets of all rules of the probe's token `token`; targets count from the prefix on,
  /// as tokens do.
  template <class Visit>
  void for_each_target(std::size_t token, Visit&& visit) const noexcept {
    const std::size_t prefix = probe_.prefix_length();
    if (token < prefix) return;
    std::size_t index = 0;
    const auto each = [&](const auto& rule) {
      rule(probe_, token - prefix, [&](std::size_t target) {
        HEADWISE_ASSERT(target + prefix <= token);
        visit(index, target + prefix);
      });
      ++index;
    };
    std::apply([&](const auto&... rules) { (each(rules), ...); }, rules_);
  }

  std::vector<double> column(std::size_t rule, const char* name) const {
    std::vector<double> values;
    values.reserve(shape_.layers * shape_.query_heads);
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      if (layers_[layer].seen != probe_.size())
        detail::fail("head_scorer: layer ", layer, " has seen ", layers_[layer].seen, " of the probe's ", probe_.size(),
                     " tokens");
      for (const masses& mass : layers_[layer].mass) {
        if (mass.rows[rule] == 0) detail::fail("head_scorer: rule '", name, "' named no target in any row");
        values.push_back(mass.sum[rule] / static_cast<double>(mass.rows[rule]));
      }
    }
    return values;
  }

  model_shape shape_;
  repeated_tokens probe_;
  attention_params params_;
  std::tuple<Rules...> rules_;
  std::vector<layer_state> layers_;
};

head_scorer(const model_shape&, repeated_tokens)->head_scorer<echo, induction>;
head_scorer(const model_shape&, repeated_tokens, const attention_params&)->head_scorer<echo, induction>;

}  // namespace HEADWISE_ISA
}  // namespace headwise
