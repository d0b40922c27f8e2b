// SPDX-License-Identifier: MIT
// What a softmax needs, and that of one query: logits to weights.

#if defined(HEADWISE_SIMD_SOFTMAX) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_SIMD_SOFTMAX
#undef HEADWISE_SIMD_SOFTMAX
#else
#define HEADWISE_SIMD_SOFTMAX
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "headwise/kernel/block.hpp"
#include "headwise/kernel/simd/vectors-inl.hpp"

#ifdef HEADWISE_SIMD_HERE
HWY_BEFORE_NAMESPACE();
namespace headwise::kernel {
inline namespace HEADWISE_ISA {
namespace HWY_NAMESPACE {

/// e^x for x <= 0, within 2 units of the last place; 0 below -87.3, so no subnormal is made. NaN stays NaN.
/// Cephes' polynomial for expf; the range is reduced by rounding to the nearest integer.
HWY_INLINE vector exp_nonpositive(vector x) {
  const tag d;
  const hn::RebindToSigned<tag> i;
  const vector lowest = hn::Set(d, -87.3F);
  const auto below = hn::Lt(x, lowest);
  const vector clamped = hn::IfThenElse(below, lowest, x);  // not Max, which may drop a NaN
  const auto power = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504F)));
  const vector n = hn::ConvertTo(d, power);
  const vector r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), hn::NegMulAdd(n, hn::Set(d, 0.693359375F), clamped));
  vector p = hn::MulAdd(hn::Set(d, 1.9875691500e-4F), r, hn::Set(d, 1.3981999507e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0F)));
  const vector scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(power, hn::Set(i, 127))));
  return hn::IfThenZeroElse(below, hn::Mul(p, scale));
}

/// softcap * tanh(x / softcap)
HWY_INLINE vector capped(vector x, float softcap) {
  const tag d;
  const vector y = hn::Mul(x, hn::Set(d, 1.0F / softcap));
  const vector square = hn::Mul(y, y);
  vector series = hn::MulAdd(hn::Set(d, 62.0F / 2835.0F), square, hn::Set(d, -17.0F / 315.0F));  // for small y
  series = hn::MulAdd(series, square, hn::Set(d, 2.0F / 15.0F));
  series = hn::MulAdd(series, square, hn::Set(d, -1.0F / 3.0F));
  series = hn::MulAdd(hn::Mul(series, square), y, y);
  const vector one = hn::Set(d, 1.0F);
  const vector power = exp_nonpositive(hn::Mul(hn::Abs(y), hn::Set(d, -2.0F)));
  const vector large = hn::CopySign(hn::Div(hn::Sub(one, power), hn::Add(one, power)), y);
  const vector tanh = hn::IfThenElse(hn::Lt(hn::Abs(y), hn::Set(d, 0.25F)), series, large);
  return hn::Mul(tanh, hn::Set(d, softcap));
}

/// The larger lane by lane; never a NaN, unless a is one: a NaN logit shows in the sum of weights, and the maximum
/// of the others stays what it was.
HWY_INLINE vector larger(vector a, vector b) { return hn::IfThenElse(hn::Gt(b, a), b, a); }

/// Turns `count` logits of one query (and their `bias`, or nullptr) into weights e^(logit - maximum), and adds them to
/// `sum`; returns the factor of what came before. `logits` and `bias`: aligned, with room for whole vectors.
HWY_INLINE float softmax_row(float* logits, std::size_t count, const float* bias, float softcap, float& maximum,
                             float& sum) {
  const tag d;
  for (std::size_t r = count; r % lanes != 0; ++r) logits[r] = lowest_logit;
  vector largest = hn::Set(d, maximum);
  for (std::size_t r = 0; r < count; r += lanes) {
    vector x = hn::Load(d, logits + r);
    if (softcap > 0.0F || bias != nullptr) {
      if (softcap > 0.0F) x = capped(x, softcap);
      if (bias != nullptr) x = hn::Add(x, hn::Load(d, bias + r));
      if (r + lanes > count) x = hn::IfThenElse(hn::FirstN(d, count - r), x, hn::Set(d, lowest_logit));
      hn::Store(x, d, logits + r);
    }
    largest = larger(largest, x);
  }
  largest = hn::MaxOfLanes(d, largest);
  const float factor = hn::GetLane(exp_nonpositive(hn::Sub(hn::Set(d, maximum), largest)));
  vector total = hn::Zero(d);
  for (std::size_t r = 0; r < count; r += lanes) {
    vector weight = exp_nonpositive(hn::Sub(hn::Load(d, logits + r), largest));
    if (r + lanes > count) weight = hn::IfThenElseZero(hn::FirstN(d, count - r), weight);
    hn::Store(weight, d, logits + r);
    total = hn::Add(total, weight);
  }
  maximum = hn::GetLane(largest);
  sum = sum * factor + hn::GetLane(hn::SumOfLanes(d, total));
  return factor;
}

}  // namespace HWY_NAMESPACE
}  // namespace HEADWISE_ISA
}  // namespace headwise::kernel
HWY_AFTER_NAMESPACE();
#endif  // HEADWISE_SIMD_HERE
#endif  // toggle
