// SPDX-License-Identifier: MIT
// What may happen at the same time, at the same time: the bits are those of one thread, and the thread sanitizer
// (-DHEADWISE_SANITIZE=thread) finds no race. No openmp executor here: that sanitizer cannot see libgomp's barriers.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory_resource>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/gather.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/core/thread_pool.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/saved.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

using cache_type = kv_cache<float16, fixed_budget, moment_compensation>;
constexpr std::size_t prompt = 160, length = 240;

/// Heads of all roles.
head_plan mixed() {
  head_plan plan(model_shape{4, 4, 2, 16, 0});
  for (const std::size_t layer : {0U, 1U}) plan.set({layer, 1}, head_role::retrieval);
  plan.set_window(3, 40);
  return plan;
}

cache_type make(const head_plan& plan = mixed()) {
  cache_options options;
  options.rollback_reserve = 8;
  return cache_type(plan, fixed_budget{30}, {}, when_to_compress::after_prompt, {}, options);
}

const tokens& rows() {
  static const tokens made = random_tokens(mixed().shape(), length, 1);
  return made;
}

/// Appends tokens to a layer and attends to them; the outputs go behind `out`.
template <class Cache, class Executor = serial>
void step(Cache& cache, std::size_t layer, std::size_t first, std::size_t n, attend_schedule& schedule,
          std::vector<float>& out, const Executor& executor = {}) {
  cache.append(layer, rows().keys(first, n), rows().values(first, n));
  out.resize(out.size() + n * 4 * 16);
  attend(cache, layer, rows().queries(first, n), packed_output(out.data() + out.size() - n * 4 * 16, n, 4, 16),
         schedule, executor);
}

/// All layers, token by token.
template <class Executor = serial>
void steps(cache_type& cache, std::size_t first, std::size_t end, std::vector<float>& out,
           const Executor& executor = {}) {
  attend_schedule schedule;
  for (; first < end; ++first)
    for (std::size_t layer = 0; layer < 4; ++layer) step(cache, layer, first, 1, schedule, out, executor);
}

cache_type prompted() {
  cache_type cache = make();
  append(cache, rows(), 0, prompt);
  cache.compress();
  return cache;
}

/// The newest token's outputs in all layers.
std::vector<float> answers(const cache_type& cache) {
  std::vector<float> all;
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const std::vector<float> out = attended(cache, layer, rows().queries(prompt - 1, 1));
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

/// What a thread has seen, and what it leaves behind.
struct result {
  std::vector<float> out;
  blob state;

  bool operator==(const result& other) const { return out == other.out && state == other.state; }
};

TEST(layers, of_one_cache_are_worked_on_at_the_same_time) {
  const auto all_of = [](cache_type& cache, std::size_t layer) {
    attend_schedule schedule;
    std::vector<float> out;
    step(cache, layer, 0, prompt, schedule, out);
    cache.compress(layer);
    for (std::size_t i = prompt; i < length; ++i) {
      step(cache, layer, i, 1, schedule, out);
      if (i % 40 != 0) continue;
      const std::vector<std::size_t> kept = cache.kept_positions(layer, 0);
      cache.retain(layer, 0, {kept.begin() + 20, kept.end()}, layer == 3 ? other_rows::drop : other_rows::fold);
    }
    return out;
  };
  std::vector<std::vector<float>> found(4), expected(4);
  std::optional<blob> state;
  for (int round = 0; round < 8; ++round) {
    cache_type cache = make();
    at_once(4, [&](std::size_t layer) { found[layer] = all_of(cache, layer); });
    if (!state) {  // behind the first threads, which so choose the kernels at the same time too
      cache_type alone = make();
      for (std::size_t layer = 0; layer < 4; ++layer) expected[layer] = all_of(alone, layer);
      state = saved(alone);
    }
    EXPECT_EQ(found, expected);
    EXPECT_TRUE(saved(cache) == *state);
  }
}

/// What becomes of a cache, the original or a copy; it goes at the end.
constexpr std::size_t lives = 6;
result live(std::size_t life, cache_type cache) {
  result seen;
  switch (life) {
    case 0: steps(cache, prompt, length, seen.out); break;
    case 1:  // takes tokens back, and with them rows that had left
      for (int again = 0; again < 8; ++again) {
        steps(cache, prompt, prompt + 6, seen.out);
        EXPECT_TRUE(cache.truncate(prompt));
      }
      break;
    case 2:  // compresses, in all layers and in one
      append(cache, rows(), prompt, 64);
      cache.compress();
      append(cache, rows(), prompt + 64, 10);
      cache.compress(0);
      steps(cache, length - 5, length, seen.out);
      break;
    case 3: {  // deep and shallow copies, in any order
      std::optional<cache_type> deep(std::in_place, cache, std::pmr::new_delete_resource());
      for (std::size_t i = prompt; i < length; i += 8) {
        const cache_type copy = *deep;
        steps(*deep, i, i + 4, seen.out);
        cache = copy;
        steps(cache, i + 4, i + 8, seen.out);
      }
      deep.reset();
      break;
    }
    case 4: {  // beams
      std::vector<cache_type> beams(3, cache);
      for (std::size_t i = prompt; i + 12 <= length; i += 12) {
        for (std::size_t beam = 0; beam < 3; ++beam) steps(beams[beam], i + 4 * beam, i + 4 * beam + 4, seen.out);
        beams = gather(beams, {2, 0, i % 8 / 4});
      }
      cache = std::move(beams[1]);
      break;
    }
    default: break;  // goes at once
  }
  seen.state = saved(cache);
  return seen;
}

TEST(copies, live_and_go_while_the_original_goes_on) {
  std::vector<result> expected;
  for (std::size_t life = 0; life < lives; ++life) expected.push_back(live(life, prompted()));
  for (std::size_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    std::vector<cache_type> caches;
    caches.reserve(lives);
    caches.push_back(prompted());
    while (caches.size() < lives) caches.push_back(caches.front());
    std::vector<result> found(lives);
    at_once(lives, [&](std::size_t life) {
      if (life != 0 && (life + round) % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(round));
      found[life] = live(life, std::move(caches[life]));
    });
    for (std::size_t life = 0; life < lives; ++life) EXPECT_TRUE(found[life] == expected[life]) << "life " << life;
  }
}

/// The copy's last reads come before the original's first write to the same place only if its going orders them: it
/// takes no page and returns none, so no lock does. The place is the table of their pages, or where they have tables of
/// their own, a page.
TEST(copies, that_only_read_go_before_the_original_writes) {
  const auto filled = [](std::size_t n) {
    cache_type cache = make(head_plan(mixed().shape(), head_role::retrieval));
    append(cache, rows(), 0, n);
    return cache;
  };
  const std::vector<float> before = answers(filled(128)), after = answers(filled(129));
  for (int round = 0; round < 60; ++round) {
    cache_type original = filled(128);  // two whole pages
    std::optional<cache_type> copy = original;
    if (round % 2 == 1) {
      append(original, rows(), 128, 1);
      EXPECT_TRUE(original.truncate(127));
    }
    at_once(2, [&](std::size_t thread) {
      if (thread == 0) {
        EXPECT_EQ(answers(*copy), before);
        copy.reset();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(round * 200));  // orders nothing
        append(original, rows(), original.length(), 129 - original.length());
        EXPECT_EQ(answers(original), after);
      }
    });
  }
}

