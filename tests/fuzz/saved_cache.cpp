// SPDX-License-Identifier: MIT
// Damage to a saved cache, with the checksums put right again so that what lies behind them is reached: refused in
// words with the target unchanged, or a state that a cache can have and go on from.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/input.hpp"
#include "headwise/attend/attend.hpp"
#include "headwise/cache/snapshot.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/saved.hpp"

namespace {

using namespace headwise::test;  // NOLINT: the helpers of the tests

template <class Compensation>
using cache_type = headwise::kv_cache<headwise::float16, headwise::fixed_budget, Compensation>;

void check(bool good) {
  if (!good) __builtin_trap();
}

template <class Compensation>
cache_type<Compensation> empty_cache(std::size_t reserve) {
  headwise::head_plan plan(headwise::model_shape{2, 2, 2, 4, 0}, headwise::head_role::local, 2);
  plan.set({0, 1}, headwise::head_role::retrieval);
  plan.set_window(1, 9);
  headwise::cache_options options;
  options.rollback_reserve = reserve;
  return cache_type<Compensation>(plan, headwise::fixed_budget{10}, {}, headwise::when_to_compress::every_append, {},
                                  options);
}

template <class Cache>
void go_on(Cache cache) {
  for (const headwise::head_report& head : cache.report().heads) {
    const std::size_t length = cache.layer_length(head.head.layer);
    check(head.folded <= length && head.dropped <= length);  // or a sum that overflows would do
    check(head.rows + head.folded + head.dropped == length);
  }
  const tokens rows = random_tokens(cache.shape(), 3, 5);
  std::vector<float> out(8);
  headwise::attend_schedule schedule;
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t layer = 0; layer < 2; ++layer) {
      cache.append(layer, rows.keys(i, 1), rows.values(i, 1));
      headwise::attend(cache, layer, rows.queries(i, 1), headwise::packed_output(out.data(), 1, 2, 4), schedule);
    }
  auto copy = cache;
  for (std::size_t back = 1; back < 6 && back <= copy.length(); ++back)
    if (copy.truncate(copy.length() - back)) append(copy, rows, 0, 2);
  cache.compress();
  const auto bytes = saved(cache);
  headwise::memory_source source(bytes.data(), bytes.size());
  headwise::load(copy, source);
  check(saved(copy) == bytes);
}

template <class Compensation>
void damage(fuzz_input& in, std::size_t reserve) {
  static const auto make = [](std::size_t with) {
    auto cache = empty_cache<Compensation>(with);
    const tokens rows = random_tokens(cache.shape(), 40, 3);
    for (std::size_t i = 0; i < 40; ++i) append(cache, rows, i, 1);
    cache.retain(0, 0, {0, 1, 31, 35, 38, 39});
    append(cache, rows, 0, 1);
    return cache;
  };
  const auto cache = make(reserve);
  const blob good = saved(cache);
  const auto ends = section_ends(cache);
  blob bytes = good;
  const auto whole = static_cast<std::size_t>(bytes.size());
  for (std::size_t change = 0; change < 8 && !in.empty(); ++change) {
    const std::size_t at = in.below(4) == 0 ? in.below(whole) : in.below(ends[0]) / 8 * 8;
    switch (in.below(5)) {
      case 0: bytes[at] = static_cast<std::byte>(in.byte()); break;
      case 1: bytes[at] ^= static_cast<std::byte>(1U << in.below(8)); break;
      case 2: put_number(bytes, std::min(at, whole - 8), in.below(64)); break;
      case 3: put_number(bytes, std::min(at, whole - 8), static_cast<std::uint64_t>(0) - in.below(64)); break;
      default: put_number(bytes, std::min(at, whole - 8), std::uint64_t{1} << in.below(64));
    }
  }
  if (in.below(8) != 0) seal_all(bytes, ends);
  if (in.below(8) == 0) bytes.resize(in.below(whole + 1));
  auto target = in.below(2) == 0 ? cache : empty_cache<Compensation>(reserve);
  const blob before = saved(target);
  try {
    headwise::memory_source source(bytes.data(), bytes.size());
    headwise::load(target, source);
  } catch (const headwise::error& refused) {
    check(*refused.what() != '\0');
    check(saved(target) == before);
    return;
  }
  go_on(target);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz_input in(data, size);
  const std::size_t reserve = in.below(2) * 3;
  if (in.below(2) == 0)
    damage<headwise::mean_compensation>(in, reserve);
  else
    damage<headwise::moment_compensation>(in, reserve);
  return 0;
}
