// SPDX-License-Identifier: MIT
// An engine's file that has Highway kernels of its own, for every set, and uses headwise, whose kernels are compiled in
// another file (HEADWISE_KERNELS_ELSEWHERE). Highway comes first, as it does where it is hidden in the engine's
// headers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine_with_highway.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <headwise/headwise.hpp>

HWY_BEFORE_NAMESPACE();
namespace engine {
namespace HWY_NAMESPACE {

float sum_of(const float* numbers, std::size_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 4> d;
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) sum = hn::Add(sum, hn::LoadU(d, numbers + i));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace engine {

HWY_EXPORT(sum_of);

float sum(const float* numbers, std::size_t count) { return HWY_DYNAMIC_DISPATCH(sum_of)(numbers, count); }

}  // namespace engine

/// Values of 1 everywhere: attention gives ones, which the engine's own kernel adds up.
int main() {
  headwise::model_shape shape;
  shape.layers = shape.query_heads = shape.kv_heads = 1;
  shape.head_dim = 64;
  auto cache = headwise::make_cache<headwise::float16>(headwise::head_plan(shape), headwise::fixed_budget{100});
  static float ones[10 * 64];
  for (float& x : ones) x = 1.0F;
  cache.append(0, headwise::packed_rows(ones, 10, 1, 64), headwise::packed_rows(ones, 10, 1, 64));
  float out[64];
  headwise::attend_schedule schedule;
  headwise::attend(cache, 0, headwise::packed_rows(ones, 1, 1, 64), headwise::packed_output(out, 1, 1, 64), schedule);
  return engine::sum(out, 64) == 64.0F && headwise::kernel::fastest().size_unit == 8 ? 0 : 1;
}
#endif
