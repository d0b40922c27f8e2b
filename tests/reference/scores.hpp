// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/attention.hpp"

// Echo and induction as they are defined, from the whole attention matrix, in double precision.

namespace reference {

using matrix = std::vector<vector>;

/// A[i][j]: how much of row i's attention goes to row j <= i.
inline matrix attention_matrix(const matrix& queries, const matrix& keys, logit_rule rule) {
  matrix a;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    vector weights;
    for (std::size_t j = 0; j <= i; ++j) weights.push_back(logit(queries[i], keys[j], rule));
    const double maximum = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    for (double& weight : weights) weight /= sum;
    a.push_back(weights);
  }
  return a;
}

/// Mean over the L rows i >= L of sum_j A[i, j + shift], j = i - L, i - 2L, ... >= 0, where rows count from 0
/// after the prefix. Shift 0 is the echo score, shift 1 the induction score.
inline double mean_mass(const matrix& a, std::size_t prefix, std::size_t block, std::size_t repeats,
                        std::size_t shift) {
  double sum = 0.0;
  for (std::size_t i = block; i < block * repeats; ++i)
    for (std::size_t back = block; back <= i; back += block) sum += a[prefix + i][prefix + i - back + shift];
  return sum / static_cast<double>((repeats - 1) * block);
}

}  // namespace reference
