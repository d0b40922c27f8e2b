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
    roles_.assign(shape.heads(), role);
  }

  const model_shape& shape() const noexcept { return shape_; }

  /// Rows 0..sinks-1 of a sequence are always kept (the paper's N_0; 4 unless changed).
  std::size_t sinks() const noexcept { return sinks_; }
  void set_sinks(std::size_t sinks) noexcept { sinks_ = sinks; }

  head_role role(head_id head) const { return roles_[index(head)]; }
  void set(head_id head, head_role role) { roles_[index(head)] = role; }

  /// The retrieval heads, in the order of layer, then head.
  std::vector<head_id> retrieval_heads() const {
    std::vector<head_id> heads;
    for (std::size_t i = 0; i < roles_.size(); ++i)
      if (roles_[i] == head_role::retrieval) heads.push_back({i / shape_.kv_heads, i % shape_.kv_heads});
    return heads;
  }

  friend bool operator==(const head_plan& a, const head_plan& b) noexcept {
    return a.shape_ == b.shape_ && a.sinks_ == b.sinks_ && a.roles_ == b.roles_;
  }
  friend bool operator!=(const head_plan& a, const head_plan& b) noexcept { return !(a == b); }

 private:
  std::size_t index(head_id head) const {
    if (head.layer >= shape_.layers || head.kv_head >= shape_.kv_heads)
      detail::fail("head_plan: no KV head ", head.layer, ".", head.kv_head, " in a model of ", to_string(shape_));
    return head.layer * shape_.kv_heads + head.kv_head;
  }

  model_shape shape_;
  std::size_t sinks_;
  std::vector<head_role> roles_;
};

}  // namespace headwise
