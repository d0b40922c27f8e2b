// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "reference/attention.hpp"
#include "reference/conversions.hpp"
#include "reference/rows.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"

namespace headwise::test {

/// What a format makes of a number, by the reference.
template <class Format>
double stored(double value) {
  if (std::is_same_v<Format, float16>) return reference::rounded(reference::f16, std::clamp(value, -65504.0, 65504.0));
  if (std::is_same_v<Format, bfloat16>) return reference::rounded(reference::bf16, value);
  return value;
}

/// Random keys and values of one layer in a caller's tensors, and the queries of the newest tokens.
struct sequence {
  model_shape shape;
  tensor q, k, v;
  std::size_t first_query;

  sequence(const model_shape& of, std::size_t tokens, std::uint32_t seed, element_type type = element_type::f32,
           order layout = order::packed, std::size_t queries = static_cast<std::size_t>(-1))
      : shape(of), first_query(queries < tokens ? tokens - queries : 0) {
    random_numbers random(seed);
    const auto make = [&](std::size_t rows, std::size_t heads, std::size_t dim) {
      return tensor(rows, heads, dim, random.gaussians(rows * heads * dim), type, layout);
    };
    q = make(tokens - first_query, of.query_heads, of.key_size());
    k = make(tokens, of.kv_heads, of.key_size());
    v = make(tokens, of.kv_heads, of.value_size());
  }
};

enum class summary_kind { none, mean, moment };

/// Rows that leave together.
inline std::size_t folded_together(summary_kind kind) { return kind == summary_kind::moment ? 16 : 1; }

/// The answers that a layer must give, from a sequence stored in a format and from what each KV head keeps.
template <class Format>
class exact_layer {
 public:
  std::vector<reference::row_lists> lists;  ///< [kv_head]

  explicit exact_layer(const sequence& of) : lists(of.shape.kv_heads), sequence_(&of), rows_(of.shape.kv_heads) {
    for (std::size_t head = 0; head < rows_.size(); ++head)
      for (std::size_t token = 0; token < of.k.view().tokens; ++token) {
        rows_[head].push_back({of.k.row(token, head), of.v.row(token, head), 0.0});
        for (auto* part : {&rows_[head].back().key, &rows_[head].back().value})
          for (double& x : *part) x = stored<Format>(x);
      }
  }

  void append(std::size_t tokens) {
    for (auto& list : lists) list.append(tokens);
  }
  void fold(std::size_t sinks, std::size_t window, summary_kind kind = summary_kind::none) {
    for (auto& list : lists) list.fold(sinks, window, folded_together(kind));
  }

  /// Attends with the queries of tokens [first, first + count) and compares every element.
  template <class Cache>
  void expect(const Cache& cache, std::size_t first, std::size_t count, summary_kind kind = summary_kind::none,
              attention_params params = {}, double tolerance = 1e-5) const {
    const model_shape& shape = sequence_->shape;
    if (first + count != lists[0].seen) params.first_position = first;  // else the default means the same
    std::vector<float> out(count * shape.query_heads * shape.value_size(), 1e30F);
    attend_schedule schedule;
    attend(cache, 0, sequence_->q.view(first - sequence_->first_query, count),
           packed_output(out.data(), count, shape.query_heads, shape.value_size()), schedule, serial{}, params);

    const reference::logit_rule rule{params.scale != 0.0F ? static_cast<double>(params.scale)
                                                          : 1.0 / std::sqrt(static_cast<double>(shape.key_size())),
                                     static_cast<double>(params.softcap)};
    for (std::size_t token = first, n = 0; token < first + count; ++token)
      for (std::size_t head = 0; head < shape.kv_heads; ++head) {
        std::vector<reference::row> rows;
        std::vector<reference::row> folded;
        for (const std::size_t position : lists[head].kept)
          if (position <= token) rows.push_back(rows_[head][position]);
        for (const std::size_t position : lists[head].left) folded.push_back(rows_[head][position]);
        const bool summary = kind != summary_kind::none && !folded.empty();
        for (std::size_t g = 0; g < shape.group(); ++g) {
          const reference::vector query = sequence_->q.row(token - sequence_->first_query, head * shape.group() + g);
          if (summary)
            rows.push_back(kind == summary_kind::mean ? reference::mean_row(folded)
                                                      : reference::moment_row(query, folded, rule));
          const reference::vector exact = reference::attention(query, rows, rule, shape.value_size());
          if (summary) rows.pop_back();
          for (std::size_t i = 0; i < exact.size(); ++i, ++n)
            ASSERT_NEAR(static_cast<double>(out[n]), exact[i], tolerance * (1.0 + std::fabs(exact[i])))
                << "token " << token << " of " << lists[0].seen << ", query " << g << " of KV head " << head
                << ", element " << i << "; " << to_string(shape);
        }
      }
  }

 private:
  const sequence* sequence_;
  std::vector<std::vector<reference::row>> rows_;  // [kv_head][token]
};

}  // namespace headwise::test
