// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

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
      float key_steps[block * tile];  // [row][element]
      float value_steps[block * tile];
      const kernel::functions& kernels = kernel::fastest();
      for (std::size_t k = 0; k < key_size; k += tile) {
        const std::size_t tile_keys = (std::min)(tile, key_size - k);
        steps<tile>(
            keys + k, key_size, rows, tile_keys, [&](std::size_t j) { return sums_.mean_key(k + j); }, key_steps);
        for (std::size_t v = 0; v < value_size; v += tile) {
          const std::size_t tile_values = (std::min)(tile, value_size - v);
          steps<tile>(
              values + v, value_size, rows, tile_values, [&](std::size_t j) { return sums_.mean_value(v + j); },
              value_steps);
          kernels.add_product(tile_keys, tile_values, rows, key_steps, 1, tile, value_steps, tile,
                              co_moment_.data() + k * value_size + v, value_size);
        }
      }
      if (!first) sums_.add_keys(keys, rows);
    }

    /// C_vk q, to value_size floats.
    void covariance_times(const float* query, float* out) const noexcept {
      const std::size_t values = sums_.value_size();
      std::fill_n(out, values, 0.0F);
      kernel::fastest().add_product(1, values, sums_.key_size(), query, 0, 1, co_moment_.data(), values, out, values);
      const float share = 1.0F / static_cast<float>(sums_.count());
      for (std::size_t i = 0; i < values; ++i) out[i] *= share;
    }

    template <class Sink>
    void save(Sink& sink) const {
      sums_.save(sink);
      sink.write(co_moment_.data(), co_moment_.size() * sizeof(float));
    }
    template <class Source>
    void load(Source& source) {
      sums_.load(source);
      source.read(co_moment_.data(), co_moment_.size() * sizeof(float));
    }

   private:
    template <std::size_t Tile, class MeanAt>
    static void steps(const float* rows, std::size_t stride, std::size_t count, std::size_t size, MeanAt&& mean_at,
                      float* out) noexcept {
      double mean[Tile];
      for (std::size_t j = 0; j < size; ++j) mean[j] = mean_at(j);
      for (std::size_t row = 0; row < count; ++row)
        for (std::size_t j = 0; j < size; ++j)
          out[row * Tile + j] = static_cast<float>(static_cast<double>(rows[row * stride + j]) - mean[j]);
    }

    row_sums sums_;
    std::vector<float> co_moment_;  // [key_size x value_size], D C_vk transposed
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
  static const row_sums* sums(const summary& moments) noexcept { return &moments.sums(); }

  static summary_logit evaluate(const summary& moments, const float* query, const attention_params& params,
                                float* value_out) noexcept {
    const summary_logit mean = mean_compensation::weight(moments.sums(), query);
    // A capped logit moves less than the query does: d cap(x) / dx = 1 - (cap(x) / softcap)^2.
    const float capped = params.softcap > 0.0F ? params.capped(mean.mean_logit) / params.softcap : 0.0F;
    const float slope = 1.0F - capped * capped;
    moments.covariance_times(query, value_out);
    for (std::size_t i = 0; i < moments.sums().value_size(); ++i)
      value_out[i] = static_cast<float>(moments.sums().mean_value(i)) + slope * value_out[i];
    return mean;
  }

  static constexpr const char* name() noexcept { return "moment"; }
  static constexpr std::array<std::size_t, 1> parameters() noexcept { return {block}; }
  template <class Sink>
  static void save(const summary& moments, Sink& sink) {
    moments.save(sink);
  }
  template <class Source>
  static void load(summary& moments, Source& source) {
    moments.load(source);
  }
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
