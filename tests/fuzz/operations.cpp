// SPDX-License-Identifier: MIT
// Any bytes as operations on caches that share pages. Each is compared with a list of its values: with all keys 0,
// attention is the mean of the values that were not dropped, folded or not (the K=0 probe).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fuzz/input.hpp"
#include "headwise/attend/attend.hpp"
#include "headwise/cache/gather.hpp"
#include "headwise/cache/kv_cache.hpp"

namespace {

using cache_type = headwise::kv_cache<headwise::float32, headwise::fixed_budget>;

constexpr std::size_t heads = 3;  // local, retrieval, windowed in the second layer

struct sequence {
  cache_type cache;
  std::vector<double> values[heads];
  std::vector<char> dropped[heads];
  std::size_t longest = 0;  // what has been taken back is no reserve any more
};

std::pair<std::size_t, std::size_t> place(std::size_t head) { return {head / 2, head % 2}; }

void check(bool good) {
  if (!good) __builtin_trap();
}

/// The rows that have left since without a word are folded; kept + folded + dropped = all.
void compare(const sequence& of, headwise::attend_schedule& schedule) {
  const headwise::cache_report report = of.cache.report();
  for (const headwise::head_report& head : report.heads)
    check(head.rows + head.folded + head.dropped == of.cache.layer_length(head.head.layer));
  for (std::size_t head = 0; head < 2; ++head) {
    const auto [layer, kv_head] = place(head);
    const std::size_t n = of.values[head].size();
    check(of.cache.head(layer, kv_head).length() == n);
    if (n == 0) continue;
    double sum = 0.0, count = 0.0;
    for (std::size_t i = 0; i < n; ++i)
      if (!of.dropped[head][i]) sum += of.values[head][i], count += 1.0;
    float q[2] = {1.0F, 1.0F}, out[2] = {-1.0F, -1.0F};
    headwise::attend(of.cache, layer, headwise::packed_rows(q, 1, 2, 1), headwise::packed_output(out, 1, 2, 1),
                     schedule);
    const double expected = count == 0.0 ? 0.0 : sum / count;
    check(std::fabs(static_cast<double>(out[kv_head]) - expected) <= 1e-3 * (1.0 + std::fabs(expected)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headwise::test::fuzz_input in(data, size);
  headwise::head_plan plan(headwise::model_shape{2, 2, 2, 1, 0}, headwise::head_role::local, in.below(70));
  plan.set({0, 1}, headwise::head_role::retrieval);
  plan.set_window(1, 1 + in.below(90));
  headwise::cache_options options;
  options.rollback_reserve = in.below(20);
  const auto when = static_cast<headwise::when_to_compress>(in.below(3));
  std::vector<sequence> sequences;
  sequences.push_back({cache_type(plan, headwise::fixed_budget{in.below(100)}, {}, when, {}, options), {}, {}, 0});

  headwise::attend_schedule schedule;
  float number = 0.0F;
  for (std::size_t step = 0; step < 150 && !in.empty(); ++step) {
    sequence& of = sequences[in.below(sequences.size())];
    const std::size_t operation = in.below(8);
    switch (operation) {
      case 0:
      case 1:
      case 2: {
        const std::size_t n = in.below(4) == 0 ? 1 + in.below(130) : 1;
        if (of.values[0].size() + n > 1000) break;
        const std::vector<float> keys(2 * n);
        std::vector<float> values(2 * n);
        for (std::size_t i = 0; i < n; ++i, number += 1.0F) {
          values[2 * i] = values[2 * i + 1] = number;
          for (std::size_t head = 0; head < heads; ++head) {
            of.values[head].push_back(static_cast<double>(number));
            of.dropped[head].push_back(0);
          }
        }
        of.longest = std::max(of.longest, of.values[0].size());
        for (std::size_t layer = 0; layer < 2; ++layer)
          of.cache.append(layer, headwise::packed_rows(keys.data(), n, 2, 1),
                          headwise::packed_rows(values.data(), n, 2, 1));
        break;
      }
      case 3: of.cache.compress(); break;
      case 4: {
        const std::size_t length = of.values[0].size();
        const std::size_t back = in.below(4) == 0 ? in.below(length + 2) : in.below(24);
        const std::size_t target = back > length ? length + 1 : length - back;
        const auto before = of.cache.kept_positions(0, 0);
        if (of.cache.truncate(target)) {
          check(target <= length);
          for (std::size_t head = 0; head < heads; ++head) {
            of.values[head].resize(target);
            of.dropped[head].resize(target);
          }
        } else {
          check(of.cache.kept_positions(0, 0) == before && of.cache.length() == length);
          check(target > length || target + options.rollback_reserve < of.longest ||
                of.cache.head(0, 0).last_retain().length > target || of.cache.head(0, 1).last_retain().length > target);
        }
        break;
      }
      case 5: {
        const std::size_t head = in.below(2);
        const bool drop = in.below(2) == 0;
        std::vector<std::size_t> keep;
        const auto kept = of.cache.kept_positions(0, head);
        const std::size_t share = 1 + in.below(5), recent = in.below(60);
        for (const std::size_t position : kept)
          if (position % share == 0 || position + recent >= of.values[head].size())
            keep.push_back(position);
          else
            of.dropped[head][position] = static_cast<char>(of.dropped[head][position] || drop);
        of.cache.retain(0, head, keep, drop ? headwise::other_rows::drop : headwise::other_rows::fold);
        check(of.cache.kept_positions(0, head) == keep);
        break;
      }
      case 6:
        if (sequences.size() < 4) {
          sequence copy = of;
          sequences.push_back(std::move(copy));
        } else {
          sequences[in.below(sequences.size())] = sequence(of);
        }
        break;
      default:
        if (sequences.size() > 1)
          sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(in.below(sequences.size())));
    }
    if (operation < 6) compare(of, schedule);
    if (step % 32 == 0)
      for (const sequence& each : sequences) compare(each, schedule);
  }
  for (const sequence& each : sequences) compare(each, schedule);
  return 0;
}
