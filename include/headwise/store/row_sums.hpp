// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace headwise {

/// What is left of folded rows: their count, and the sums of their keys and values. Rows are added one after another in
/// float64, so the bits depend on the rows and their order alone, not on how many were folded at a time, and no format
/// narrower than the sums is ever averaged.
class row_sums {
 public:
  row_sums(std::size_t key_size, std::size_t value_size) : keys_(key_size), values_(value_size) {}

  std::size_t count() const noexcept { return count_; }
  std::size_t key_size() const noexcept { return keys_.size(); }
  std::size_t value_size() const noexcept { return values_.size(); }
  std::size_t bytes() const noexcept { return (keys_.size() + values_.size()) * sizeof(double) + sizeof count_; }

  void add(const float* key, const float* value) noexcept {
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] += static_cast<double>(key[i]);
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += static_cast<double>(value[i]);
    ++count_;
  }

  /// Element i of the mean key (k_hat) and of the mean value (v_hat); count() > 0.
  double mean_key(std::size_t i) const noexcept { return keys_[i] / static_cast<double>(count_); }
  double mean_value(std::size_t i) const noexcept { return values_[i] / static_cast<double>(count_); }

  /// query . k_hat
  float mean_logit(const float* query) const noexcept {
    double sum = 0.0;
    for (std::size_t i = 0; i < keys_.size(); ++i) sum += static_cast<double>(query[i]) * keys_[i];
    return static_cast<float>(sum / static_cast<double>(count_));
  }

 private:
  std::vector<double> keys_;
  std::vector<double> values_;
  std::size_t count_ = 0;
};

}  // namespace headwise
