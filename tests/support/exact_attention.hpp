// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "headwise/core/key_range.hpp"
#include "reference/attention.hpp"
#include "support/tokens.hpp"

namespace headwise::test {

/// All that attention can tell, in double precision.
struct exact_answer {
  reference::vector out;          ///< [query token][query head][element]
  reference::vector log_sum_exp;  ///< [query token][query head]; -HUGE_VAL where nothing is seen
  reference::vector received;     ///< [KV head][position], without what a summary received
};

/// The queries of tokens [first, first + count) over the first `length` tokens under a mask. The rows at `folded` are
/// one mean row in every head, which queries see whose range begins at 0.
template <class Mask>
exact_answer exact_attention(const tokens& rows, std::size_t length, std::size_t first, std::size_t count,
                             const Mask& mask, key_range folded = {}) {
  const model_shape& shape = rows.shape;
  const reference::logit_rule rule{1.0 / std::sqrt(static_cast<double>(shape.key_size())), 0.0};
  const auto row_at = [&](std::size_t position, std::size_t head) {
    const auto start = static_cast<std::ptrdiff_t>((position * shape.kv_heads + head));
    const auto part = [&](const std::vector<float>& of, std::size_t size) {
      const auto begin = of.begin() + start * static_cast<std::ptrdiff_t>(size);
      return reference::vector(begin, begin + static_cast<std::ptrdiff_t>(size));
    };
    return reference::row{part(rows.k, shape.key_size()), part(rows.v, shape.value_size()), 0.0};
  };
  exact_answer answer;
  answer.received.assign(shape.kv_heads * length, 0.0);
  std::vector<std::vector<reference::row>> kept(shape.kv_heads);
  std::vector<reference::row> means(shape.kv_heads);
  for (std::size_t head = 0; head < shape.kv_heads; ++head) {
    std::vector<reference::row> left;
    for (std::size_t position = 0; position < length; ++position) kept[head].push_back(row_at(position, head));
    for (std::size_t position = folded.begin; position < folded.end; ++position) left.push_back(row_at(position, head));
    if (!left.empty()) means[head] = reference::mean_row(left);
  }
  for (std::size_t token = first; token < first + count; ++token) {
    const key_range sees = mask(token);
    for (std::size_t query_head = 0; query_head < shape.query_heads; ++query_head) {
      const std::size_t head = query_head / shape.group();
      const auto start = static_cast<std::ptrdiff_t>((token * shape.query_heads + query_head) * shape.key_size());
      const reference::vector query(rows.q.begin() + start,
                                    rows.q.begin() + start + static_cast<std::ptrdiff_t>(shape.key_size()));
      std::vector<const reference::row*> seen;  // as reference::attention, without copies of the rows
      std::vector<std::size_t> positions;
      for (std::size_t position = sees.begin; position < sees.end && position < length; ++position) {
        if (position >= folded.begin && position < folded.end) continue;
        seen.push_back(&kept[head][position]);
        positions.push_back(position);
      }
      if (folded.begin < folded.end && sees.begin == 0) seen.push_back(&means[head]);
      reference::vector logits;
      double most = -HUGE_VAL;
      for (const reference::row* row : seen) {
        logits.push_back(reference::logit(query, row->key, rule) + row->bias);
        most = std::fmax(most, logits.back());
      }
      double sum = 0.0;
      for (const double x : logits) sum += std::exp(x - most);
      reference::vector out(shape.value_size(), 0.0);
      for (std::size_t n = 0; n < seen.size(); ++n) {
        const double weight = std::exp(logits[n] - most) / sum;
        for (std::size_t e = 0; e < out.size(); ++e) out[e] += weight * seen[n]->value[e];
      }
      answer.out.insert(answer.out.end(), out.begin(), out.end());
      answer.log_sum_exp.push_back(seen.empty() ? -HUGE_VAL : most + std::log(sum));
      for (std::size_t i = 0; i < positions.size(); ++i)
        answer.received[head * length + positions[i]] += std::exp(logits[i] - most) / sum;
    }
  }
  return answer;
}

}  // namespace headwise::test
