// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>

#include "headwise/config.hpp"
#include "headwise/kernel/block.hpp"

namespace headwise::kernel {
inline namespace HEADWISE_ISA {

/// One query row of an unfinished softmax: sum and out hold e^(logit - maximum).
struct partial_softmax {
  float maximum;
  float sum;
  const float* out;
};

/// Merges the parts of one query row in the order given and divides: the same parts give the same bits, whoever
/// computed them. A row with no part to see gives zeros. NaN in a part stays visible, except that a summary of
/// infinite values whose weight is 0 beside the kept rows does not count (0 * infinity).
/// Returns the log of the sum.
template <class PartAt>
double merge_softmax(std::size_t parts, PartAt&& part_at, bool last_is_summary, float* out, std::size_t size) noexcept {
  float maximum = lowest_logit;
  for (std::size_t i = 0; i < parts; ++i) {
    const float part = part_at(i).maximum;
    maximum = part > maximum ? part : maximum;
  }
  float sum = 0.0F;
  for (std::size_t j = 0; j < size; ++j) out[j] = 0.0F;
  for (std::size_t i = 0; i < parts; ++i) {
    const partial_softmax part = part_at(i);
    const float weight = std::exp(part.maximum - maximum);
    if (weight == 0.0F && last_is_summary && i + 1 == parts) continue;
    sum += weight * part.sum;
    for (std::size_t j = 0; j < size; ++j) out[j] += weight * part.out[j];
  }
  if (sum == 0.0F) return static_cast<double>(lowest_logit);
  for (std::size_t j = 0; j < size; ++j) out[j] /= sum;
  return static_cast<double>(maximum) + std::log(static_cast<double>(sum));
}

}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
