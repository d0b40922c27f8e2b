// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace bench {

/// The two products of attention through Eigen's gemm, on float32 rows, without a softmax and on one thread: how fast
/// the machine's usual matrix product is at these sizes. The queries meet blocks of keys of several sizes; the best one
/// counts.
class gemm_probe {
 public:
  /// Whether Eigen was found.
  static bool exists();

  /// `query_rows` (tokens x group) against `rows` keys.
  gemm_probe(std::size_t dim, std::size_t query_rows, std::size_t rows);

  /// Floating-point operations per second; 0 without Eigen.
  double measure();

 private:
  double rate(std::size_t block);
  void multiply(std::size_t start, std::size_t block);

  std::size_t dim_;
  std::size_t query_rows_;
  std::size_t rows_;
  std::vector<float> queries_, keys_, values_, logits_, out_;
};

}  // namespace bench
