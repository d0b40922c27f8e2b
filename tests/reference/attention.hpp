// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

// Attention of one query as the equations say it (arXiv 2407.15891, section 3), in double precision.

namespace reference {

using vector = std::vector<double>;

/// A key and a value, and what is added to the row's logit after scaling and softcap.
struct row {
  vector key;
  vector value;
  double bias = 0.0;
};

struct logit_rule {
  double scale = 1.0;
  double softcap = 0.0;  ///< 0: none
};

inline double dot(const vector& a, const vector& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// s q.k, capped, without bias.
inline double logit(const vector& query, const vector& key, logit_rule rule) {
  const double scaled = rule.scale * dot(query, key);
  return rule.softcap > 0.0 ? rule.softcap * std::tanh(scaled / rule.softcap) : scaled;
}

/// sum_n e^{logit_n + bias_n} v_n / sum_n e^{logit_n + bias_n}; zeros where there is no row.
inline vector attention(const vector& query, const std::vector<row>& rows, logit_rule rule, std::size_t value_size) {
  vector logits;
  double maximum = -HUGE_VAL;
  for (const row& r : rows) {
    logits.push_back(logit(query, r.key, rule) + r.bias);
    maximum = std::fmax(maximum, logits.back());
  }
  vector out(value_size, 0.0);
  double sum = 0.0;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const double weight = std::exp(logits[n] - maximum);
    sum += weight;
    for (std::size_t i = 0; i < value_size; ++i) out[i] += weight * rows[n].value[i];
  }
  if (!rows.empty())
    for (double& x : out) x /= sum;
  return out;
}

/// The compensation row: k_hat, v_hat, and ln D on top of s q.k_hat.
inline row mean_row(const std::vector<row>& folded) {
  const auto count = static_cast<double>(folded.size());
  row mean{vector(folded[0].key.size()), vector(folded[0].value.size()), std::log(count)};
  for (const row& r : folded) {
    for (std::size_t i = 0; i < mean.key.size(); ++i) mean.key[i] += r.key[i] / count;
    for (std::size_t i = 0; i < mean.value.size(); ++i) mean.value[i] += r.value[i] / count;
  }
  return mean;
}

/// C_vk = (1/D) sum (v - v_hat)(k - k_hat)^T, [value][key].
inline std::vector<vector> covariance(const std::vector<row>& folded) {
  const row mean = mean_row(folded);
  std::vector<vector> result(mean.value.size(), vector(mean.key.size()));
  for (const row& r : folded)
    for (std::size_t i = 0; i < mean.value.size(); ++i)
      for (std::size_t j = 0; j < mean.key.size(); ++j)
        result[i][j] += (r.value[i] - mean.value[i]) * (r.key[j] - mean.key[j]) / static_cast<double>(folded.size());
  return result;
}

/// The same as mean_row with the value v_hat + s C_vk q, where C_vk = (1/D) sum (v - v_hat)(k - k_hat)^T. Under a
/// softcap s is what the capped logit moves by per unit of q.k_hat.
inline row moment_row(const vector& query, const std::vector<row>& folded, logit_rule rule) {
  const row mean = mean_row(folded);
  const double capped = logit(query, mean.key, rule);
  const double slope = rule.softcap > 0.0 ? 1.0 - capped * capped / (rule.softcap * rule.softcap) : 1.0;
  row moment = mean;
  for (const row& r : folded) {
    double step = 0.0;  // (k - k_hat) . q
    for (std::size_t j = 0; j < query.size(); ++j) step += (r.key[j] - mean.key[j]) * query[j];
    for (std::size_t i = 0; i < moment.value.size(); ++i)
      moment.value[i] += rule.scale * slope * (r.value[i] - mean.value[i]) * step / static_cast<double>(folded.size());
  }
  return moment;
}

}  // namespace reference
