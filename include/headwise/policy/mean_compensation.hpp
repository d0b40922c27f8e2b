// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>

#include "headwise/config.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// RazorAttention's compensation token: the mean key and the mean value of the D folded rows, weighing D rows,
///   logit = s q.k_hat + ln D,   value = v_hat   (arXiv 2407.15891, section 3).
/// Exact for D = 1 and for equal folded keys; otherwise it under-weighs what it stands for (Jensen).
struct mean_compensation {
  using summary = row_sums;

  static summary make_summary(std::size_t key_size, std::size_t value_size) { return {key_size, value_size}; }
  static void fold(summary& sums, const float* keys, const float* values, std::size_t rows) noexcept {
    sums.add(keys, values, rows);
  }
  static std::size_t folded(const summary& sums) noexcept { return sums.count(); }
  static std::size_t bytes(const summary& sums) noexcept { return sums.bytes(); }
  static const row_sums* sums(const summary& sums) noexcept { return &sums; }

  /// s q.k_hat and ln D.
  static summary_logit weight(const row_sums& sums, const float* query) noexcept {
    return {sums.mean_logit(query), std::log(static_cast<float>(sums.count()))};
  }
  static summary_logit evaluate(const summary& sums, const float* query, const attention_params&,
                                float* value_out) noexcept {
    for (std::size_t i = 0; i < sums.value_size(); ++i) value_out[i] = static_cast<float>(sums.mean_value(i));
    return weight(sums, query);
  }

  static constexpr const char* name() noexcept { return "mean"; }
  template <class Sink>
  static void save(const summary& sums, Sink& sink) {
    sums.save(sink);
  }
  template <class Source>
  static void load(summary& sums, Source& source) {
    sums.load(source);
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
