// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "anchors/anchor.hpp"
#include "headwise/headwise.hpp"
#include "rows.hpp"
#include "touched_memory.hpp"

namespace bench {

template <class Format>
constexpr anchor::element element_of() {
  if (std::is_same_v<Format, headwise::float16>) return anchor::element::f16;
  if (std::is_same_v<Format, headwise::bfloat16>) return anchor::element::bf16;
  return anchor::element::f32;
}

/// Copies of a cache's rows, bit by bit, in the layout that is best for the other engine: each head's rows in one
/// piece.
class contiguous_layers {
 public:
  /// `transposed`: values as [dim, rows], which the path without flash attention wants.
  template <class Cache>
  contiguous_layers(const Cache& cache, std::size_t layers, const geometry& of, bool transposed)
      : layers_(layers),
        element_(cache.head(0, 0).format().bytes(1)),
        rows_(0),
        part_(0),
        memory_(size(cache, layers, of)) {
    for (std::size_t layer = 0; layer < layers; ++layer)
      for (std::size_t head = 0; head < of.kv_heads; ++head) {
        std::byte* const keys = memory_.data() + 2 * layer * part_ + head * rows_ * of.dim * element_;
        copy(cache.head(layer, head), keys, keys + part_, of.dim, transposed);
      }
  }

  std::size_t layers() const { return layers_; }
  const std::byte* keys(std::size_t layer) const { return memory_.data() + 2 * layer * part_; }
  const std::byte* values(std::size_t layer) const { return keys(layer) + part_; }

 private:
  template <class Cache>
  std::size_t size(const Cache& cache, std::size_t layers, const geometry& of) {
    std::size_t rows = 0;
    for (std::size_t i = 0; i < cache.head(0, 0).runs(); ++i) rows += cache.head(0, 0).run_at(i).rows;
    rows_ = anchor::padded_rows(rows);
    part_ = (of.kv_heads * rows_ * of.dim * element_ + 63) / 64 * 64;
    return 2 * layers * part_;
  }
  template <class Head>
  void copy(const Head& head, std::byte* keys, std::byte* values, std::size_t dim, bool transposed) const {
    std::memset(keys, 0, rows_ * dim * element_);
    std::memset(values, 0, rows_ * dim * element_);
    std::size_t at = 0;
    for (std::size_t i = 0; i < head.runs(); ++i) {
      const headwise::run part = head.run_at(i);
      std::memcpy(keys + at * dim * element_, part.keys, part.rows * dim * element_);
      if (!transposed) std::memcpy(values + at * dim * element_, part.values, part.rows * dim * element_);
      for (std::size_t j = 0; transposed && j < dim; ++j)
        for (std::size_t row = 0; row < part.rows; ++row)
          std::memcpy(values + (j * rows_ + at + row) * element_, part.values + (row * dim + j) * element_, element_);
      at += part.rows;
    }
  }

  std::size_t layers_;
  std::size_t element_;  // bytes
  std::size_t rows_;
  std::size_t part_;  // bytes of the keys of a layer, and of its values
  touched_memory memory_;
};

/// The other engine's attention over such copies of a cache.
class anchor_steps {
 public:
  template <class Cache>
  anchor_steps(anchor::path how, const Cache& cache, std::size_t layers, const geometry& of, const float* q,
               std::size_t queries, std::size_t threads)
      : rows_(cache, layers, of, how == anchor::path::plain), attention_(how, call_for(cache, of, queries, threads)) {
    attention_.set_queries(q);
  }

  void step(std::size_t i) { attention_.run(rows_.keys(i % rows_.layers()), rows_.values(i % rows_.layers())); }
  const float* out() const { return attention_.out(); }

 private:
  template <class Cache>
  static anchor::call call_for(const Cache& cache, const geometry& of, std::size_t queries, std::size_t threads) {
    anchor::call what;
    what.query_heads = of.query_heads(), what.kv_heads = of.kv_heads, what.dim = of.dim;
    what.queries = queries, what.threads = threads;
    using format = std::decay_t<decltype(cache.head(0, 0).format())>;
    what.type = element_of<format>();
    for (std::size_t i = 0; i < cache.head(0, 0).runs(); ++i) what.rows += cache.head(0, 0).run_at(i).rows;
    return what;
  }

  contiguous_layers rows_;
  anchor::attention attention_;
};

}  // namespace bench
