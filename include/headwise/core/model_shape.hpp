// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "headwise/core/error.hpp"

namespace headwise {

/// The numbers of a model that its attention depends on. Named members, because integers in a row get swapped.
struct model_shape {
  std::size_t layers = 0;
  std::size_t query_heads = 0;
  std::size_t kv_heads = 0;   ///< divides query_heads (grouped-query attention)
  std::size_t head_dim = 0;   ///< elements of a query or key row
  std::size_t value_dim = 0;  ///< elements of a value row; 0: as many as head_dim

  constexpr std::size_t key_size() const noexcept { return head_dim; }
  constexpr std::size_t value_size() const noexcept { return value_dim == 0 ? head_dim : value_dim; }
  /// Query heads that read one KV head.
  constexpr std::size_t group() const noexcept { return query_heads / kv_heads; }
  /// All KV heads of all layers.
  constexpr std::size_t heads() const noexcept { return layers * kv_heads; }

  friend constexpr bool operator==(const model_shape& a, const model_shape& b) noexcept {
    return a.layers == b.layers && a.query_heads == b.query_heads && a.kv_heads == b.kv_heads &&
           a.key_size() == b.key_size() && a.value_size() == b.value_size();
  }
  friend constexpr bool operator!=(const model_shape& a, const model_shape& b) noexcept { return !(a == b); }
};

/// "30 layers, 9 query heads, 3 KV heads, head size 64": what messages print.
inline std::string to_string(const model_shape& shape) {
  std::string text = detail::join(shape.layers, " layers, ", shape.query_heads, " query heads, ", shape.kv_heads,
                                  " KV heads, head size ", shape.key_size());
  if (shape.value_size() != shape.key_size()) text += detail::join(" (values ", shape.value_size(), ")");
  return text;
}

namespace detail {

/// What is wrong with a shape, or nothing.
inline std::string shape_problem(const model_shape& shape) {
  constexpr std::size_t limit = std::size_t{1} << 20;  // keeps every product of two members far from overflow
  const auto in_range = [](std::size_t n) { return n >= 1 && n <= limit; };
  if (!in_range(shape.layers) || !in_range(shape.query_heads) || !in_range(shape.kv_heads) ||
      !in_range(shape.key_size()) || !in_range(shape.value_size()))
    return join("model shape: every number must be in 1..", limit, ", found ", to_string(shape));
  if (shape.query_heads % shape.kv_heads != 0)
    return join("model shape: query heads must be a multiple of the KV heads, found ", to_string(shape));
  return {};
}

}  // namespace detail

/// Refuses a shape with a zero, with query heads that are no multiple of the KV heads, or too large to be real.
inline void check(const model_shape& shape) {
  const std::string problem = detail::shape_problem(shape);
  if (!problem.empty()) detail::fail(problem);
}

}  // namespace headwise
