// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/element/bits.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// The least and the largest that each element of rows has been. They are compared by their bits, as integers in the
/// order of the numbers: infinities and NaNs then lie beyond all numbers and stay visible, whatever the program's
/// floating-point flags.
class element_ranges {
 public:
  explicit element_ranges(std::size_t size)
      : least_(size, (std::numeric_limits<std::int32_t>::max)()),
        largest_(size, (std::numeric_limits<std::int32_t>::min)()) {}

  std::size_t size() const noexcept { return least_.size(); }
  std::size_t bytes() const noexcept { return 2 * size() * sizeof(std::int32_t); }

  /// Rows side by side, [rows x size()].
  void add(const float* rows, std::size_t count) noexcept {
    std::int32_t* const least = least_.data();
    std::int32_t* const largest = largest_.data();
    const std::size_t elements = size();
    for (std::size_t row = 0; row < count; ++row, rows += elements)
      for (std::size_t i = 0; i < elements; ++i) {
        const std::int32_t place = place_of(rows[i]);
        least[i] = place < least[i] ? place : least[i];
        largest[i] = place > largest[i] ? place : largest[i];
      }
  }

  /// Of element i; there have been rows.
  double least(std::size_t i) const noexcept { return number_at(least_[i]); }
  double largest(std::size_t i) const noexcept { return number_at(largest_[i]); }

  /// No row held an infinity or a NaN.
  bool finite() const noexcept {
    const std::int32_t most = place_of((std::numeric_limits<float>::max)());
    const std::int32_t lowest = place_of(std::numeric_limits<float>::lowest());
    bool all = true;
    for (std::size_t i = 0; i < size(); ++i) all = all && least_[i] >= lowest && largest_[i] <= most;
    return all;
  }

  template <class Sink>
  void save(Sink& sink) const {
    sink.write(least_.data(), size() * sizeof(std::int32_t));
    sink.write(largest_.data(), size() * sizeof(std::int32_t));
  }
  template <class Source>
  void load(Source& source) {
    source.read(least_.data(), size() * sizeof(std::int32_t));
    source.read(largest_.data(), size() * sizeof(std::int32_t));
  }

 private:
  /// Bits of negative numbers rise as the numbers fall, so all but the sign is turned round. Its own inverse.
  static std::int32_t turned(std::int32_t bits) noexcept { return bits ^ (bits < 0 ? 0x7FFFFFFF : 0); }
  static std::int32_t place_of(float number) noexcept {
    return turned(static_cast<std::int32_t>(detail::bits_of(number)));
  }
  static double number_at(std::int32_t place) noexcept {
    return static_cast<double>(detail::float_of(static_cast<std::uint32_t>(turned(place))));
  }

  std::vector<std::int32_t> least_;
  std::vector<std::int32_t> largest_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
