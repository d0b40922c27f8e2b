// SPDX-License-Identifier: MIT
#include "anchors/gemm.hpp"

#include <algorithm>

#if __has_include(<Eigen/Core>)
#define EIGEN_DONT_PARALLELIZE  // one thread, also where OpenMP is on
#include <Eigen/Core>
#endif

#include "rounds.hpp"
#include "rows.hpp"

namespace bench {
namespace {

constexpr std::size_t most_query_rows = 512;
constexpr std::size_t most_rows = 4096;

}  // namespace

bool gemm_probe::exists() {
#if __has_include(<Eigen/Core>)
  return true;
#else
  return false;
#endif
}

gemm_probe::gemm_probe(std::size_t dim, std::size_t query_rows, std::size_t rows)
    : dim_(dim),
      query_rows_((std::min)(query_rows, most_query_rows)),
      rows_((std::min)(rows, most_rows)),
      queries_(random_floats(query_rows_ * dim, 1)),
      keys_(random_floats(rows_ * dim, 2)),
      values_(random_floats(rows_ * dim, 3)),
      logits_(query_rows_ * rows_),
      out_(query_rows_ * dim) {}

double gemm_probe::measure() {
  if (!exists()) return 0.0;
  double best = 0.0;
  for (std::size_t block = 256; block <= most_rows; block *= 4) {
    best = (std::max)(best, rate((std::min)(block, rows_)));
    if (block >= rows_) break;
  }
  return best;
}

double gemm_probe::rate(std::size_t block) {
  double flops = 0.0;
  const stopwatch time(true);
  do {
    for (std::size_t start = 0; start + block <= rows_; start += block) multiply(start, block);
    flops += static_cast<double>(rows_ / block * block * query_rows_ * dim_ * 4);
  } while (time.seconds() < 0.004);
  return flops / time.seconds();
}

void gemm_probe::multiply([[maybe_unused]] std::size_t start, [[maybe_unused]] std::size_t block) {
#if __has_include(<Eigen/Core>)
  using matrix = Eigen::Map<Eigen::MatrixXf>;
  const auto index = [](std::size_t n) { return static_cast<Eigen::Index>(n); };
  const matrix queries(queries_.data(), index(dim_), index(query_rows_));
  const matrix keys(keys_.data() + start * dim_, index(dim_), index(block));
  const matrix values(values_.data() + start * dim_, index(dim_), index(block));
  matrix logits(logits_.data(), index(block), index(query_rows_));
  matrix out(out_.data(), index(dim_), index(query_rows_));
  logits.noalias() = keys.transpose() * queries;
  out.noalias() += values * logits;
#endif
}

}  // namespace bench
