// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "headwise/headwise.hpp"
#include "roofline.hpp"
#include "rounds.hpp"
#include "rows.hpp"
#include "touched_memory.hpp"

// The caches that decode and prefill read, and what a step over them costs at least.

namespace bench {

template <class Format>
using bench_cache = headwise::kv_cache<Format, headwise::razor_budget, headwise::mean_compensation>;

inline headwise::razor_budget fixed_window(std::size_t rows) {
  headwise::razor_budget budget;
  budget.min_recent = rows, budget.divisor = 0;
  return budget;
}

/// 15 % retrieval heads, spread evenly over the layers. The share is exact for a multiple of 20 heads.
inline headwise::head_plan retrieval_15_percent(const headwise::model_shape& shape) {
  headwise::head_plan plan(shape);
  for (std::size_t i = 0; i < shape.heads(); ++i)
    if ((i + 1) * 3 / 20 != i * 3 / 20)
      plan.set({i / shape.kv_heads, i % shape.kv_heads}, headwise::head_role::retrieval);
  return plan;
}

/// Layers whose heads are a multiple of 20.
inline std::size_t layers_of_20_heads(const geometry& of) { return 20 / std::gcd(std::size_t{20}, of.kv_heads); }

/// As many layers of `rows` rows a head as make 256 MiB, so that no step meets rows that are still in a cache - but no
/// more than 1 GiB of pages, of which short contexts use little.
inline std::size_t cold_layers(const geometry& of, std::size_t rows, std::size_t element_bytes) {
  const std::size_t row_bytes = 2 * of.kv_heads * of.dim * element_bytes;
  const std::size_t enough = (256 * mebibyte + rows * row_bytes - 1) / (rows * row_bytes);
  const std::size_t most = (std::max)(std::size_t{1}, 1024 * mebibyte / ((rows + 63) / 64 * 64 * row_bytes));
  return (std::min)(enough, most);
}

/// A cache of `tokens` tokens in every layer, compressed layer by layer as an engine does after a prompt.
template <class Format>
bench_cache<Format> filled_cache(const headwise::head_plan& plan, const headwise::razor_budget& budget,
                                 std::size_t tokens, const row_source& source) {
  bench_cache<Format> cache(plan, budget);
  for (std::size_t layer = 0; layer < plan.shape().layers; ++layer) {
    source.append(cache, layer, tokens);
    cache.compress(layer);
  }
  return cache;
}
template <class Format>
bench_cache<Format> full_cache(const geometry& of, std::size_t layers, std::size_t tokens, const row_source& source) {
  return filled_cache<Format>(headwise::head_plan(of.shape(layers), headwise::head_role::retrieval), {}, tokens,
                              source);
}

/// What a token-level policy would leave: `rows` rows a head in runs of `run_rows`, each followed by a gap of as many
/// positions. The rows that stay lie close together in pages of 64. Offers attend what attend_schedule.hpp asks for.
template <class Format>
class fragmented_layers {
 public:
  class head_type {
   public:
    std::size_t length() const noexcept { return runs_.back().position + runs_.back().rows; }
    std::size_t runs() const noexcept { return runs_.size(); }
    headwise::run run_at(std::size_t i) const noexcept { return runs_[i]; }
    const Format& format() const noexcept { return format_; }
    std::size_t folded() const noexcept { return 0; }
    std::size_t kept_from() const noexcept { return runs_.back().position; }
    headwise::summary_logit evaluate(const float*, const headwise::attention_params&, float*) const noexcept {
      return {};
    }

   private:
    friend class fragmented_layers;
    Format format_{};
    std::vector<headwise::run> runs_;
  };

  fragmented_layers(const geometry& of, std::size_t layers, std::size_t rows, std::size_t run_rows,
                    const row_source& source)
      : shape_(of.shape(layers)),
        memory_(layers * of.kv_heads * ((rows + 63) / 64 * 64) * 2 * Format::bytes(of.dim)),
        heads_(layers * of.kv_heads) {
    const std::size_t row_bytes = Format::bytes(of.dim);
    std::byte* page = memory_.data();
    for (std::size_t i = 0; i < heads_.size(); ++i)
      for (std::size_t row = 0; row < rows; ++row) {
        if (row != 0 && row % 64 == 0) page += 2 * 64 * row_bytes;
        std::byte* const key = page + row % 64 * row_bytes;
        std::byte* const value = key + 64 * row_bytes;
        const std::size_t position = row / run_rows * 2 * run_rows + row % run_rows;
        Format::encode(source.key(i / of.kv_heads, position, i % of.kv_heads), key, of.dim);
        Format::encode(source.value(i / of.kv_heads, position, i % of.kv_heads), value, of.dim);
        if (row % run_rows == 0) heads_[i].runs_.push_back({position, 0, key, value, 0.0F});
        ++heads_[i].runs_.back().rows;
        if (row + 1 == rows) page += 2 * 64 * row_bytes;
      }
  }

  const headwise::model_shape& shape() const noexcept { return shape_; }
  const head_type& head(std::size_t layer, std::size_t kv_head) const noexcept {
    return heads_[layer * shape_.kv_heads + kv_head];
  }

 private:
  headwise::model_shape shape_;
  touched_memory memory_;
  std::vector<head_type> heads_;
};

/// What one layer's step must do, on average over the layers.
struct step_cost {
  double rows = 0.0;
  double bytes = 0.0;
  double fmas = 0.0;

  double seconds(const roofline& limits) const { return limits.seconds(bytes, fmas); }
  step_cost& operator+=(const step_cost& other) {
    rows += other.rows, bytes += other.bytes, fmas += other.fmas;
    return *this;
  }
};

/// Decoding: every kept row is read once and meets each query of the group twice (logit and value).
template <class Cache>
step_cost decode_cost(const Cache& cache, const geometry& of) {
  step_cost cost;
  const auto layers = static_cast<double>(cache.shape().layers);
  for (std::size_t layer = 0; layer < cache.shape().layers; ++layer)
    for (std::size_t kv_head = 0; kv_head < of.kv_heads; ++kv_head) {
      const auto& head = cache.head(layer, kv_head);
      std::size_t rows = 0;
      for (std::size_t i = 0; i < head.runs(); ++i) rows += head.run_at(i).rows;
      cost.rows += static_cast<double>(rows) / layers;
      cost.bytes += static_cast<double>(rows * 2 * head.format().bytes(of.dim)) / layers;
      cost.fmas += static_cast<double>(rows * of.group * 2 * of.dim) / layers;
    }
  return cost;
}

/// Attention of a layer after the other, with the same queries.
template <class Cache>
class attend_steps {
 public:
  attend_steps(const Cache& cache, const geometry& of, const std::vector<float>& q, std::size_t queries,
               std::size_t threads)
      : cache_(&cache), of_(of), q_(q.data()), queries_(queries), workers_{threads}, out_(q.size()) {}

  void step(std::size_t i) {
    headwise::attend(*cache_, i % cache_->shape().layers,
                     headwise::packed_rows(q_, queries_, of_.query_heads(), of_.dim),
                     headwise::packed_output(out_.data(), queries_, of_.query_heads(), of_.dim), schedule_, workers_);
  }
  const float* out() const { return out_.data(); }

 private:
  const Cache* cache_;
  geometry of_;
  const float* q_;
  std::size_t queries_;
  workers workers_;
  std::vector<float> out_;
  headwise::attend_schedule schedule_;
};

}  // namespace bench
