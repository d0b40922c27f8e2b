// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "headwise/core/error.hpp"

namespace headwise {

/// What a model does to q.k before the softmax, and where the queries stand.
struct attention_params {
  static constexpr std::size_t newest = (std::numeric_limits<std::size_t>::max)();

  /// Factor of every q.k; 0 stands for the usual 1 / sqrt(head_dim).
  float scale = 0.0F;
  /// Logits become softcap * tanh(logit / softcap); 0 switches it off.
  float softcap = 0.0F;
  /// Position of the first query. The default says: the queries are those of the last rows appended.
  std::size_t first_position = newest;

  float scale_for(std::size_t head_dim) const noexcept {
    return scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }
  /// The logit before any bias: scaled, then capped.
  float capped(float logit) const noexcept { return softcap > 0.0F ? softcap * std::tanh(logit / softcap) : logit; }
  double capped(double logit) const noexcept {
    const auto cap = static_cast<double>(softcap);
    return cap > 0.0 ? cap * std::tanh(logit / cap) : logit;
  }
};

inline void check(const attention_params& params) {
  if (!std::isfinite(params.scale)) detail::fail("attention_params: scale must be a finite number");
  if (!std::isfinite(params.softcap) || params.softcap < 0.0F)
    detail::fail("attention_params: softcap must be finite and not negative");
}

}  // namespace headwise
