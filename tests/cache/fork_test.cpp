// SPDX-License-Identifier: MIT
// Copies share pages until one side writes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "headwise/cache/gather.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/counting_resource.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

std::size_t in_use() { return memory().live_bytes + memory().mapped_bytes; }

head_plan four_heads() {
  head_plan plan(model_shape{2, 4, 4, 64, 0});
  for (std::size_t layer = 0; layer < 2; ++layer) plan.set({layer, 1}, head_role::retrieval);
  return plan;
}

TEST(fork, a_copy_takes_next_to_nothing_and_its_first_row_one_page_a_head) {
  const head_plan plan = four_heads();
  const tokens rows = random_tokens(plan.shape(), 5000, 1);
  auto cache = make_cache<float16>(plan, fixed_budget{1000});
  append(cache, rows, 0, 5000);
  cache.compress();
  const std::size_t rows_bytes = cache.report().row_bytes;
  const std::size_t before = in_use();
  auto copy = cache;
  EXPECT_LT(in_use() - before, 64 * 1024U);
  EXPECT_GT(copy.report().shared_bytes, rows_bytes * 9 / 10);
  const std::size_t page = page_layout(128, 128).bytes;
  append(copy, rows, 0, 1);
  EXPECT_LT(in_use() - before, 8 * page + 512 * 1024U);  // a page a head, and the arenas' chunks
  for (std::size_t head = 0; head < 4; ++head) {
    EXPECT_EQ(copy.head(0, head).run_at(2).keys, cache.head(0, head).run_at(2).keys);
    EXPECT_NE(copy.head(0, head).run_at(copy.head(0, head).runs() - 1).keys,
              cache.head(0, head).run_at(cache.head(0, head).runs() - 1).keys);
  }
}

TEST(fork, the_original_stays_where_it_is_once_its_copies_are_gone) {
  const head_plan plan = four_heads();
  const tokens rows = random_tokens(plan.shape(), 300, 1);
  auto cache = make_cache<float16>(plan, fixed_budget{100});
  append(cache, rows, 0, 200);
  const std::byte* const newest = cache.head(0, 1).run_at(3).keys;
  { const auto copy = cache; }
  append(cache, rows, 200, 1);
  EXPECT_EQ(cache.head(0, 1).run_at(3).keys, newest);
  EXPECT_EQ(cache.report().shared_bytes, 0U);
}

/// A tree of copies that go different ways, each against a cache of its own that went the same way alone.
TEST(fork, branches_are_what_they_would_be_alone) {
  const head_plan plan = four_heads();
  const tokens rows = random_tokens(plan.shape(), 400, 2);
  cache_options options;
  options.rollback_reserve = 6;
  const auto make = [&] {
    return make_cache<float32>(plan, fixed_budget{70}, any_compensation(moment_compensation{}),
                               when_to_compress::after_prompt, float32{}, options);
  };
  auto cache = make();
  append(cache, rows, 0, 130);
  auto early = cache;
  cache.compress();
  auto branch = cache;
  for (std::size_t i = 130; i < 200; ++i) append(cache, rows, i, 1);
  for (std::size_t i = 230; i < 260; ++i) append(branch, rows, i, 1);
  auto leaf = branch;
  ASSERT_TRUE(branch.truncate(155));
  append(branch, rows, 300, 3);
  append(leaf, rows, 310, 1);
  append(early, rows, 130, 64);
  early.compress();

  const auto expect = [&](const auto& found, const auto& steps) {
    auto alone = make();
    steps(alone);
    EXPECT_TRUE(visible_state(found) == visible_state(alone));
    EXPECT_EQ(attended(found, 1, rows.queries(0, 1)), attended(alone, 1, rows.queries(0, 1)));
  };
  const auto prompt = [&](auto& alone) { append(alone, rows, 0, 130), alone.compress(); };
  expect(cache, [&](auto& alone) {
    prompt(alone);
    for (std::size_t i = 130; i < 200; ++i) append(alone, rows, i, 1);
  });
  expect(branch, [&](auto& alone) {
    prompt(alone);
    for (std::size_t i = 230; i < 255; ++i) append(alone, rows, i, 1);
    append(alone, rows, 300, 3);
  });
  expect(leaf, [&](auto& alone) {
    prompt(alone);
    for (std::size_t i = 230; i < 260; ++i) append(alone, rows, i, 1);
    append(alone, rows, 310, 1);
  });
  expect(early, [&](auto& alone) { append(alone, rows, 0, 194), alone.compress(); });
}

