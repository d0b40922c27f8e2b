// SPDX-License-Identifier: MIT
// Several sequences in one schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/core/thread_pool.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/kernel_case.hpp"
#include "support/refused.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::attend_schedule;
using headwise::attention_extras;
using headwise::attention_params;
using headwise::key_range;
using headwise::model_shape;
using headwise::received_attention;
using headwise::test::tokens;

/// One sequence of any type, its newest `count` queries, and what one call gives for it.
template <class Cache>
struct member {
  Cache cache;
  tokens rows;
  std::size_t length, count;
  std::vector<float> out{}, alone{};
  std::vector<double> log_sums{}, alone_log_sums{};

  template <class Mask>
  void prepare(attend_schedule& schedule, const Mask& mask) {
    const model_shape& shape = rows.shape;
    out.assign(count * shape.query_heads * shape.value_size(), -7777.0F);
    log_sums.assign(count * shape.query_heads, -7777.0);
    attention_extras extras;
    extras.log_sum_exp = log_sums.data();
    schedule.add(cache, 0, rows.queries(length - count, count),
                 headwise::packed_output(out.data(), count, shape.query_heads, shape.value_size()), {}, mask, extras);
  }
  template <class Mask>
  void call(const Mask& mask) {
    attend_schedule schedule;
    schedule.begin();
    prepare(schedule, mask);
    schedule.ready();
    for (std::size_t i = 0; i < schedule.tasks(); ++i) schedule.run(i);
    alone = out;
    alone_log_sums = log_sums;
  }
  void expect_same() const {
    EXPECT_EQ(out, alone) << length << " tokens";
    EXPECT_EQ(log_sums, alone_log_sums) << length << " tokens";
  }
};

template <class Format, class Compensation>
auto member_of(const model_shape& shape, std::size_t length, std::size_t count, std::size_t window,
               const Compensation& compensation) {
  headwise::head_plan plan(shape);
  plan.set({0, 0}, headwise::head_role::retrieval);
  auto cache = headwise::make_cache<Format>(plan, headwise::fixed_budget{window}, compensation);
  tokens rows = headwise::test::random_tokens(shape, length, static_cast<unsigned>(length));
  headwise::test::append(cache, rows, 0, length - count);
  cache.compress();
  headwise::test::append(cache, rows, length - count, count);
  return member<decltype(cache)>{std::move(cache), std::move(rows), length, count};
}

class batch : public headwise::test::each_set {};
HEADWISE_FOR_EACH_SET(batch);

TEST_P(batch, of_mixed_sequences_equals_one_call_each_bit_for_bit) {
  auto a = member_of<headwise::float16>({1, 4, 2, 64, 0}, 700, 1, 100, headwise::mean_compensation{});
  auto b = member_of<headwise::float32>({1, 3, 3, 16, 8}, 40, 7, 20, headwise::moment_compensation{});
  auto c = member_of<headwise::bfloat16>({1, 8, 1, 24, 0}, 330, 200, 1000, headwise::no_compensation{});
  auto d = member_of<headwise::float32>({1, 2, 1, 12, 0}, 100, 1, 30, headwise::mean_compensation{});  // the reference
  auto e = member_of<headwise::float16>({1, 4, 2, 64, 0}, 1, 1, 10, headwise::mean_compensation{});
  const headwise::causal all;
  const headwise::windowed window{15};
  a.call(all);
  b.call(window);
  c.call(all);
  d.call(all);
  e.call(all);
  attend_schedule schedule;
  const auto run = [&](const auto& executor) {
    schedule.begin();
    a.prepare(schedule, all);
    b.prepare(schedule, window);
    c.prepare(schedule, all);
    d.prepare(schedule, all);
    e.prepare(schedule, all);
    schedule.ready();
    executor(schedule.tasks(), [&](std::size_t i) { schedule.run(i); });
    a.expect_same();
    b.expect_same();
    c.expect_same();
    d.expect_same();
    e.expect_same();
  };
  run(headwise::serial{});
  run(headwise::test::threads{7});
  const headwise::thread_pool pool(3);
  for (int i = 0; i < 20; ++i) run(pool);
}

/// Forks of one prefix, each with queries of its own.
TEST_P(batch, of_forks_equals_one_call_each) {
  auto parent = member_of<headwise::float16>({1, 4, 2, 32, 0}, 400, 1, 100, headwise::mean_compensation{});
  std::vector<decltype(parent)> forks(5, parent);
  for (std::size_t i = 0; i < forks.size(); ++i) {
    forks[i].rows = headwise::test::random_tokens(parent.rows.shape, 401 + i, static_cast<unsigned>(i));
    for (std::size_t n = 0; n <= i; ++n) headwise::test::append(forks[i].cache, forks[i].rows, 400 + n, 1);
    forks[i].length = 401 + i;
    forks[i].call(headwise::causal{});
  }
  attend_schedule schedule;
  schedule.begin();
  for (auto& fork : forks) fork.prepare(schedule, headwise::causal{});
  schedule.ready();
  headwise::test::threads{4}(schedule.tasks(), [&](std::size_t i) { schedule.run(i); });
  for (const auto& fork : forks) fork.expect_same();
}

TEST(batch_of_nothing, has_no_tasks) {
  attend_schedule schedule;
  schedule.begin();
  schedule.ready();
  EXPECT_EQ(schedule.tasks(), 0U);
  schedule.run(0, 4);  // SPMD: returns
}

/// One refused sequence refuses the batch, and the schedule is as good as new.
TEST(batch_of_nothing, is_left_after_a_refusal) {
  auto a = member_of<headwise::float16>({1, 4, 2, 16, 0}, 60, 1, 10, headwise::mean_compensation{});
  a.call(headwise::causal{});
  attend_schedule schedule;
  schedule.begin();
  a.prepare(schedule, headwise::causal{});
  EXPECT_REFUSED(schedule.add(a.cache, 1, a.rows.queries(59, 1), {}), "layer 1");
  EXPECT_EQ(schedule.tasks(), 0U);
  schedule.run(0, 1);
  EXPECT_EQ(a.out, std::vector<float>(a.out.size(), -7777.0F));
  schedule.begin();
  a.prepare(schedule, headwise::causal{});
  schedule.ready();
  schedule.run(0, 1);
  a.expect_same();
}

}  // namespace
