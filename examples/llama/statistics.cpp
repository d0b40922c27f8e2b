// SPDX-License-Identifier: MIT
#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

namespace headwise_llama {

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double quantile_of(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  const double place = std::ceil(share * static_cast<double>(values.size()));
  const std::size_t i = std::min(values.size(), std::max(std::size_t{1}, static_cast<std::size_t>(place))) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values.end());
  return values[i];
}

estimate proportion(std::size_t successes, std::size_t trials) {
  if (trials == 0) return {0.0, 0.0, 1.0};
  constexpr double z = 1.959964;
  const double n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double center = (p + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n);
  return {p, std::max(0.0, center - half), std::min(1.0, center + half)};
}

estimate paired_mean(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences = a;
  for (std::size_t i = 0; i < b.size(); ++i) differences[i] -= b[i];
  if (differences.empty()) return {};
  constexpr std::size_t resamples = 10000;
  std::mt19937_64 random(1);
  std::vector<double> means(resamples);
  for (double& mean : means) {
    double sum = 0.0;
    for (std::size_t i = 0; i < differences.size(); ++i)
      sum += differences[static_cast<std::size_t>(random() % differences.size())];
    mean = sum / static_cast<double>(differences.size());
  }
  std::sort(means.begin(), means.end());
  return {mean_of(differences), means[resamples * 25 / 1000], means[resamples * 975 / 1000]};
}

}  // namespace headwise_llama
