// SPDX-License-Identifier: MIT
// Where a cache's rows lie, and what it takes from the system and gives back.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "support/counting_map.hpp"
#include "support/counting_new.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

std::size_t in_use() { return memory().live_bytes + memory().mapped_bytes; }

/// 8 KV heads of size 64 in a layer; head 2 retrieves.
head_plan eight_heads(std::size_t layers = 1) {
  head_plan plan(model_shape{layers, 8, 8, 64, 0});
  for (std::size_t layer = 0; layer < layers; ++layer) plan.set({layer, 2}, head_role::retrieval);
  return plan;
}

/// The same rows again and again: their place matters, not what they hold.
tokens some_rows(const head_plan& plan, std::size_t n) { return tokens(plan.shape(), n); }

TEST(cache_memory, no_row_moves_while_tokens_arrive_and_windows_slide) {
  const head_plan plan = eight_heads();
  const tokens rows = some_rows(plan, 100);
  auto cache = make_cache<float16>(plan, fixed_budget{150});
  std::map<std::pair<std::size_t, std::size_t>, std::pair<const std::byte*, const std::byte*>> places;
  const auto look = [&] {
    for (std::size_t head = 0; head < 8; ++head)
      for (std::size_t i = 0; i < cache.head(0, head).runs(); ++i) {
        const run part = cache.head(0, head).run_at(i);
        for (std::size_t row = 0; row < part.rows; ++row) {
          // The sinks alone move, once: when the rows behind them leave.
          const bool packed = part.position + row < cache.head(0, head).rows().early();
          const std::pair place(part.keys + row * 128, part.values + row * 128);
          ASSERT_EQ(places.emplace(std::pair(packed ? 8 + head : head, part.position + row), place).first->second,
                    place);
        }
      }
  };
  for (std::size_t n = 0; n < 1000; n += 100) {
    append(cache, rows, 0, 100);
    look();
  }
  cache.compress();
  look();
  for (std::size_t n = 0; n < 400; ++n) {
    append(cache, rows, 0, 1);
    look();
  }
}

TEST(cache_memory, pages_of_a_layer_begin_at_different_places_of_the_systems_pages) {
  const head_plan plan = eight_heads();
  auto cache = make_cache<float16>(plan, fixed_budget{150});
  append(cache, some_rows(plan, 1), 0, 1);
  std::set<std::uintptr_t> phases;
  for (std::size_t head = 0; head < 8; ++head) {
    if (head == 2) continue;  // in an arena of its own
    const run first = cache.head(0, head).run_at(0);
    phases.insert(reinterpret_cast<std::uintptr_t>(first.keys) % 4096);
    phases.insert(reinterpret_cast<std::uintptr_t>(first.values) % 4096);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.keys) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.values) % 64, 0U);
  }
  EXPECT_EQ(phases.size(), 14U);
}

TEST(cache_memory, compress_gives_memory_back_to_the_system) {
  const head_plan plan = eight_heads(2);
  const tokens rows = some_rows(plan, 500);
  for (const std::size_t chunk : {500U, 60U, 1U}) {
    const std::size_t before = in_use();
    auto cache = make_cache<float16>(plan, fixed_budget{500});
    for (std::size_t n = 0; n < 12000; n += chunk) append(cache, rows, 0, chunk);
    const std::size_t full_taken = in_use() - before;
    const cache_report full = cache.report();
    cache.compress();
    const std::size_t small_taken = in_use() - before;
    const cache_report small = cache.report();
    // What is left is what the report says, and that is 500 rows of 7 heads and 12,000 of one.
    EXPECT_GE(full_taken, full.held_bytes());
    EXPECT_LE(full_taken, full.held_bytes() + full.held_bytes() / 50);
    EXPECT_GE(small_taken + full.heads.capacity() * sizeof(head_report), small.held_bytes());
    EXPECT_LE(small_taken, small.held_bytes() + small.held_bytes() / 20);
    EXPECT_LT(small.held_bytes(), full.held_bytes() * 2 / 5) << "chunks of " << chunk;
    EXPECT_LE(small.spare_bytes, 2 * (std::size_t{5} << 20)) << "chunks of " << chunk;
  }
}

