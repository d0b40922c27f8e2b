// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// The attention of one query over rows in float64, and how far that can be off: what a certificate is computed from.
class kept_attention {
 public:
  /// `query` is scaled already.
  kept_attention(std::vector<float> query, std::size_t value_size) : query_(std::move(query)), out_(value_size) {}

  const float* query() const noexcept { return query_.data(); }

  /// One more row; all its numbers are finite.
  void add(const float* key, const float* value, float bias, const attention_params& params) noexcept {
    double dot = 0.0;
    double magnitude = std::fabs(static_cast<double>(bias));
    for (std::size_t i = 0; i < query_.size(); ++i) {
      const double product = static_cast<double>(query_[i]) * static_cast<double>(key[i]);
      dot += product;
      magnitude += std::fabs(product);
    }
    magnitude_ = (std::max)(magnitude_, magnitude);
    const double logit = params.capped(dot) + static_cast<double>(bias);
    if (rows_++ == 0) maximum_ = logit;
    if (logit > maximum_) {
      const double factor = exp_nonpositive(maximum_ - logit);
      sum_ *= factor;
      for (double& x : out_) x *= factor;
      maximum_ = logit;
    }
    const double weight = exp_nonpositive(logit - maximum_);
    sum_ += weight;
    for (std::size_t i = 0; i < out_.size(); ++i) out_[i] += weight * static_cast<double>(value[i]);
  }

  /// Log of the sum of e^logit; the lowest number where there is no row.
  double log_mass() const noexcept {
    return rows_ == 0 ? std::numeric_limits<double>::lowest() : maximum_ + std::log(sum_);
  }
  /// Element i of the output; 0 where there is no row.
  double out(std::size_t i) const noexcept { return rows_ == 0 ? 0.0 : out_[i] / sum_; }

  /// More than what rounding can have changed in the log of any weight.
  double rounding() const noexcept {
    return static_cast<double>(query_.size() + 16) * 0x1p-53 * magnitude_ + static_cast<double>(rows_ + 16) * 0x1p-50;
  }

 private:
  static double exp_nonpositive(double x) noexcept { return std::exp((std::max)(x, -700.0)); }

  std::vector<float> query_;
  std::vector<double> out_;
  double maximum_ = 0.0;
  double sum_ = 0.0;
  double magnitude_ = 0.0;  // the largest sum of |q_i k_i|
  std::size_t rows_ = 0;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
