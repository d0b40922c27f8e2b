// SPDX-License-Identifier: MIT
// Dot products, and sums of rows in float64.

#if defined(HEADWISE_SIMD_SUMS) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_SUMS
#undef HEADWISE_SIMD_SUMS
#else
#define HEADWISE_SIMD_SUMS
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "headwise/kernel/product.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// functions::dot
inline float dot(const float* a, const float* b, std::size_t size) {
  const tag d;
  vector sum[2] = {hn::Zero(d), hn::Zero(d)};
  std::size_t i = 0;
  for (; i + 2 * lanes <= size; i += 2 * lanes) {
    HEADWISE_SIMD_UNROLL
    for (std::size_t j = 0; j < 2; ++j)
      sum[j] = hn::MulAdd(hn::LoadU(d, a + i + j * lanes), hn::LoadU(d, b + i + j * lanes), sum[j]);
  }
  for (; i + lanes <= size; i += lanes) sum[0] = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum[0]);
  float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[0], sum[1])));
  for (; i < size; ++i) total += a[i] * b[i];
  return total;
}

#if HWY_HAVE_FLOAT64
/// functions::add_rows. Four registers of sums stay where they are while the rows go by; bits do not depend on how many
/// rows come at a time.
inline void add_rows(const float* rows, std::size_t count, std::size_t size, double* sums) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t n = lanes / 2;  // float64 lanes
  std::size_t i = 0;
  for (; i + 4 * n <= size; i += 4 * n) {
    hn::Vec<decltype(d)> sum[4];
    HEADWISE_SIMD_UNROLL
    for (std::size_t j = 0; j < 4; ++j) sum[j] = hn::LoadU(d, sums + i + j * n);
    for (std::size_t row = 0; row < count; ++row) {
      HEADWISE_SIMD_UNROLL
      for (std::size_t j = 0; j < 4; ++j)
        sum[j] = hn::Add(sum[j], hn::PromoteTo(d, hn::LoadU(narrow, rows + row * size + i + j * n)));
    }
    HEADWISE_SIMD_UNROLL
    for (std::size_t j = 0; j < 4; ++j) hn::StoreU(sum[j], d, sums + i + j * n);
  }
  for (; i < size; ++i)
    for (std::size_t row = 0; row < count; ++row) sums[i] += static_cast<double>(rows[row * size + i]);
}

/// functions::dot_sums
inline double dot_sums(const float* a, const double* b, std::size_t size) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t n = lanes / 2;  // float64 lanes
  auto sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + n <= size; i += n) sum = hn::MulAdd(hn::PromoteTo(d, hn::LoadU(narrow, a + i)), hn::LoadU(d, b + i), sum);
  double total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < size; ++i) total += static_cast<double>(a[i]) * b[i];
  return total;
}
#else  // no vectors of them: plain loops
using kernel::add_rows;
using kernel::dot_sums;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
