// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/kernel/kernel.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// What is left of folded rows: their count, and the sums of their keys and values. Rows are added one after another in
/// float64, so the bits depend on the rows and their order alone, not on how many were folded at a time, and no format
/// narrower than the sums is ever averaged.
class row_sums {
 public:
  row_sums(std::size_t key_size, std::size_t value_size) : keys_(key_size), values_(value_size) {}

  std::size_t count() const noexcept { return values_.count; }
  std::size_t key_size() const noexcept { return keys_.sums.size(); }
  std::size_t value_size() const noexcept { return values_.sums.size(); }
  std::size_t bytes() const noexcept {
    return (key_size() + value_size()) * sizeof(double) + sizeof keys_.count + sizeof values_.count;
  }

  /// Rows side by side: keys [rows x key_size], values [rows x value_size].
  void add(const float* keys, const float* values, std::size_t rows = 1) noexcept {
    add_keys(keys, rows);
    add_values(values, rows);
  }
  /// The same in two steps, for one who needs a mean in between.
  void add_keys(const float* keys, std::size_t rows) noexcept { keys_.add(keys, rows); }
  void add_values(const float* values, std::size_t rows) noexcept { values_.add(values, rows); }

  /// Element i of the mean key (k_hat) and of the mean value (v_hat); count() > 0.
  double mean_key(std::size_t i) const noexcept { return keys_.sums[i] / static_cast<double>(keys_.count); }
  double mean_value(std::size_t i) const noexcept { return values_.sums[i] / static_cast<double>(values_.count); }

  /// query . k_hat
  float mean_logit(const float* query) const noexcept {
    const double sum = kernel::fastest().dot_sums(query, keys_.sums.data(), key_size());
    return static_cast<float>(sum / static_cast<double>(keys_.count));
  }

  /// The exact bits to a byte sink, and back from a source into sums of the same sizes; not between add_keys() and
  /// add_values(). Any count and any bits are sums that rows may have: a NaN or an infinity is no damage, since a row
  /// may have brought it, so only whoever knows how many rows there were can tell.
  template <class Sink>
  void save(Sink& sink) const {
    detail::write_count(sink, count());
    sink.write(keys_.sums.data(), key_size() * sizeof(double));
    sink.write(values_.sums.data(), value_size() * sizeof(double));
  }
  template <class Source>
  void load(Source& source) {
    keys_.count = values_.count = detail::read_count(source);
    source.read(keys_.sums.data(), key_size() * sizeof(double));
    source.read(values_.sums.data(), value_size() * sizeof(double));
  }

 private:
  struct columns {
    explicit columns(std::size_t size) : sums(size) {}

    void add(const float* rows, std::size_t n) noexcept {
      kernel::fastest().add_rows(rows, n, sums.size(), sums.data());
      count += n;
    }

    std::vector<double> sums;
    std::size_t count = 0;
  };

  columns keys_;
  columns values_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
