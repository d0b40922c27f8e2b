// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "headwise/core/attention_params.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/policy/when_to_compress.hpp"
#include "support/tokens.hpp"

namespace headwise::test {

/// What a cache should hold and answer, in the words of the method: per head a plain list of all rows ever appended, a
/// mark at those that have left, and attention written down as the equations say, in double. Slow and obvious; nothing
/// is shared with the library but the input types.
class row_model {
 public:
  enum class summary { none, mean, moment };
  using budget = std::function<std::size_t(head_id, std::size_t)>;

  struct row {
    std::vector<double> key, value;
    bool left = false;
  };
  using head_list = std::vector<row>;

  row_model(head_plan plan, budget recent, summary kind, when_to_compress when)
      : plan_(std::move(plan)),
        budget_(std::move(recent)),
        kind_(kind),
        when_(when),
        heads_(plan_.shape().heads()),
        rolling_(plan_.shape().layers, when == when_to_compress::every_append) {}

  const head_plan& plan() const { return plan_; }
  summary kind() const { return kind_; }
  const head_list& head(head_id id) const { return heads_[id.layer * plan_.shape().kv_heads + id.kv_head]; }
  std::size_t length(std::size_t layer) const { return head({layer, 0}).size(); }

  /// Rows as the cache stores them: `stored(x)` is what the format makes of a float.
  template <class Stored>
  void append(std::size_t layer, tokens& rows, std::size_t first, std::size_t n, Stored&& stored) {
    const std::size_t old_length = length(layer);
    if (rolling_[layer] && n > 1) fold(layer, old_length);
    for (std::size_t i = 0; i < plan_.shape().kv_heads; ++i)
      for (std::size_t t = first; t < first + n; ++t) {
        row added;
        for (std::size_t j = 0; j < plan_.shape().key_size(); ++j)
          added.key.push_back(static_cast<double>(stored(rows.key(t, i)[j])));
        for (std::size_t j = 0; j < plan_.shape().value_size(); ++j)
          added.value.push_back(static_cast<double>(stored(rows.value(t, i)[j])));
        list({layer, i}).push_back(std::move(added));
      }
    if (rolling_[layer] && n == 1) fold(layer, old_length + 1);
  }

  void compress(std::size_t layer) {
    fold(layer, length(layer));
    if (when_ != when_to_compress::frozen) rolling_[layer] = true;
  }

  bool anything_left() const {
    for (const head_list& rows : heads_)
      for (const row& r : rows)
        if (r.left) return true;
    return false;
  }
  row_model with(head_plan plan, budget recent, summary kind) const {
    row_model other = *this;
    other.plan_ = std::move(plan);
    other.budget_ = std::move(recent);
    other.kind_ = kind;
    return other;
  }

  std::vector<std::size_t> kept_positions(head_id id) const {
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < head(id).size(); ++i)
      if (!head(id)[i].left) positions.push_back(i);
    return positions;
  }
  std::size_t left(head_id id) const { return head(id).size() - kept_positions(id).size(); }

  /// Attention of one query at `position`, read by query head `query_head`:
  /// softmax over s q.k of the kept rows up to there and, for the D rows that have left, one row of logit
  /// s q.k_hat + ln D (the softcap applies to the first alone).
  std::vector<double> attention(std::size_t layer, std::size_t query_head, std::size_t position, const float* query,
                                const attention_params& params = {}) const {
    const model_shape& shape = plan_.shape();
    const head_list& rows = head({layer, query_head / shape.group()});
    const double scale = params.scale != 0.0F ? static_cast<double>(params.scale)
                                              : 1.0 / std::sqrt(static_cast<double>(shape.key_size()));
    const double cap = static_cast<double>(params.softcap);
    const auto dot = [&](const std::vector<double>& key) {
      double sum = 0.0;
      for (std::size_t j = 0; j < key.size(); ++j) sum += scale * static_cast<double>(query[j]) * key[j];
      return sum;
    };
    const auto capped = [&](double x) { return cap > 0.0 ? cap * std::tanh(x / cap) : x; };

    std::vector<double> logits;
    std::vector<std::vector<double>> values;
    for (std::size_t i = 0; i <= position; ++i)
      if (!rows[i].left) {
        logits.push_back(capped(dot(rows[i].key)));
        values.push_back(rows[i].value);
      }
    std::vector<const row*> folded;
    if (kind_ != summary::none)
      for (const row& r : rows)
        if (r.left) folded.push_back(&r);
    if (!folded.empty()) {
      const auto count = static_cast<double>(folded.size());
      std::vector<double> key(shape.key_size()), value(shape.value_size());
      for (const row* r : folded) {
        for (std::size_t j = 0; j < key.size(); ++j) key[j] += r->key[j] / count;
        for (std::size_t j = 0; j < value.size(); ++j) value[j] += r->value[j] / count;
      }
      const double mean_logit = capped(dot(key));
      if (kind_ == summary::moment) {  // v_hat + C_vk (s q), with the slope of the softcap
        const double slope = cap > 0.0 ? 1.0 - mean_logit / cap * (mean_logit / cap) : 1.0;
        const std::vector<double> mean_value = value;
        for (const row* r : folded) {
          const double along = dot(r->key) - dot(key);
          for (std::size_t j = 0; j < value.size(); ++j)
            value[j] += slope * (r->value[j] - mean_value[j]) * along / count;
        }
      }
      logits.push_back(mean_logit + std::log(count));
      values.push_back(value);
    }

    if (logits.empty()) return std::vector<double>(shape.value_size());  // nothing to see gives zeros
    const double largest = *std::max_element(logits.begin(), logits.end());
    std::vector<double> out(shape.value_size());
    double total = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double weight = std::exp(logits[i] - largest);
      total += weight;
      for (std::size_t j = 0; j < out.size(); ++j) out[j] += weight * values[i][j];
    }
    for (double& x : out) x /= total;
    return out;
  }

 private:
  head_list& list(head_id id) { return heads_[id.layer * plan_.shape().kv_heads + id.kv_head]; }

  /// Everything between the sinks and the newest W of `seen` tokens leaves the local heads of a layer, for the moment
  /// in whole blocks of 16.
  void fold(std::size_t layer, std::size_t seen) {
    for (std::size_t head = 0; head < plan_.shape().kv_heads; ++head) {
      const head_id id{layer, head};
      if (plan_.role(id) == head_role::retrieval) continue;
      const std::size_t window = std::max<std::size_t>(1, budget_(id, seen));
      if (seen < plan_.sinks() || seen - plan_.sinks() < window) continue;
      const std::size_t exceed = seen - plan_.sinks() - window;
      const std::size_t leave = kind_ == summary::moment ? exceed - exceed % 16 : exceed;
      for (std::size_t i = 0; i < leave; ++i) list(id)[plan_.sinks() + i].left = true;
    }
  }

  head_plan plan_;
  budget budget_;
  summary kind_;
  when_to_compress when_;
  std::vector<head_list> heads_;
  std::vector<bool> rolling_;
};

}  // namespace headwise::test
