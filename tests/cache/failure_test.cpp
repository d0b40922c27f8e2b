// SPDX-License-Identifier: MIT
// Memory that runs out, at every allocation of every operation in turn: nothing that can be seen has changed, and what
// the cache does afterwards has the same bits as if it had never happened.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

#include "headwise/cache/gather.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/counting_resource.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

using cache_type = kv_cache<float32, fixed_budget, moment_compensation>;

std::size_t in_use() { return memory().live_bytes + memory().mapped_bytes; }

/// A retrieval head and a local one in each layer. Each has an arena for itself, and at head size 64 a page is more
/// than half a chunk: so every page is an allocation.
head_plan two_heads(std::size_t layers, std::size_t head_size) {
  head_plan plan(model_shape{layers, 2, 2, head_size, 0});
  for (std::size_t layer = 0; layer < layers; ++layer) plan.set({layer, 0}, head_role::retrieval);
  return plan;
}

/// Fails the allocations and mappings of the program: those from the k-th on, or the k-th alone.
struct failing_memory {
  bool once;
  void arm(std::size_t k) const {
    memory().fail_once = once;
    memory().allow = static_cast<long>(k);
  }
  void disarm() const { memory().allow = -1; }
  std::size_t failures() const { return memory().failures; }
};
/// Those of a memory resource.
struct failing_resource {
  counting_resource& resource;
  void arm(std::size_t k) const { resource.allow = static_cast<long>(k); }
  void disarm() const { resource.allow = -1; }
  std::size_t failures() const { return resource.failures; }
};

/// Does `operation` to a cache that `make` makes, with the k-th allocation failing, for each k until none fails:
/// returns how many there are. `go_on` is what the cache does afterwards.
template <class Make, class Operation, class GoOn, class Memory>
std::size_t allocations_that_may_fail(const Memory& fails, Make&& make, Operation&& operation, GoOn&& go_on) {
  auto expected = make();
  const auto before = visible_state(expected);
  operation(expected);
  go_on(expected);
  const auto after = visible_state(expected);
  for (std::size_t k = 0;; ++k) {
    SCOPED_TRACE(testing::Message() << k << " allocations succeed");
    auto cache = make();
    const std::size_t failures = fails.failures();
    bool done = true;
    fails.arm(k);
    try {
      operation(cache);
    } catch (const std::bad_alloc&) {
      done = false;
    }
    fails.disarm();
    if (fails.failures() == failures) return k;
    if (!done) {
      if (!(visible_state(cache) == before)) return ADD_FAILURE() << "something has changed", k;
      operation(cache);
    }
    go_on(cache);
    if (!(visible_state(cache) == after)) return ADD_FAILURE() << "it goes on in another way", k;
  }
}

class failure : public testing::Test {
 protected:
  static constexpr std::size_t reserve = 20;

  /// After 192 tokens - whole pages - of which the local head has folded what exceeds 4 sinks and 60 rows.
  cache_type rolling(std::pmr::memory_resource* from = nullptr) const {
    cache_type cache = fresh(from);
    append(cache, rows_, 0, 150);
    cache.compress();
    for (std::size_t i = 150; i < 192; ++i) append(cache, rows_, i, 1);
    return cache;
  }
  /// After 150, not compressed.
  cache_type prompted(std::pmr::memory_resource* from = nullptr) const {
    cache_type cache = fresh(from);
    append(cache, rows_, 0, 150);
    return cache;
  }
  cache_type fresh(std::pmr::memory_resource* from = nullptr) const {
    cache_options options;
    options.rollback_reserve = reserve;
    options.memory = from;
    return cache_type(plan_, fixed_budget{60}, moment_compensation{}, when_to_compress::after_prompt, float32{},
                      options);
  }

  void go_on(cache_type& cache) const {
    const std::size_t length = cache.length();
    for (std::size_t i = 0; i < 3; ++i) append(cache, rows_, 200 + i, 1);
    append(cache, rows_, 210, 66);
    cache.compress();
    ASSERT_TRUE(cache.truncate(cache.length() - 10));
    append(cache, rows_, 5, 2);
    ASSERT_EQ(cache.length(), length + 61);
  }

  /// How often `operation` allocates; each was made to fail.
  template <class Make, class Operation>
  std::size_t count(Make&& make, Operation&& operation) const {
    const auto after = [&](cache_type& cache) { go_on(cache); };
    const std::size_t all = allocations_that_may_fail(failing_memory{false}, make, operation, after);
    const std::size_t once = allocations_that_may_fail(failing_memory{true}, make, operation, after);
    EXPECT_EQ(once, all);
    return all;
  }

