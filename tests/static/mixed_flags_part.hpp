// SPDX-License-Identifier: MIT
// Defines PART(), which attends with what this file was compiled for. No #pragma once: included once per program part.
#include <headwise/headwise.hpp>

#include "mixed_flags.hpp"

#define HEADWISE_TEXT(x) #x
#define HEADWISE_TEXT_OF(x) HEADWISE_TEXT(x)

namespace {

constexpr std::size_t part_tokens = 200;
constexpr std::size_t part_dim = 64;

/// In [-1, 1), the same everywhere: integers only, until the last step.
struct part_numbers {
  unsigned state = 12345;
  float next() {
    state = state * 1664525U + 1013904223U;
    return static_cast<float>(static_cast<int>(state >> 8) - (1 << 23)) * 0x1p-23F;
  }
};

float part_keys[part_tokens * part_dim];
float part_values[part_tokens * part_dim];
float part_queries[2 * part_dim];

/// Exact attention of one of the two query heads over all rows.
void part_exact(const float* query, double* out) {
  static double weights[part_tokens];
  double most = -1e300;
  for (std::size_t i = 0; i < part_tokens; ++i) {
    weights[i] = 0.0;
    for (std::size_t j = 0; j < part_dim; ++j)
      weights[i] += static_cast<double>(query[j]) * static_cast<double>(part_keys[i * part_dim + j]) / 8.0;
    if (weights[i] > most) most = weights[i];
  }
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  for (std::size_t j = 0; j < part_dim; ++j) {
    out[j] = 0.0;
    for (std::size_t i = 0; i < part_tokens; ++i)
      out[j] += weights[i] / sum * static_cast<double>(part_values[i * part_dim + j]);
  }
}

/// Rows that a bfloat16 or float16 holds exactly, so that only the attention is measured.
float part_rounded(float x) { return static_cast<float>(static_cast<int>(x * 64.0F)) / 64.0F; }

part_report part_run() {
  part_numbers numbers;
  for (float& x : part_keys) x = part_rounded(numbers.next());
  for (float& x : part_values) x = part_rounded(numbers.next());
  for (float& x : part_queries) x = 4.0F * numbers.next();

  part_report report{};
  report.isa = HEADWISE_TEXT_OF(HEADWISE_ISA);
  headwise::kernel::choose();
  report.kernels = headwise::kernel::fastest().name;
  report.table = &headwise::kernel::fastest();

  headwise::model_shape shape;
  shape.layers = 1;
  shape.query_heads = 2;
  shape.kv_heads = 1;
  shape.head_dim = part_dim;
  const auto worst = [&](auto format) {
    auto cache = headwise::make_cache<decltype(format)>(headwise::head_plan(shape), headwise::fixed_budget{1000});
    cache.append(0, headwise::packed_rows(part_keys, part_tokens, 1, part_dim),
                 headwise::packed_rows(part_values, part_tokens, 1, part_dim));
    headwise::attend_schedule schedule;
    headwise::attend(cache, 0, headwise::packed_rows(part_queries, 1, 2, part_dim),
                     headwise::packed_output(report.out, 1, 2, part_dim), schedule);
    for (std::size_t head = 0; head < 2; ++head) {
      double exact[part_dim];
      part_exact(part_queries + head * part_dim, exact);
      for (std::size_t i = 0; i < part_dim; ++i) {
        const double error = std::fabs(static_cast<double>(report.out[head * part_dim + i]) - exact[i]);
        if (!(error <= report.worst_error)) report.worst_error = error;  // NaN too
      }
    }
  };
  worst(headwise::float16{});
  worst(headwise::bfloat16{});
  worst(headwise::float32{});
  return report;
}

}  // namespace

part_report PART() { return part_run(); }
