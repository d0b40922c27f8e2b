// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "headwise/kernel/product.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {

/// The mean and, beside it, how values vary with keys: the value is v_hat + s C_vk q with
///   C_vk = (1/D) sum (v - v_hat)(k - k_hat)^T,
/// the first-order expansion in q of the folded rows' own attention. The weight is the mean's. Costs
/// key_size x value_size float32 beside the mean: as many bytes as 64 f16 rows at head size 64, 128 at 128.
struct moment_compensation {
  class summary {
   public:
    summary(std::size_t key_size, std::size_t value_size)
        : sums_(key_size, value_size), co_moment_(key_size * value_size), key_step_(key_size) {}

    const row_sums& sums() const noexcept { return sums_; }
    std::size_t bytes() const noexcept {
      return sums_.bytes() + (co_moment_.size() + key_step_.size()) * sizeof(float);
    }

    /// Welford's update: only distances from the running means are multiplied, so a large common offset or an outlier
    /// key does not cancel anything, and float32 is enough for the products.
    void add(const float* key, const float* value) noexcept {
      const std::size_t keys = sums_.key_size();
      const std::size_t values = sums_.value_size();
      if (sums_.count() == 0) {
        sums_.add(key, value);
        return;
      }
      for (std::size_t j = 0; j < keys; ++j)
        key_step_[j] = static_cast<float>(static_cast<double>(key[j]) - sums_.mean_key(j));
      sums_.add(key, value);
      for (std::size_t i = 0; i < values; ++i) {
        const auto value_step = static_cast<float>(static_cast<double>(value[i]) - sums_.mean_value(i));
        float* const row = co_moment_.data() + i * keys;
        for (std::size_t j = 0; j < keys; ++j) row[j] += value_step * key_step_[j];
      }
    }

    /// (C_vk q)_i
    float covariance_times(const float* query, std::size_t i) const noexcept {
      const std::size_t keys = sums_.key_size();
      return kernel::dot(co_moment_.data() + i * keys, query, keys) / static_cast<float>(sums_.count());
    }

   private:
    row_sums sums_;
    std::vector<float> co_moment_;  // [value_size x key_size], D C_vk
    std::vector<float> key_step_;   // scratch of add
  };

  static summary make_summary(std::size_t key_size, std::size_t value_size) { return {key_size, value_size}; }
  static void fold(summary& moments, const float* key, const float* value) noexcept { moments.add(key, value); }
  static std::size_t folded(const summary& moments) noexcept { return moments.sums().count(); }
  static std::size_t bytes(const summary& moments) noexcept { return moments.bytes(); }

  static summary_logit evaluate(const summary& moments, const float* query, const attention_params& params,
                                float* value_out) noexcept {
    const summary_logit mean = mean_compensation::weight(moments.sums(), query);
    // A capped logit moves less than the query does: d cap(x) / dx = 1 - (cap(x) / softcap)^2.
    const float capped = params.softcap > 0.0F ? params.capped(mean.mean_logit) / params.softcap : 0.0F;
    const float slope = 1.0F - capped * capped;
    for (std::size_t i = 0; i < moments.sums().value_size(); ++i)
      value_out[i] = static_cast<float>(moments.sums().mean_value(i)) + slope * moments.covariance_times(query, i);
    return mean;
  }
};

}  // namespace headwise
