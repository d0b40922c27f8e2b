// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/element_ranges.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// What the folded rows of a head have in common: the least and the largest that each element of their keys and values
/// has been, and the length of the longest value. From these it tells what their own attention can be, had they stayed.
class folded_ranges {
 public:
  folded_ranges(std::size_t key_size, std::size_t value_size) : keys_(key_size), values_(value_size) {}

  std::size_t key_size() const noexcept { return keys_.size(); }
  std::size_t value_size() const noexcept { return values_.size(); }
  std::size_t bytes() const noexcept { return keys_.bytes() + values_.bytes() + sizeof longest_ + sizeof rows_; }

  /// Rows side by side: keys [rows x key_size], values [rows x value_size].
  void add(const float* keys, const float* values, std::size_t rows) noexcept {
    keys_.add(keys, rows);
    values_.add(values, rows);
    rows_ += rows;
    for (std::size_t row = 0; row < rows; ++row, values += values_.size())
      longest_ = (std::max)(longest_, squared_norm(values, values_.size()));
  }

  /// The bounds of policy/compensation.hpp, for a query that is scaled already. Tighter with
  /// their `sums`, which may be nullptr. None where a row held an infinity or a NaN, or there was none. Outward by more
  /// than float64 can have rounded.
  std::optional<folded_bounds> bounds(const row_sums* sums, const float* query, const attention_params& params,
                                      double* least, double* most) const noexcept {
    if (rows_ == 0 || !keys_.finite() || !values_.finite()) return std::nullopt;
    const logit_range logits = logits_for(query, sums);
    folded_bounds bounds = mass_for(logits, params);
    bounds.longest_value = std::sqrt(longest_) * (1.0 + 0x1p-40);
    bounds.least_log_mass -= 8.0 * rounding * (8.0 + std::fabs(bounds.least_log_mass));
    bounds.most_log_mass += 8.0 * rounding * (8.0 + std::fabs(bounds.most_log_mass));
    bound_values(params.capped(logits.most) - params.capped(logits.least), sums, least, most);
    return bounds;
  }

  template <class Sink>
  void save(Sink& sink) const {
    keys_.save(sink);
    values_.save(sink);
    sink.write(&longest_, sizeof longest_);
    detail::write_count(sink, rows_);
  }
  template <class Source>
  void load(Source& source) {
    keys_.load(source);
    values_.load(source);
    source.read(&longest_, sizeof longest_);
    rows_ = detail::read_count(source);
  }

 private:
  /// Between what the logits of the folded rows lie, before any cap, and their mean, where it is known.
  struct logit_range {
    double least = 0.0;
    double most = 0.0;
    std::optional<double> mean;
    double slack = 0.0;  ///< by which the mean may be off
  };

  logit_range logits_for(const float* query, const row_sums* sums) const noexcept {
    logit_range logits;
    double mean = 0.0;
    double magnitude = 0.0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const auto q = static_cast<double>(query[i]);
      const double low = q * keys_.least(i);
      const double high = q * keys_.largest(i);
      logits.least += (std::min)(low, high);
      logits.most += (std::max)(low, high);
      magnitude += (std::max)(std::fabs(low), std::fabs(high));
      if (sums != nullptr) mean += q * sums->mean_key(i);
    }
    // What sums of so many terms can have rounded: those above, and the sums of the keys row by row.
    logits.slack = (count() + static_cast<double>(keys_.size()) + 16.0) * rounding * magnitude;
    logits.least -= logits.slack;
    logits.most += logits.slack;
    if (sums != nullptr) logits.mean = mean;
    return logits;
  }

  /// The mass is the sum of g(x_m), g(x) = e^capped(x), over logits x_m in [l, u] with mean x. Where g is convex
  /// there, it is at least D g(x) (Jensen), and at most D times the chord of g at x. Anywhere, since g rises, it lies
  /// between D g(l) and D g(u). With t = tanh(x / c), g'' has the sign of 1 - t^2 - 2 t / c: under a softcap c, g is
  /// convex up to one point, and everywhere without.
  folded_bounds mass_for(const logit_range& logits, const attention_params& params) const noexcept {
    const double log_rows = std::log(count());
    const double least = params.capped(logits.least);
    const double most = params.capped(logits.most);
    const auto cap = static_cast<double>(params.softcap);
    const double t = cap > 0.0 ? std::tanh(logits.most / cap) : 0.0;
    const bool convex = cap == 0.0 || 1.0 - t * t - 2.0 * t / cap > 1e-9;
    if (!logits.mean || !convex) return {log_rows + least, log_rows + most};
    const double mean = params.capped((std::max)(*logits.mean - logits.slack, logits.least));
    const double width = logits.most - logits.least;
    const double share = width > 0.0 ? (std::min)((*logits.mean + logits.slack - logits.least) / width, 1.0) : 1.0;
    const double chord = share + (1.0 - share) * std::exp((std::max)(least - most, -700.0));
    return {log_rows + mean, log_rows + most + std::log(chord)};
  }

  /// An element of the output is a mean of the values with weights between 1 and e^span. Of all rows between `low`
  /// and `high` with the plain mean low + f (high - low), it is largest for those that lie at the two ends, the upper
  /// ones with the largest weight:  f e^span / (f e^span + 1 - f)  of the way; and least with the smallest. (o is
  /// reached if sum w (v - o) >= 0; with the best weights its terms are convex in v, so the ends do best for a given
  /// mean.)
  void bound_values(double span, const row_sums* sums, double* least, double* most) const noexcept {
    const double lightest = std::exp((std::max)(-span, -700.0));
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const double low = least[i] = values_.least(i);
      const double high = most[i] = values_.largest(i);
      if (sums == nullptr || !(low < high)) continue;
      const double width = high - low;
      const double magnitude = (std::max)(std::fabs(low), std::fabs(high));
      const double f = (sums->mean_value(i) - low) / width;
      const double off = (count() + 16.0) * rounding * magnitude / width;
      const double one_row = 1.0 / count();  // each end was reached
      const double f_most = (std::min)((std::max)(f + off, one_row), 1.0 - one_row);
      const double f_least = (std::min)((std::max)(f - off, one_row), 1.0 - one_row);
      const double tiny = 8.0 * rounding * magnitude;
      most[i] = (std::min)(high, low + width * (f_most / (f_most + (1.0 - f_most) * lightest)) + tiny);
      least[i] = (std::max)(low, low + width * (f_least * lightest / (f_least * lightest + 1.0 - f_least)) - tiny);
    }
  }

  static double squared_norm(const float* row, std::size_t size) noexcept {
    constexpr std::size_t lanes = 8;
    double sums[lanes] = {};
    const auto add = [&](std::size_t lane, float x) { sums[lane] += static_cast<double>(x) * static_cast<double>(x); };
    const std::size_t whole = size / lanes * lanes;
    for (std::size_t i = 0; i < whole; i += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) add(lane, row[i + lane]);
    for (std::size_t lane = 0; lane < size - whole; ++lane) add(lane, row[whole + lane]);
    double sum = 0.0;
    for (const double part : sums) sum += part;
    return sum;
  }

  double count() const noexcept { return static_cast<double>(rows_); }

  static constexpr double rounding = 0x1p-53;

  element_ranges keys_;
  element_ranges values_;
  double longest_ = 0.0;  // squared norm of a value
  std::size_t rows_ = 0;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
