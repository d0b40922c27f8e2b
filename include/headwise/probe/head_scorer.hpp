// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
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
    layer_state& state = checked(layer, q);
    detail::check_view(k, "head_scorer: keys", shape_.kv_heads, shape_.key_size());
    if (q.tokens != k.tokens) detail::fail("head_scorer: ", q.tokens, " queries and ", k.tokens, " keys");
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

    score(
        state, q, executor,
        [&](std::size_t kv_head, std::size_t first, std::size_t tokens, workspace& work) {
          softmax_of(state, kv_head, first, tokens, work);
        },
        [&](std::size_t kv_head, std::size_t position, float*) -> const float* {
          return state.keys.data() + (kv_head * probe_.size() + position) * shape_.key_size();
        });
  }

  /// The same where attention is headwise's own: `log_sum_exp` is what it told about this chunk, [tokens, query_heads]
  /// (attention_extras), and the keys are those of the cache that it read, which keeps them all. A few products a row
  /// instead of a second attention. Chunks of a layer come in order, each after it was appended and attended to.
  template <class Cache, class Executor = serial>
  void observe(std::size_t layer, const token_view& q, const Cache& cache, const double* log_sum_exp,
               const Executor& executor = {}) {
    layer_state& state = checked(layer, q);
    if (cache.shape() != shape_)
      detail::fail("head_scorer: the cache is for ", to_string(cache.shape()), ", expected ", to_string(shape_));
    for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
      const auto& rows = cache.head(layer, head);
      if (rows.length() != state.seen + q.tokens)
        detail::fail("head_scorer: layer ", layer, " of the cache has ", rows.length(), " tokens, expected ",
                     state.seen + q.tokens);
      if (rows.kept_from() != 0)
        detail::fail("head_scorer: rows of KV head ", layer, ".", head, " have left, expected the whole probe");
    }
    if (q.tokens == 0) return;
    if (state.mass.empty()) state.mass.resize(shape_.query_heads);
    const kernel::functions& kernels = kernel::fastest();
    const std::size_t group = shape_.group();
    score(
        state, q, executor,
        [&](std::size_t kv_head, std::size_t first, std::size_t tokens, workspace& work) {
          for (std::size_t row = 0; row < tokens * group; ++row)
            work.log_sum[row] = log_sum_exp[(first + row / group) * shape_.query_heads + kv_head * group + row % group];
        },
        [&](std::size_t kv_head, std::size_t position, float* room) -> const float* {
          const auto& rows = cache.head(layer, kv_head);
          const auto run = rows.run_at(position / kernel::block_rows);
          const std::size_t offset = rows.format().bytes(shape_.key_size()) * (position - run.position);
          kernel::decode(kernels, rows.format(), run.keys + offset, room, shape_.key_size());
          return room;
        });
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
  static constexpr std::size_t block_queries = 64;

  struct masses {  // of one query head, per rule: attention on targets, and the rows that had one
    std::array<double, rule_count> sum{};
    std::array<std::size_t, rule_count> rows{};
  };
  struct layer_state {
    std::size_t seen = 0;
    std::vector<float> keys;   // [kv head, token, element]
    std::vector<masses> mass;  // [query head]
  };

  layer_state& checked(std::size_t layer, const token_view& q) {
    if (layer >= shape_.layers) detail::fail("head_scorer: no layer ", layer, " in a model of ", to_string(shape_));
    detail::check_view(q, "head_scorer: queries", shape_.query_heads, shape_.key_size());
    layer_state& state = layers_[layer];
    if (q.tokens > probe_.size() - state.seen)
      detail::fail("head_scorer: layer ", layer, " has seen ", state.seen, " tokens, found ", q.tokens,
                   " more for a probe of ", probe_.size());
    return state;
  }

  /// Query heads of a group, as a product's width.
  std::size_t width() const noexcept { return (shape_.group() + 7) / 8 * 8; }

  /// Most targets of a token whose products are taken together.
  static constexpr std::size_t targets_at_once = 6;
  static constexpr std::size_t most_workspaces = 64;

  /// What a running task needs. Not cleared: most of it is never touched.
  struct workspace {
    float* queries;  ///< [queries of a block x group, key_size], scaled
    float* turned;   ///< [key_size, width]: those of one token
    float* keys;     ///< [targets_at_once, key_size]
    float* logits;   ///< [targets_at_once, width]
    float* softmax;  ///< [2, queries of a block x group], and what kernels ask for: where there is no log_sum yet
    float* rest;
    double* log_sum;  ///< [queries of a block x group]
    masses* row;      ///< [group]
  };

  /// Workspaces for the tasks of one call, claimed by whoever runs one.
  class workspace_pool {
   public:
    workspace_pool(const head_scorer& scorer, std::size_t tasks) : count_((std::min)(tasks, most_workspaces)) {
      const std::size_t group = scorer.shape_.group();
      rows_ = block_queries * group;
      dim_ = scorer.shape_.key_size();
      width_ = scorer.width();
      floats_each_ = rows_ * (dim_ + 2) + dim_ * width_ + targets_at_once * (dim_ + width_) +
                     kernel::scratch_floats(kernel::for_sizes(dim_, 0), rows_, dim_, 0);
      floats_.reset(new float[count_ * floats_each_]);
      log_sums_.reset(new double[count_ * rows_]);
      masses_.resize(count_ * group);
      taken_.reset(new std::atomic<bool>[count_]);
      for (std::size_t i = 0; i < count_; ++i) taken_[i].store(false, std::memory_order_relaxed);
    }

    template <class Use>
    void with_one(Use&& use) {
      std::size_t i = 0;
      while (taken_[i].exchange(true, std::memory_order_acquire)) {
        i = (i + 1) % count_;
        if (i == 0) std::this_thread::yield();
      }
      float* const start = floats_.get() + i * floats_each_;
      workspace work{};
      work.queries = start;
      work.turned = work.queries + rows_ * dim_;
      work.keys = work.turned + dim_ * width_;
      work.logits = work.keys + targets_at_once * dim_;
      work.softmax = work.logits + targets_at_once * width_;
      work.rest = work.softmax + 2 * rows_;
      work.log_sum = log_sums_.get() + i * rows_;
      work.row = masses_.data() + i * (masses_.size() / count_);
      use(work);
      taken_[i].store(false, std::memory_order_release);
    }

   private:
    std::size_t count_, rows_, dim_, width_, floats_each_;
    std::unique_ptr<float[]> floats_;
    std::unique_ptr<double[]> log_sums_;
    std::vector<masses> masses_;
    std::unique_ptr<std::atomic<bool>[]> taken_;
  };

  /// The mass on the targets of a chunk. softmax(kv_head, first, tokens, workspace) fills in the log_sum of a block of
  /// queries; key(kv_head, position, room) gives a row, in the room or elsewhere.
  template <class Executor, class Softmax, class Key>
  void score(layer_state& state, const token_view& q, const Executor& executor, const Softmax& softmax,
             const Key& key) {
    const std::size_t blocks = (q.tokens + block_queries - 1) / block_queries;
    const std::size_t group = shape_.group();
    const std::size_t dim = shape_.key_size();
    std::vector<masses> found(shape_.kv_heads * blocks * group);  // [kv head, block, query head of the group]
    workspace_pool pool(*this, shape_.kv_heads * blocks);
    const kernel::functions& kernels = kernel::for_sizes(dim, 0);
    executor(shape_.kv_heads * blocks, [&](std::size_t i) {
      const std::size_t kv_head = i / blocks;
      const std::size_t first = i % blocks * block_queries;
      const std::size_t tokens = (std::min)(block_queries, q.tokens - first);
      pool.with_one([&](workspace& work) {
        for (std::size_t row = 0; row < tokens * group; ++row) {
          float* const query = work.queries + row * dim;
          kernel::read_row(kernels, q, first + row / group, kv_head * group + row % group, query);
          for (std::size_t j = 0; j < dim; ++j) query[j] *= params_.scale;
        }
        softmax(kv_head, first, tokens, work);
        const auto key_of = [&](std::size_t position, float* room) { return key(kv_head, position, room); };
        for (std::size_t token = 0; token < tokens; ++token)
          add_token(state.seen + first + token, key_of, work.queries + token * group * dim,
                    work.log_sum + token * group, work, found.data() + i * group, kernels);
      });
    });
    for (std::size_t i = 0; i < found.size(); ++i)  // always added in the same order
      for (std::size_t rule = 0; rule < rule_count; ++rule) {
        masses& total = state.mass[i / group / blocks * group + i % group];
        total.sum[rule] += found[i].sum[rule];
        total.rows[rule] += found[i].rows[rule];
      }
    state.seen += q.tokens;
  }

  /// What the query rows of one token, one for each head of the group, give to the targets of each rule. Products are
  /// summed in the order of the kernels' own, so that the share is right however large the logits are.
  template <class Key>
  void add_token(std::size_t token, const Key& key, const float* queries, const double* log_sum, workspace& work,
                 masses* found, const kernel::functions& kernels) const noexcept {
    const std::size_t dim = shape_.key_size();
    const std::size_t group = shape_.group();
    std::array<std::size_t, targets_at_once> rules{};
    std::size_t waiting = 0;
    bool turned = false;
    for (std::size_t g = 0; g < group; ++g) work.row[g] = masses{};
    const auto add_waiting = [&] {
      if (!turned)
        for (std::size_t j = 0; j < dim; ++j)
          for (std::size_t g = 0; g < width(); ++g)
            work.turned[j * width() + g] = g < group ? queries[g * dim + j] : 0.0F;
      turned = true;
      std::fill_n(work.logits, waiting * width(), 0.0F);
      kernels.add_product(waiting, width(), dim, work.keys, dim, 1, work.turned, width(), work.logits, width());
      for (std::size_t i = 0; i < waiting; ++i)
        for (std::size_t g = 0; g < group; ++g) {
          const float logit = params_.capped(work.logits[i * width() + g]);
          work.row[g].sum[rules[i]] += std::exp(static_cast<double>(logit) - log_sum[g]);
          work.row[g].rows[rules[i]] = 1;
        }
      waiting = 0;
    };
    for_each_target(token, [&](std::size_t rule, std::size_t target) {
      float* const room = work.keys + waiting * dim;
      const float* const row = key(target, room);
      if (row != room) std::copy_n(row, dim, room);
      rules[waiting++] = rule;
      if (waiting == targets_at_once) add_waiting();
    });
    if (waiting != 0) add_waiting();
    for (std::size_t g = 0; g < group; ++g)
      for (std::size_t rule = 0; rule < rule_count; ++rule) {
        const double mass = work.row[g].sum[rule];
        found[g].sum[rule] += mass > 1.0 ? 1.0 : mass;  // rounding alone goes above 1; a NaN stays one
        found[g].rows[rule] += work.row[g].rows[rule];
      }
  }

  /// A softmax without values, over the keys that were observed.
  void softmax_of(const layer_state& state, std::size_t kv_head, std::size_t first, std::size_t tokens,
                  workspace& work) const noexcept {
    const std::size_t rows = tokens * shape_.group();
    const std::size_t dim = shape_.key_size();
    key_range sees[block_queries];
    for (std::size_t token = 0; token < tokens; ++token) sees[token] = {0, state.seen + first + token + 1};
    const kernel::query_block block{work.queries, rows, shape_.group(), dim, 0, &params_, sees};
    float nothing = 0.0F;  // where values would go
    const kernel::softmax_rows softmax{work.softmax, work.softmax + rows, &nothing};
    kernel::clear(softmax, rows, 0);
    const float* const keys = state.keys.data() + kv_head * probe_.size() * dim;
    const kernel::functions& kernels = kernel::for_sizes(dim, 0);
    for (std::size_t start = 0, end = sees[tokens - 1].end; start < end;) {
      std::array<kernel::row_block, 32> runs;
      std::size_t count = 0;
      for (; count < runs.size() && start < end; ++count, start += kernel::block_rows) {
        const auto* const bytes = reinterpret_cast<const std::byte*>(keys + start * dim);
        runs[count] = {bytes, bytes, (std::min)(kernel::block_rows, end - start), start, 0.0F};
      }
      kernels.attend(element_type::f32, runs.data(), count, 0, block, work.rest, softmax, nullptr);
    }
    for (std::size_t row = 0; row < rows; ++row)
      work.log_sum[row] = static_cast<double>(softmax.maximum[row]) + std::log(static_cast<double>(softmax.sum[row]));
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