TEST(copies, are_made_by_several_threads_while_others_attend) {
  const cache_type cache = prompted();
  const std::vector<float> expected = answers(cache);
  const blob state = saved(cache);
  const result alone = live(1, cache);
  at_once(6, [&](std::size_t thread) {
    for (int round = 0; round < 4; ++round) {
      if (thread % 2 == 0) {
        EXPECT_TRUE(live(1, cache) == alone);
      } else {
        for (int repeat = 0; repeat < 5; ++repeat) EXPECT_EQ(answers(cache), expected);
        EXPECT_TRUE(saved(cache) == state);
        EXPECT_EQ(cache.report().tokens, prompt);
      }
    }
  });
}

/// Rows so large that a head's are several tasks, which the thread that ends last merges.
TEST(spmd, threads_share_a_schedule_and_append_between_barriers) {
  const model_shape shape{2, 2, 2, 1024, 0};
  const tokens large = random_tokens(shape, 320, 2);
  head_plan plan(shape);
  plan.set({0, 1}, head_role::retrieval);
  plan.set({1, 0}, head_role::retrieval);
  auto start = make_cache<float32>(plan, fixed_budget{100});
  append(start, large, 0, 300);
  start.compress();

  constexpr std::size_t out_size = 2 * 1024;
  std::vector<float> expected;
  auto alone = start;
  for (std::size_t i = 300; i < 320; ++i) {
    append(alone, large, i, 1);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> out = attended(alone, layer, large.queries(i, 1));
      expected.insert(expected.end(), out.begin(), out.end());
    }
  }

  for (const std::size_t nth : {2U, 5U}) {
    auto cache = start;
    std::vector<float> found(expected.size());
    attend_schedule schedule;
    barrier all(nth);
    at_once(nth, [&](std::size_t ith) {
      float* out = found.data();
      for (std::size_t i = 300; i < 320; ++i) {
        for (std::size_t layer = ith; layer < 2; layer += nth)
          cache.append(layer, large.keys(i, 1), large.values(i, 1));
        for (std::size_t layer = 0; layer < 2; ++layer, out += out_size) {
          all.wait();
          if (ith == 0) schedule.prepare(cache, layer, large.queries(i, 1), packed_output(out, 1, 2, 1024));
          all.wait();
          schedule.run(ith, nth);
        }
        all.wait();
      }
    });
    EXPECT_GE(schedule.tasks(), 4U);
    EXPECT_TRUE(found == expected) << nth << " threads";
  }
}

TEST(pools, come_and_go) {
  const std::vector<float> expected = live(0, prompted()).out;
  for (int round = 0; round < 3; ++round) {
    cache_type cache = prompted();
    std::vector<float> found;
    for (std::size_t i = prompt; i < length; i += 4) {
      const thread_pool pool(2 + i / 4 % 3, std::chrono::microseconds(round * 25));
      steps(cache, i, i + 4, found, pool);
    }
    EXPECT_EQ(found, expected);
  }
}

/// Each caller has its cache and its schedule; the pool takes their calls one after another.
TEST(pools, serve_several_sequences) {
  const cache_type start = prompted();
  const std::vector<float> expected = live(0, start).out;
  const thread_pool pool(3);
  at_once(3, [&](std::size_t) {
    cache_type cache = start;
    std::vector<float> found;
    steps(cache, prompt, length, found, pool);
    EXPECT_EQ(found, expected);
  });
}

}  // namespace
}  // namespace headwise::test