TEST(cache_memory, a_window_that_slides_takes_nothing_new) {
  for (const std::size_t window : {1U, 64U, 100U, 500U, 3000U})
    for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append}) {
      const head_plan plan(model_shape{2, 8, 8, 64, 0});  // no retrieval head, which has to grow
      const tokens rows = some_rows(plan, 500);
      auto cache = make_cache<float16>(plan, fixed_budget{window}, mean_compensation{}, when);
      for (std::size_t n = 0; n < 3500; n += 500) append(cache, rows, 0, 500);
      cache.compress();
      for (std::size_t n = 0; n < 130; ++n) append(cache, rows, 0, 1);  // two boundaries: lists have their length now
      const std::size_t allocations = memory().allocations + memory().mappings;
      for (std::size_t n = 0; n < 64 * 5; ++n) append(cache, rows, 0, 1);
      EXPECT_EQ(memory().allocations + memory().mappings, allocations) << "window " << window;
    }
}

TEST(cache_memory, copies_moves_and_assignments_hold_their_own) {
  const std::size_t before = in_use();
  {
    const head_plan plan = eight_heads();
    const tokens rows = random_tokens(plan.shape(), 700, 1);
    auto cache = make_cache<float16>(plan, fixed_budget{100});
    append(cache, rows, 0, 600);
    cache.compress();
    const auto state = visible_state(cache);
    auto copy = cache;
    EXPECT_TRUE(visible_state(copy) == state);
    EXPECT_EQ(copy.head(0, 0).run_at(1).keys, cache.head(0, 0).run_at(1).keys);  // shared, until one writes
    const std::byte* const place = copy.head(0, 0).run_at(0).keys;
    auto moved = std::move(copy);
    EXPECT_TRUE(visible_state(moved) == state);
    EXPECT_EQ(moved.head(0, 0).run_at(0).keys, place);
    append(moved, rows, 600, 100);
    EXPECT_TRUE(visible_state(cache) == state);
    const auto longer = visible_state(moved);
    cache = moved;
    EXPECT_TRUE(visible_state(cache) == longer);
    const auto& itself = cache;
    cache = itself;
    EXPECT_TRUE(visible_state(cache) == longer);
    copy = std::move(cache);
    EXPECT_TRUE(visible_state(copy) == longer);
    cache = copy;
    EXPECT_TRUE(visible_state(cache) == longer);
    copy = make_cache<float16>(plan, fixed_budget{100});
    EXPECT_TRUE(visible_state(cache) == longer);
    cache.compress();
    append(cache, rows, 0, 1);
    EXPECT_TRUE(visible_state(moved) == longer);
  }
  EXPECT_EQ(in_use(), before);
}

/// At sizes where chunks are mappings, and at the sizes before.
TEST(cache_memory, any_allocation_may_fail_and_nothing_has_changed) {
  const head_plan plan(model_shape{1, 4, 4, 256, 0});
  const tokens rows = some_rows(plan, 64);
  auto cache = make_cache<float32>(plan, fixed_budget{4000});
  std::size_t failures = 0;
  [[maybe_unused]] const std::size_t mappings = memory().mappings;
  for (std::size_t n = 0; n < 64 * 40; n += 64) {
    const auto state = visible_state(cache);
    for (long allowed = 0;; ++allowed) {
      ASSERT_LT(allowed, 100);
      memory().allow = allowed;
      bool failed = false;
      try {
        cache.append(0, rows.keys(0, 64), rows.values(0, 64));
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      memory().allow = -1;
      if (!failed) break;
      ++failures;
      ASSERT_EQ(cache.length(), n);
      if (n % 640 == 0) {
        ASSERT_TRUE(visible_state(cache) == state) << allowed << " allocations at " << n;
      }
    }
  }
  EXPECT_GT(failures, 30U);
#if defined(__linux__)
  EXPECT_GE(memory().mappings, mappings + 2);
#endif
  const auto state = visible_state(cache);
  for (long allowed = 0, done = 0; done == 0; ++allowed) {
    memory().allow = allowed;
    try {
      const auto copy = cache;
      done = 1;
    } catch (const std::bad_alloc&) {
    }
    memory().allow = -1;
  }
  EXPECT_TRUE(visible_state(cache) == state);
}

}  // namespace
}  // namespace headwise::test