  head_plan plan_ = two_heads(2, 64);
  tokens rows_ = random_tokens(plan_.shape(), 300, 1);
};

// The numbers, each of allocations at least: a page is three, the chunk's record, its memory and its counts; lists and
// summaries are the others. Chunks that are there already are used first.

TEST_F(failure, append) {
  // To the layer that is behind the other.
  const auto append_to = [&](std::size_t layer, std::size_t n, auto&& begin) {
    const auto make = [&, layer, n] {
      cache_type cache = begin();
      cache.append(1 - layer, rows_.keys(0, n), rows_.values(0, n));
      return cache;
    };
    return count(make, [&, layer, n](cache_type& cache) { cache.append(layer, rows_.keys(0, n), rows_.values(0, n)); });
  };
  const auto full_pages = [&] { return rolling(); };
  EXPECT_GE(append_to(0, 1, full_pages), 3U);
  EXPECT_GE(append_to(1, 130, full_pages), 18U);
  const auto first_to_leave = [&] {
    cache_type cache = fresh();
    cache.compress();
    append(cache, rows_, 0, 64);
    return cache;
  };
  EXPECT_GE(append_to(0, 80, first_to_leave), 18U);
  EXPECT_GE(append_to(1, 16, first_to_leave), 9U);
}

/// A step that ran out of memory in any layer is taken back by truncate(length()).
TEST_F(failure, a_step_is_taken_back) {
  for (const std::size_t n : {1U, 70U}) {
    const auto step = [&](cache_type& cache) {
      try {
        append(cache, rows_, 100, n);
      } catch (const std::bad_alloc&) {
        memory().allow = -1;
        EXPECT_EQ(cache.length(), 192U);
        EXPECT_TRUE(cache.truncate(192));
        append(cache, rows_, 100, n);
      }
    };
    std::size_t k = 0;
    for (auto expected = rolling(); k < 1000; ++k) {
      if (k == 0) step(expected);
      auto cache = rolling();
      const std::size_t failures = memory().failures;
      failing_memory{false}.arm(k);
      step(cache);
      failing_memory{false}.disarm();
      ASSERT_TRUE(visible_state(cache) == visible_state(expected)) << k;
      if (memory().failures == failures) break;
    }
    EXPECT_GE(k, n == 1 ? 6U : 20U);
  }
}

TEST_F(failure, compress) {
  const auto make = [&] { return prompted(); };
  // Early rows, two summaries, per layer.
  EXPECT_GE(count(make, [](cache_type& cache) { cache.compress(); }), 22U);
  EXPECT_GE(count(make, [](cache_type& cache) { cache.compress(1); }), 10U);
  // Of a cache that has a copy: lists of pages and summaries are copied too.
  const auto copied = [&] {
    cache_type cache = rolling();
    append(cache, rows_, 0, 60);
    return cache;
  };
  const cache_type other = copied();
  EXPECT_GE(count([&] { return other; }, [](cache_type& cache) { cache.compress(); }), 18U);
}

TEST_F(failure, truncate) {
  const auto make = [&] { return rolling(); };
  const auto to = [](std::size_t length) {
    return [length](cache_type& cache) { ASSERT_TRUE(cache.truncate(length)); };
  };
  EXPECT_GE(count(make, to(175)), 15U);  // across a fold: two layers' lists and summaries anew
  EXPECT_GE(count(make, to(4)), 8U);     // early rows go back into pages
  const cache_type other = rolling();
  EXPECT_GE(count([&] { return other; }, to(175)), 15U);
  const auto refused = [](cache_type& cache) { ASSERT_FALSE(cache.truncate(100)); };
  EXPECT_GE(count(make, refused), 1U);
}

TEST_F(failure, retain) {
  const auto make = [&] { return rolling(); };
  const std::vector<std::size_t> positions = {0, 2, 150, 151, 170, 190};
  for (const std::size_t head : {0U, 1U})
    for (const other_rows others : {other_rows::fold, other_rows::drop})
      EXPECT_GE(count(make, [&](cache_type& cache) { cache.retain(1, head, positions, others); }), 5U);
}

