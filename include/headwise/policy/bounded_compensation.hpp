// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/folded_ranges.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// A compensation with bounds for certificate() (attend/certificate.hpp): answers queries as `Compensation` does, and
/// remembers the ranges of the folded rows besides. They cost as many bytes as two rows of float32, and 16. The bounds
/// are tighter where `Compensation` has sums().
template <class Compensation>
class bounded_compensation {
  static_assert(detail::is_compensation<Compensation>::value,
                "headwise: bounded_compensation<C> bounds another compensation C (policy/compensation.hpp)");

 public:
  struct summary {
    typename Compensation::summary inner;
    folded_ranges ranges;
  };

  bounded_compensation() = default;
  explicit bounded_compensation(Compensation compensation) : inner_(std::move(compensation)) {}

  summary make_summary(std::size_t key_size, std::size_t value_size) const {
    return {inner_.make_summary(key_size, value_size), {key_size, value_size}};
  }
  std::size_t fold_rows() const noexcept { return detail::fold_rows(inner_); }
  void fold(summary& s, const float* keys, const float* values, std::size_t rows) const noexcept {
    detail::fold_into(inner_, s.inner, keys, s.ranges.key_size(), values, s.ranges.value_size(), rows);
    s.ranges.add(keys, values, rows);
  }
  std::size_t folded(const summary& s) const noexcept { return inner_.folded(s.inner); }
  std::size_t bytes(const summary& s) const noexcept { return inner_.bytes(s.inner) + s.ranges.bytes(); }
  summary_logit evaluate(const summary& s, const float* query, const attention_params& params,
                         float* value_out) const noexcept {
    return inner_.evaluate(s.inner, query, params, value_out);
  }
  const row_sums* sums(const summary& s) const noexcept { return detail::sums_of(inner_, s.inner); }
  std::optional<folded_bounds> bounds(const summary& s, const float* query, const attention_params& params,
                                      double* least, double* most) const noexcept {
    return s.ranges.bounds(sums(s), query, params, least, most);
  }

  static constexpr const char* name() noexcept { return "bounded"; }
  std::vector<std::string> parameters() const {
    detail::require_saveable_compensation<Compensation>();
    return {detail::identity(inner_)};
  }
  template <class Sink>
  void save(const summary& s, Sink& sink) const {
    inner_.save(s.inner, sink);
    s.ranges.save(sink);
  }
  template <class Source>
  void load(summary& s, Source& source) const {
    inner_.load(s.inner, source);
    s.ranges.load(source);
  }

 private:
  Compensation inner_{};
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
