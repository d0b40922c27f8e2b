// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "headwise/core/model_shape.hpp"
#include "headwise/probe/head_scorer.hpp"

namespace headwise::test {

/// Scores a head whose attention is known: in row i of the repeated part it looks evenly at the rows of `sees(i)`, and
/// at everything it can where that list is empty. Key j is a unit vector of its own, so that queries can pick rows.
/// `strength`: by how much the logits of those rows exceed the others'.
template <class Sees>
head_scores pattern_scores(const repeated_tokens& probe, Sees&& sees, float strength = 100.0F) {
  const std::size_t n = probe.size();
  std::vector<float> q(n * n), k(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    k[i * n + i] = 1.0F;
    if (i >= probe.prefix_length())
      for (const std::size_t j : sees(i - probe.prefix_length())) q[i * n + probe.prefix_length() + j] = strength;
  }
  attention_params params;
  params.scale = 1.0F;
  head_scorer scorer(model_shape{1, 1, 1, n, 0}, probe, params);
  scorer.observe(0, packed_rows(q.data(), n, 1, n), packed_rows(k.data(), n, 1, n));
  return scorer.scores();
}

}  // namespace headwise::test
