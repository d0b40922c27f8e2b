// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
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
/// Folds 16 rows at a time, as one product of matrices.
struct moment_compensation {
  static constexpr std::size_t block = 16;

  class summary {
   public:
    summary(std::size_t key_size, std::size_t value_size)
        : sums_(key_size, value_size), co_moment_(key_size * value_size) {}

    const row_sums& sums() const noexcept { return sums_; }
    std::size_t bytes() const noexcept { return sums_.bytes() + co_moment_.size() * sizeof(float); }

    /// At most `block` rows. Of D C_vk = sum (v - v_new)(k - c)^T, which is the same for every c, the rows before these
    /// have their part already if c is their own mean key: so
    ///   D C_vk += sum over these rows of (v - v_new)(k - k_old)^T
    /// with the mean key before and the mean value after (Chan's way to merge covariances; with one row, Welford's).
    /// Only distances from means are multiplied, so a large common offset or an outlier key cancels nothing, and
    /// float32 is enough for the products.
    void add(const float* keys, const float* values, std::size_t rows) noexcept {
      const std::size_t key_size = sums_.key_size();
      const std::size_t value_size = sums_.value_size();
      const bool first = sums_.count() == 0;  // no mean key yet: their own will do
      if (first) sums_.add_keys(keys, rows);
      sums_.add_values(values, rows);

      constexpr std::size_t tile = 64;
      float key_steps[block * tile];    // [row][key]
      float value_steps[tile * block];  // [value][row]
      for (std::size_t v = 0; v < value_size; v += tile) {
        const std::size_t tile_values = (std::min)(tile, value_size - v);
        for (std::size_t i = 0; i < tile_values; ++i) {
          const double mean = sums_.mean_value(v + i);
          for (std::size_t row = 0; row < rows; ++row)
            value_steps[i * block + row] = step(values[row * value_size + v + i], mean);
        }
        for (std::size_t k = 0; k < key_size; k += tile) {
          const std::size_t tile_keys = (std::min)(tile, key_size - k);
          double mean[tile];
          for (std::size_t j = 0; j < tile_keys; ++j) mean[j] = sums_.mean_key(k + j);
          for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t j = 0; j < tile_keys; ++j)
              key_steps[row * tile + j] = step(keys[row * key_size + k + j], mean[j]);
          kernel::add_product(tile_values, tile_keys, rows, value_steps, block, key_steps, tile,
                              co_moment_.data() + v * key_size + k, key_size);
        }
      }
      if (!first) sums_.add_keys(keys, rows);
    }

    /// (C_vk q)_i
    float covariance_times(const float* query, std::size_t i) const noexcept {
      const std::size_t keys = sums_.key_size();
      return kernel::dot(co_moment_.data() + i * keys, query, keys) / static_cast<float>(sums_.count());
    }

   private:
    static float step(float x, double mean) noexcept { return static_cast<float>(static_cast<double>(x) - mean); }

    row_sums sums_;
    std::vector<float> co_moment_;  // [value_size x key_size], D C_vk
  };

  static summary make_summary(std::size_t key_size, std::size_t value_size) { return {key_size, value_size}; }
  static constexpr std::size_t fold_rows() noexcept { return block; }
  static void fold(summary& moments, const float* keys, const float* values, std::size_t rows) noexcept {
    for (std::size_t first = 0; first < rows; first += block)
      moments.add(keys + first * moments.sums().key_size(), values + first * moments.sums().value_size(),
                  (std::min)(block, rows - first));
  }
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