TEST_F(failure, copies) {
  cache_type other = rolling();
  append(other, rows_, 0, 8);  // to the middle of a page
  const auto state = visible_state(other);
  const auto make = [&] { return other; };
  // The plan's two lists, the layers, per layer its heads and lists.
  EXPECT_GE(count(make, [](cache_type& cache) { cache = cache_type(cache); }), 10U);
  // And its first row: a page and lists for each head, two summaries.
  const auto first_row = [&](cache_type& cache) {
    cache_type copy = cache;
    copy.append(0, rows_.keys(0, 1), rows_.values(0, 1));
    copy.append(1, rows_.keys(0, 1), rows_.values(0, 1));
    cache = std::move(copy);
  };
  EXPECT_GE(count(make, first_row), 18U);
  const auto beams = [&](cache_type& cache) {
    const std::vector<cache_type> sequences{cache, cache};
    std::vector<cache_type> next = gather(sequences, {1, 0, 1});
    cache = std::move(next[2]);
  };
  EXPECT_GE(count(make, beams), 70U);
  EXPECT_TRUE(visible_state(other) == state);
}

TEST_F(failure, deep_copies) {
  const cache_type other = rolling();
  counting_resource there, here;
  for (std::pmr::memory_resource* const to : {static_cast<std::pmr::memory_resource*>(&there), {}}) {
    const cache_type source = rolling(to == nullptr ? &there : nullptr);
    EXPECT_GE(count([&] { return source; }, [&](cache_type& cache) { cache = cache_type(cache, to); }), 55U);
  }
  EXPECT_EQ(there.live, 0U);
}

TEST_F(failure, other_policies) {
  const auto make = [&] { return prompted(); };
  const auto change = [&](cache_type& cache) { cache = cache.with(plan_, fixed_budget{30}, moment_compensation{}); };
  EXPECT_GE(count(make, change), 70U);
}

/// Where pages come from a resource, that may fail too.
TEST_F(failure, of_a_memory_resource) {
  counting_resource here, there;
  const auto after = [&](cache_type& cache) { go_on(cache); };
  const auto make = [&] { return rolling(&here); };
  const auto ahead = [&] {
    cache_type cache = rolling(&here);
    cache.append(1, rows_.keys(0, 130), rows_.values(0, 130));
    return cache;
  };
  const auto chunk = [&](cache_type& cache) { cache.append(0, rows_.keys(0, 130), rows_.values(0, 130)); };
  EXPECT_EQ(allocations_that_may_fail(failing_resource{here}, ahead, chunk, after), 5U);
  const auto deep = [&](cache_type& cache) { cache = cache_type(cache, &there); };
  EXPECT_EQ(allocations_that_may_fail(failing_resource{there}, make, deep, after), 2 * (3U + 2U));
  EXPECT_EQ(here.live + there.live, 0U);
}

#if defined(__linux__)
/// Pages so large that each is a mapping. Where the system maps nothing, operator new may still have memory.
TEST_F(failure, of_mappings) {
  plan_ = two_heads(1, 4096);
  rows_ = random_tokens(plan_.shape(), 70, 2);
  const auto make = [&] {
    auto cache = make_cache<float32>(plan_, fixed_budget{3});
    append(cache, rows_, 0, 64);
    return cache;
  };
  const auto row = [&](auto& cache) { append(cache, rows_, 64, 1); };
  const auto none = [](auto&) {};
  const std::size_t mappings = memory().mappings;
  const auto other = make();
  const auto copy = [&] { return other; };
  for (const bool once : {false, true}) {
    EXPECT_GE(allocations_that_may_fail(failing_memory{once}, make, row, none), 10U);
    EXPECT_GE(allocations_that_may_fail(failing_memory{once}, copy, row, none), 6U);
  }
  EXPECT_GE(memory().mappings, mappings + 20);
}
#endif

TEST_F(failure, leaves_nothing_behind) {
  const std::size_t before = in_use();
  {
    auto cache = rolling();
    for (std::size_t k = 0; k < 8; ++k) {  // the pages of the one are there for the next
      failing_memory{false}.arm(k);
      EXPECT_THROW(cache.append(0, rows_.keys(0, 300), rows_.values(0, 300)), std::bad_alloc);
      failing_memory{false}.disarm();
    }
    // What the attempts took is there to be used, and is told.
    EXPECT_GT(cache.report().slack_bytes + cache.report().spare_bytes, 5 * page_layout(256, 256).bytes);
    EXPECT_GE(in_use() - before, cache.report().held_bytes());
  }
  EXPECT_EQ(in_use(), before);
}

}  // namespace
}  // namespace headwise::test
