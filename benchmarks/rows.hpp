// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "headwise/headwise.hpp"

// What is in the caches of the benchmarks: normal random rows, of which the originals can be asked for again.

namespace bench {

inline std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

/// A model's attention: head size and query heads per KV head, with as many KV heads as models of that kind have.
struct geometry {
  std::size_t dim;
  std::size_t group;
  std::size_t kv_heads;

  std::size_t query_heads() const { return group * kv_heads; }
  std::string name() const { return "d" + std::to_string(dim) + "g" + std::to_string(group); }
  headwise::model_shape shape(std::size_t layers) const {
    headwise::model_shape shape;
    shape.layers = layers, shape.query_heads = query_heads(), shape.kv_heads = kv_heads, shape.head_dim = dim;
    return shape;
  }
};

constexpr geometry geometries[] = {{128, 4, 8}, {128, 8, 8}, {64, 3, 3}, {64, 7, 2}, {256, 4, 4}};

/// Key and value rows of any layer and position, from a pool: chunks of positions begin at different places of it.
class row_source {
 public:
  static constexpr std::size_t chunk = 1024;

  explicit row_source(const geometry& of)
      : of_(of),
        keys_(random_floats(2 * chunk * of.kv_heads * of.dim, 7)),
        values_(random_floats(2 * chunk * of.kv_heads * of.dim, 8)) {}

  const float* key(std::size_t layer, std::size_t position, std::size_t head) const {
    return keys_.data() + (key_token(layer, position) * of_.kv_heads + head) * of_.dim;
  }
  const float* value(std::size_t layer, std::size_t position, std::size_t head) const {
    return values_.data() + (value_token(layer, position) * of_.kv_heads + head) * of_.dim;
  }

  /// Appends `tokens` tokens to a layer of a cache.
  template <class Cache>
  void append(Cache& cache, std::size_t layer, std::size_t tokens) const {
    for (std::size_t position = cache.layer_length(layer), end = position + tokens; position < end;) {
      const std::size_t count = (std::min)(end - position, chunk - position % chunk);
      cache.append(layer, headwise::packed_rows(key(layer, position, 0), count, of_.kv_heads, of_.dim),
                   headwise::packed_rows(value(layer, position, 0), count, of_.kv_heads, of_.dim));
      position += count;
    }
  }

 private:
  static std::size_t key_token(std::size_t layer, std::size_t position) {
    return (position / chunk + 131 * layer) % chunk + position % chunk;
  }
  static std::size_t value_token(std::size_t layer, std::size_t position) {
    return (position / chunk * 7 + 13 + 131 * layer) % chunk + position % chunk;
  }

  geometry of_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

/// Attention of some queries over one head in float64, row by row.
class exact_attention {
 public:
  exact_attention(const float* queries, std::size_t count, std::size_t dim)
      : queries_(queries, queries + count * dim),
        dim_(dim),
        maximum_(count, -HUGE_VAL),
        sum_(count),
        out_(count * dim) {}

  template <class Element>
  void add(const Element* key, const Element* value, double bias = 0.0) {
    for (std::size_t i = 0; i < sum_.size(); ++i) {
      const double* const q = queries_.data() + i * dim_;
      double* const out = out_.data() + i * dim_;
      double product = 0.0;
      for (std::size_t j = 0; j < dim_; ++j) product += q[j] * static_cast<double>(key[j]);
      const double logit = product / std::sqrt(static_cast<double>(dim_)) + bias;
      if (logit > maximum_[i]) {
        const double factor = std::exp(maximum_[i] - logit);
        maximum_[i] = logit;
        sum_[i] *= factor;
        for (std::size_t j = 0; j < dim_; ++j) out[j] *= factor;
      }
      const double weight = std::exp(logit - maximum_[i]);
      sum_[i] += weight;
      for (std::size_t j = 0; j < dim_; ++j) out[j] += weight * static_cast<double>(value[j]);
    }
  }

  /// rms of the distance of `found` [count, dim] over the rms of the exact output.
  double relative_error(const float* found) const {
    double difference = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const double exact = out_[i] / sum_[i / dim_];
      difference += (static_cast<double>(found[i]) - exact) * (static_cast<double>(found[i]) - exact);
      size += exact * exact;
    }
    return std::sqrt(difference / size);
  }

 private:
  std::vector<double> queries_;
  std::size_t dim_;
  std::vector<double> maximum_;
  std::vector<double> sum_;
  std::vector<double> out_;
};

/// One head's outputs against float64.
struct output_error {
  double stored;    ///< attention over the rows as they are stored, and the mean of what was folded
  double original;  ///< the same rows before they were rounded to the format

  output_error worse(const output_error& other) const {
    return {(std::max)(stored, other.stored), (std::max)(original, other.original)};
  }
};

/// `found` is what an attention made of `queries` [group, dim]. The summary is that of the mean compensation.
template <class Head>
output_error error_of(const Head& head, std::size_t layer, std::size_t kv_head, const geometry& of,
                      const row_source& source, const float* queries, const float* found) {
  exact_attention stored(queries, of.group, of.dim);
  exact_attention original(queries, of.group, of.dim);
  std::vector<float> key(of.dim), value(of.dim);
  const std::size_t row_bytes = head.format().bytes(of.dim);
  for (std::size_t i = 0; i < head.runs(); ++i) {
    const headwise::run part = head.run_at(i);
    for (std::size_t row = 0; row < part.rows; ++row) {
      head.format().decode(part.keys + row * row_bytes, key.data(), of.dim);
      head.format().decode(part.values + row * row_bytes, value.data(), of.dim);
      stored.add(key.data(), value.data(), static_cast<double>(part.bias));
      original.add(source.key(layer, part.position + row, kv_head), source.value(layer, part.position + row, kv_head),
                   static_cast<double>(part.bias));
    }
  }
  if (head.folded() != 0) {
    // Key and value of the mean, by its own contract: the logits of the unit vectors are the mean key.
    std::vector<double> mean_key(of.dim), mean_value(of.dim);
    std::vector<float> unit(of.dim);
    for (std::size_t i = 0; i < of.dim; ++i) {
      unit[i] = 1.0F;
      mean_key[i] = static_cast<double>(head.evaluate(unit.data(), {}, value.data()).mean_logit);
      unit[i] = 0.0F;
    }
    std::copy(value.begin(), value.end(), mean_value.begin());
    const double bias = std::log(static_cast<double>(head.folded()));
    stored.add(mean_key.data(), mean_value.data(), bias);
    original.add(mean_key.data(), mean_value.data(), bias);
  }
  return {stored.relative_error(found), original.relative_error(found)};
}

}  // namespace bench
