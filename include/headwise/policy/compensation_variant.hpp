// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/fwd.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// A compensation chosen at run time; itself a compensation.
template <class... Compensations>
class compensation_variant {
 public:
  template <class Compensation>
  struct member {
    Compensation compensation;
    typename Compensation::summary summary;
    std::size_t key_size;
    std::size_t value_size;
  };
  using summary = std::variant<member<Compensations>...>;

  template <class Compensation>
  compensation_variant(Compensation compensation)  // NOLINT: a compensation is what it converts from
      : compensation_(std::move(compensation)) {}

  summary make_summary(std::size_t key_size, std::size_t value_size) const {
    return std::visit(
        [&](const auto& c) {
          using chosen = std::decay_t<decltype(c)>;
          return summary(member<chosen>{c, c.make_summary(key_size, value_size), key_size, value_size});
        },
        compensation_);
  }
  std::size_t fold_rows() const noexcept {
    return std::visit([](const auto& c) { return detail::fold_rows(c); }, compensation_);
  }
  static void fold(summary& s, const float* keys, const float* values, std::size_t rows) noexcept {
    std::visit(
        [&](auto& of) {
          detail::fold_into(of.compensation, of.summary, keys, of.key_size, values, of.value_size, rows);
        },
        s);
  }
  static std::size_t folded(const summary& s) noexcept {
    return std::visit([](const auto& of) { return of.compensation.folded(of.summary); }, s);
  }
  static std::size_t bytes(const summary& s) noexcept {
    return std::visit([](const auto& of) { return of.compensation.bytes(of.summary); }, s);
  }
  static summary_logit evaluate(const summary& s, const float* query, const attention_params& params,
                                float* value_out) noexcept {
    return std::visit([&](const auto& of) { return of.compensation.evaluate(of.summary, query, params, value_out); },
                      s);
  }
  static std::optional<folded_bounds> bounds(const summary& s, const float* query, const attention_params& params,
                                             double* least, double* most) noexcept {
    return std::visit(
        [&](const auto& of) { return detail::bounds_of(of.compensation, of.summary, query, params, least, most); }, s);
  }
  static const row_sums* sums(const summary& s) noexcept {
    return std::visit([](const auto& of) { return detail::sums_of(of.compensation, of.summary); }, s);
  }

  const char* name() const noexcept {
    return std::visit([](const auto& c) { return saveable(c).name(); }, compensation_);
  }
  std::vector<std::string> parameters() const {
    return std::visit([](const auto& c) { return detail::parameter_texts(saveable(c)); }, compensation_);
  }
  template <class Sink>
  static void save(const summary& s, Sink& sink) {
    std::visit([&](const auto& of) { saveable(of.compensation).save(of.summary, sink); }, s);
  }
  template <class Source>
  static void load(summary& s, Source& source) {
    std::visit([&](auto& of) { saveable(of.compensation).load(of.summary, source); }, s);
  }

 private:
  template <class Compensation>
  static const Compensation& saveable(const Compensation& c) noexcept {
    detail::require_saveable_compensation<Compensation>();
    return c;
  }

  std::variant<Compensations...> compensation_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
