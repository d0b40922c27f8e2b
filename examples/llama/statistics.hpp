// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace headwise_llama {

/// An estimate with its 95 % interval.
struct estimate {
  double mean = 0.0;
  double low = 0.0;
  double high = 0.0;
};

double mean_of(const std::vector<double>& values);
/// The middle one; of an even number of values, the mean of the two in the middle.
double median_of(std::vector<double> values);
/// The value that a share of them does not exceed: the smallest such value of the list. 0 for an empty list.
double quantile_of(std::vector<double> values, double share);

/// A proportion: `successes` of `trials`, Wilson's score interval.
estimate proportion(std::size_t successes, std::size_t trials);

/// The mean of paired differences a[i] - b[i] (or of a alone, where b is empty): percentile bootstrap over the pairs,
/// 10,000 resamples of a fixed seed, so the same trials print the same interval.
estimate paired_mean(const std::vector<double>& a, const std::vector<double>& b = {});

}  // namespace headwise_llama
