// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "headwise/core/error.hpp"
#include "headwise/core/head_id.hpp"
#include "headwise/core/model_shape.hpp"

namespace headwise {

/// What was decided about a model: a role per KV head, and how many sinks a local head keeps.
/// How many *recent* rows a local head keeps is the budget's business alone.
class head_plan {
 public:
  /// Every head local (or retrieval), to be changed by set().
  explicit head_plan(const model_shape& shape, head_role role = head_role::local, std::size_t sinks = 4)
      : shape_(shape), sinks_(sinks) {
    check(shape);
    if (role == head_role::windowed) refuse_windowed();
    roles_.assign(shape.heads(), role);
    windows_.assign(shape.layers, 0);
  }

  const model_shape& shape() const noexcept { return shape_; }

  /// Rows 0..sinks-1 of a sequence are always kept (the paper's N_0; 4 unless changed).
  std::size_t sinks() const noexcept { return sinks_; }
  void set_sinks(std::size_t sinks) noexcept { sinks_ = sinks; }

  head_role role(head_id head) const { return roles_[index(head)]; }
  /// Refuses `windowed`, and heads of a windowed layer.
  void set(head_id head, head_role role) {
    head_role& of = roles_[index(head)];
    if (role == head_role::windowed || of == head_role::windowed) refuse_windowed();
    of = role;
  }

  /// Says that the model's own attention sees no further than the newest `tokens` keys in a layer, its own included:
  /// all its heads are windowed from now on.
  void set_window(std::size_t layer, std::size_t tokens) {
    if (tokens == 0) detail::fail("head_plan: the window of layer ", layer, " is 0, expected at least 1");
    for (std::size_t head = 0; head < shape_.kv_heads; ++head) roles_[index({layer, head})] = head_role::windowed;
    windows_[layer] = tokens;
  }
  /// That number, or 0 in a layer that sees everything.
  std::size_t window(std::size_t layer) const noexcept { return layer < windows_.size() ? windows_[layer] : 0; }

  /// The retrieval heads, in the order of layer, then head.
  std::vector<head_id> retrieval_heads() const {
    std::vector<head_id> heads;
    for (std::size_t i = 0; i < roles_.size(); ++i)
      if (roles_[i] == head_role::retrieval) heads.push_back({i / shape_.kv_heads, i % shape_.kv_heads});
    return heads;
  }

  friend bool operator==(const head_plan& a, const head_plan& b) noexcept {
    return a.shape_ == b.shape_ && a.sinks_ == b.sinks_ && a.roles_ == b.roles_ && a.windows_ == b.windows_;
  }
  friend bool operator!=(const head_plan& a, const head_plan& b) noexcept { return !(a == b); }

 private:
  [[noreturn]] HEADWISE_COLD static void refuse_windowed() {
    detail::fail("head_plan: heads are windowed by layer, with set_window()");
  }
  std::size_t index(head_id head) const {
    if (head.layer >= shape_.layers || head.kv_head >= shape_.kv_heads)
      detail::fail("head_plan: no KV head ", head.layer, ".", head.kv_head, " in a model of ", to_string(shape_));
    return head.layer * shape_.kv_heads + head.kv_head;
  }

  model_shape shape_;
  std::size_t sinks_;
  std::vector<head_role> roles_;
  std::vector<std::size_t> windows_;  // [layers]
};

}  // namespace headwise
