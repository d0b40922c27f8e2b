// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace headwise::test {

/// Numbers that are the same on every machine: std::mt19937 is fixed by the standard, its distributions are not.
class random_numbers {
 public:
  explicit random_numbers(std::uint32_t seed) : engine_(seed) {}

  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
  std::size_t below(std::size_t count) { return bits() % count; }
  /// In [0, 1), in steps of 2^-24.
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24F; }
  /// Close to a normal distribution of spread 1: a sum of four, within +-3.5.
  float gaussian() {
    float sum = -2.0F;
    for (int i = 0; i < 4; ++i) sum += uniform();
    return 1.7320508F * sum;
  }
  std::vector<float> gaussians(std::size_t count, float spread = 1.0F, float centre = 0.0F) {
    std::vector<float> numbers(count);
    for (float& number : numbers) number = centre + spread * gaussian();
    return numbers;
  }
  /// Shuffles by its own rule, for the same reason.
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace headwise::test