TEST(fork, copies_append_and_go_in_threads_of_their_own) {
  const head_plan plan = four_heads();
  const tokens rows = random_tokens(plan.shape(), 400, 3);
  auto cache = make_cache<float16>(plan, fixed_budget{50});
  append(cache, rows, 0, 200);
  cache.compress();
  auto expected = cache;
  for (std::size_t i = 200; i < 300; ++i) append(expected, rows, i, 1);
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> answers(6);
  for (std::size_t t = 0; t < answers.size(); ++t)
    threads.emplace_back([&, copy = cache, t]() mutable {
      for (std::size_t i = 200; i < 300; ++i) append(copy, rows, i, 1);
      answers[t] = attended(copy, 1, rows.queries(299, 1));
    });
  { const auto gone = std::move(cache); }
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, attended(expected, 1, rows.queries(299, 1)));
}

TEST(fork, a_copy_into_an_unequal_memory_is_deep) {
  counting_resource here, there, same;
  same.equal = &here;
  const head_plan plan = four_heads();
  const tokens rows = random_tokens(plan.shape(), 300, 4);
  {
    cache_options options;
    options.memory = &here;
    auto cache = make_cache<float16>(plan, fixed_budget{100}, mean_compensation{}, when_to_compress::after_prompt,
                                     float16{}, options);
    append(cache, rows, 0, 250);
    cache.compress();
    const std::size_t live = here.live;
    EXPECT_GE(live, cache.report().row_bytes * 9 / 10);
    auto deep = decltype(cache)(cache, &there);
    EXPECT_EQ(here.live, live);
    EXPECT_GE(there.live, cache.report().row_bytes * 9 / 10);
    EXPECT_EQ(deep.report().shared_bytes, 0U);
    EXPECT_TRUE(visible_state(deep) == visible_state(cache));
    const auto shallow = decltype(cache)(cache, &same);
    EXPECT_EQ(here.live, live);
    EXPECT_EQ(same.live, 0U);
    auto alone = cache;
    for (std::size_t i = 250; i < 300; ++i) {
      append(deep, rows, i, 1);
      append(alone, rows, i, 1);
    }
    EXPECT_TRUE(visible_state(deep) == visible_state(alone));
    const auto from_system = decltype(cache)(cache, nullptr);
    EXPECT_TRUE(visible_state(from_system) == visible_state(cache));
  }
  EXPECT_EQ(here.live, 0U);
  EXPECT_EQ(there.live, 0U);
}

TEST(gather, beams_take_the_places_they_are_told) {
  const tokens rows = counting_tokens(one_head(), 10);
  std::vector<kv_cache<float32>> beams(3, kv_cache<float32>(one_local(4)));
  for (std::size_t beam = 0; beam < 3; ++beam) append(beams[beam], rows, 0, 2 + beam);
  auto next = gather(beams, {2, 0, 2, 2});
  ASSERT_EQ(next.size(), 4U);
  for (const auto& [beam, length] : {std::pair(0, 4), std::pair(1, 2), std::pair(2, 4), std::pair(3, 4)})
    EXPECT_EQ(next[static_cast<std::size_t>(beam)].length(), static_cast<std::size_t>(length));
  append(next[0], rows, 9, 1);
  EXPECT_EQ(answer(next[0]), 15.0F / 5);
  EXPECT_EQ(answer(next[2]), 1.5F);
  EXPECT_TRUE(gather(beams, {}).empty());
  for (const std::size_t wrong : {std::size_t{3}, static_cast<std::size_t>(-1), std::size_t{2147483647}})
    EXPECT_THROW(static_cast<void>(gather(beams, {0, wrong})), error);
}

}  // namespace
}  // namespace headwise::test
