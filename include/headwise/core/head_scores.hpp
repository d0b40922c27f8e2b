// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/core/error.hpp"
#include "headwise/core/model_shape.hpp"

namespace headwise {

/// What a probe measured: named columns (echo, induction, yours) of one number per *query* head.
/// Grouping query heads into KV heads is the selection rule's choice.
class head_scores {
 public:
  explicit head_scores(const model_shape& shape) : shape_(shape) {
    check(shape);
    windows_.assign(shape.layers, 0);
  }

  const model_shape& shape() const noexcept { return shape_; }
  const std::vector<std::string>& names() const noexcept { return names_; }
  bool has(std::string_view name) const noexcept { return find(name) != names_.size(); }

  /// A new column; `values` holds layers x query_heads numbers, layer by layer.
  void add(std::string name, std::vector<double> values) {
    if (has(name)) detail::fail("head_scores: there is a column '", name, "' already");
    if (values.size() != shape_.layers * shape_.query_heads)
      detail::fail("head_scores: column '", name, "' has ", values.size(), " numbers, expected ",
                   shape_.layers * shape_.query_heads, " (", to_string(shape_), ")");
    columns_.push_back(std::move(values));
    names_.push_back(std::move(name));
  }

  /// Says that the model's own attention sees no further than the newest `tokens` keys in a layer: its heads are not
  /// ranked, and are windowed in every plan that is made from the scores.
  void set_window(std::size_t layer, std::size_t tokens) {
    if (layer >= shape_.layers) detail::fail("head_scores: no layer ", layer, " in a model of ", to_string(shape_));
    if (tokens == 0) detail::fail("head_scores: the window of layer ", layer, " is 0, expected at least 1");
    windows_[layer] = tokens;
  }
  /// That number, or 0 in a layer that sees everything.
  std::size_t window(std::size_t layer) const noexcept { return layer < windows_.size() ? windows_[layer] : 0; }
  /// KV heads of the layers that see everything.
  std::size_t ranked_heads() const noexcept {
    std::size_t heads = 0;
    for (const std::size_t window : windows_) heads += window == 0 ? shape_.kv_heads : 0;
    return heads;
  }

  /// The score of one query head; refuses a column that is not there, with the names that are.
  double at(std::string_view name, std::size_t layer, std::size_t query_head) const {
    const std::size_t column = find(name);
    if (column == names_.size()) detail::fail("head_scores: no column '", name, "', found: ", listed());
    if (layer >= shape_.layers || query_head >= shape_.query_heads)
      detail::fail("head_scores: no query head ", layer, ".", query_head, " in a model of ", to_string(shape_));
    return columns_[column][layer * shape_.query_heads + query_head];
  }

 private:
  std::size_t find(std::string_view name) const noexcept {
    std::size_t i = 0;
    while (i < names_.size() && names_[i] != name) ++i;
    return i;
  }
  std::string listed() const {
    std::string text;
    for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
  }

  model_shape shape_;
  std::vector<std::size_t> windows_;  // [layers]
  std::vector<std::string> names_;
  std::vector<std::vector<double>> columns_;
};

}  // namespace headwise
