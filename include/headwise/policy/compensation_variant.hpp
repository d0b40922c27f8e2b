// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>
#include <variant>

#include "headwise/fwd.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"

namespace headwise {

/// A compensation chosen at run time; itself a compensation.
template <class... Compensations>
class compensation_variant {
 public:
  using summary = std::variant<std::pair<Compensations, typename Compensations::summary>...>;

  template <class Compensation>
  compensation_variant(Compensation compensation)  // NOLINT: a compensation is what it converts from
      : compensation_(std::move(compensation)) {}

  summary make_summary(std::size_t key_size, std::size_t value_size) const {
    return std::visit([&](const auto& c) { return summary(std::pair(c, c.make_summary(key_size, value_size))); },
                      compensation_);
  }
  static void fold(summary& s, const float* key, const float* value) noexcept {
    std::visit([&](auto& of) { of.first.fold(of.second, key, value); }, s);
  }
  static std::size_t folded(const summary& s) noexcept {
    return std::visit([](const auto& of) { return of.first.folded(of.second); }, s);
  }
  static std::size_t bytes(const summary& s) noexcept {
    return std::visit([](const auto& of) { return of.first.bytes(of.second); }, s);
  }
  static summary_logit evaluate(const summary& s, const float* query, const attention_params& params,
                                float* value_out) noexcept {
    return std::visit([&](const auto& of) { return of.first.evaluate(of.second, query, params, value_out); }, s);
  }

 private:
  std::variant<Compensations...> compensation_;
};

}  // namespace headwise
