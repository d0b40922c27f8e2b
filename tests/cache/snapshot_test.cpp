// SPDX-License-Identifier: MIT
// What a saved cache holds beside its rows, and what a damaged one may do. The reported failures: cases/save_test.cpp.

#include "headwise/cache/snapshot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "headwise/element/format_variant.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/random.hpp"
#include "support/refused.hpp"
#include "support/saved.hpp"
#include "support/temporary_folder.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

/// Three layers: one with a retrieval head, one with two local heads, one windowed.
head_plan mixed_plan() {
  head_plan plan({3, 4, 2, 8, 4}, head_role::local, 4);
  plan.set({0, 1}, head_role::retrieval);
  plan.set_window(2, 10);
  return plan;
}

template <class Compensation = mean_compensation>
kv_cache<float16, fixed_budget, Compensation> mixed(std::size_t reserve = 0,
                                                    when_to_compress when = when_to_compress::after_prompt,
                                                    std::pmr::memory_resource* memory = nullptr) {
  cache_options options;
  options.rollback_reserve = reserve;
  options.memory = memory;
  return kv_cache<float16, fixed_budget, Compensation>(mixed_plan(), fixed_budget{20}, {}, when, {}, options);
}

template <class Cache>
void grow(Cache& cache, std::size_t n, std::size_t chunk = 1, unsigned seed = 1) {
  const tokens rows = random_tokens(cache.shape(), n, seed);
  for (std::size_t i = 0; i < n; i += chunk) append(cache, rows, i, std::min(chunk, n - i));
}

template <class Cache>
void expect_same(const Cache& a, const Cache& b) {
  ASSERT_TRUE(visible_state(a) == visible_state(b));
  ASSERT_EQ(saved(a), saved(b));
}

/// Does the same with both: they answer the same and stay the same.
template <class Cache>
void expect_same_future(Cache a, Cache b, std::uint32_t seed) {
  random_numbers random(seed);
  for (int step = 0; step < 25; ++step) {
    const std::size_t length = a.length();
    switch (random.below(6)) {
      case 0: a.compress(), b.compress(); break;
      case 1: {
        const std::size_t layer = random.below(a.shape().layers);
        a.compress(layer), b.compress(layer);
        break;
      }
      case 2: {
        const std::size_t to = length - std::min(length, random.below(8));
        ASSERT_EQ(a.truncate(to), b.truncate(to));
        break;
      }
      case 3: {
        const std::size_t layer = random.below(2), head = random.below(a.shape().kv_heads);  // not what a window needs
        std::vector<std::size_t> positions = a.kept_positions(layer, head);
        positions.erase(
            std::remove_if(positions.begin(), positions.end(), [&](std::size_t) { return random.below(4) == 0; }),
            positions.end());
        const auto others = random.below(2) == 0 ? other_rows::drop : other_rows::fold;
        a.retain(layer, head, positions, others), b.retain(layer, head, positions, others);
        break;
      }
      default: {
        const std::size_t n = random.below(3) == 0 ? 1 + random.below(30) : 1;
        const tokens rows = random_tokens(a.shape(), n, random.bits());
        for (std::size_t layer = 0; layer < a.shape().layers; ++layer)
          for (Cache* of : {&a, &b}) of->append(layer, rows.keys(0, n), rows.values(0, n));
        for (std::size_t layer = 0; layer < a.shape().layers; ++layer) {
          ASSERT_EQ(attended(a, layer, rows.queries(n - 1, 1)), attended(b, layer, rows.queries(n - 1, 1)));
        }
      }
    }
    expect_same(a, b);
    if (testing::Test::HasFatalFailure()) return;
    if (random.below(3) == 0) load_all(b, saved(a));
  }
}

template <class Compensation>
class snapshot_of : public testing::Test {};
using compensations = testing::Types<mean_compensation, no_compensation, moment_compensation>;
TYPED_TEST_SUITE(snapshot_of, compensations);

TYPED_TEST(snapshot_of, any_state_has_the_same_future) {
  for (const auto when : {when_to_compress::after_prompt, when_to_compress::every_append, when_to_compress::frozen})
    for (const std::size_t reserve : {0U, 1U, 30U})
      for (std::uint32_t seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE(testing::Message() << to_string(when) << ", reserve " << reserve << ", seed " << seed);
        auto cache = mixed<TypeParam>(reserve, when);
        grow(cache, 10 * seed + 7, seed % 3 == 0 ? 16 : 1, seed);
        if (seed % 2 == 0) cache.compress();
        if (seed % 3 == 0) static_cast<void>(cache.truncate(cache.length() - 2));
        if (seed > 3) cache.retain(1, 0, {0, 2, cache.length() - 3, cache.length() - 1}, other_rows::fold);
        if (seed > 4) grow(cache, 70, 1, seed + 1);
        auto loaded = mixed<TypeParam>(reserve, when);
        load_all(loaded, saved(cache));
        expect_same(cache, loaded);
        expect_same_future(std::move(cache), std::move(loaded), seed);
      }
}

TEST(snapshot, a_step_that_failed_half_way_is_saved_as_it_is) {
  auto cache = mixed(5, when_to_compress::every_append);
  grow(cache, 50);
  const tokens more = random_tokens(cache.shape(), 1, 9);
  cache.append(0, more.keys(0, 1), more.values(0, 1));  // and not the others
  auto loaded = mixed(5, when_to_compress::every_append);
  load_all(loaded, saved(cache));
  EXPECT_EQ(loaded.layer_length(0), 51U);
  EXPECT_EQ(loaded.length(), 50U);
  expect_same(cache, loaded);
  EXPECT_TRUE(cache.truncate(50));
  EXPECT_TRUE(loaded.truncate(50));
  expect_same(cache, loaded);
}

TEST(snapshot, takes_back_the_last_step_where_the_uninterrupted_run_does) {
  auto cache = mixed(0, when_to_compress::every_append);
  grow(cache, 50);
  auto loaded = mixed(0, when_to_compress::every_append);
  load_all(loaded, saved(cache));
  for (const std::size_t length : {50U, 49U, 48U, 3U, 0U}) {
    auto a = cache, b = loaded;
    EXPECT_EQ(a.truncate(length), b.truncate(length)) << length;
    expect_same(a, b);
  }
}

TEST(snapshot, belongs_to_the_target_alone) {
  std::array<std::byte, 64> unused;
  std::pmr::monotonic_buffer_resource upstream(unused.data(), unused.size());
  std::pmr::unsynchronized_pool_resource memory(&upstream);
  auto cache = mixed(3);
  grow(cache, 100);
  cache.compress();
  const blob bytes = saved(cache);
  auto target = mixed(3, when_to_compress::after_prompt, &memory);  // another memory
  grow(target, 10, 1, 4);
  const auto fork = target;
  const blob before = saved(fork);
  load_all(target, bytes);
  EXPECT_EQ(target.report().shared_bytes, 0U);
  EXPECT_EQ(saved(fork), before);
  EXPECT_EQ(saved(target), bytes);
  load_all(cache, before);  // the first goes
  EXPECT_EQ(saved(target), bytes);
  grow(target, 30, 1, 5);
}

TEST(snapshot, a_cache_that_was_moved_from_is_refused) {
  auto cache = mixed();
  auto other = std::move(cache);
  memory_sink sink;
  EXPECT_REFUSED(save(cache, sink), "moved from");  // NOLINT
  EXPECT_REFUSED(load_all(cache, saved(other)), "moved from");
  EXPECT_EQ(sink.bytes().size(), 0U);
}

/// A sink that is full after so many bytes, and a source that breaks off.
struct full_sink {
  std::size_t room;
  void write(const void*, std::size_t bytes) {
    if (bytes > room) throw std::runtime_error("full");
    room -= bytes;
  }
};
struct broken_source {
  memory_source from;
  std::size_t works;
  void read(void* data, std::size_t bytes) {
    if (bytes > works) throw std::runtime_error("broken");
    works -= bytes;
    from.read(data, bytes);
  }
  std::size_t remaining() const { return from.remaining(); }
};

TEST(snapshot, a_sink_or_source_that_fails_changes_no_cache) {
  const temporary_folder folder;
  auto cache = mixed(3, when_to_compress::every_append);
  grow(cache, 60);
  const blob bytes = saved(cache);
  auto target = mixed(3, when_to_compress::every_append);
  grow(target, 33, 1, 8);
  const blob before = saved(target);
  for (std::size_t works = 0; works < bytes.size(); works += 97) {
    EXPECT_THROW(save(cache, full_sink{works}), std::runtime_error);
    EXPECT_THROW(load(target, broken_source{{bytes.data(), bytes.size()}, works}), std::runtime_error);
  }
  EXPECT_EQ(saved(cache), bytes);
  EXPECT_EQ(saved(target), before);
  load(target, broken_source{{bytes.data(), bytes.size()}, bytes.size()});
  expect_same(target, cache);
}

TEST(snapshot, no_memory_changes_no_cache) {
  const temporary_folder folder;
  auto cache = mixed<moment_compensation>(3, when_to_compress::every_append);
  grow(cache, 90);
  const blob bytes = saved(cache);
  auto target = mixed<moment_compensation>(3, when_to_compress::every_append);
  grow(target, 33, 1, 8);
  const blob before = saved(target);
  const auto each_allocation = [&](auto&& action) {
    for (long k = 0;; ++k) {
      memory().allow = k;
      bool done = true;
      try {
        action();
      } catch (const std::bad_alloc&) {
        done = false;
      }
      memory().allow = -1;
      if (done) return k;
      EXPECT_EQ(saved(target), before) << "allocation " << k;
    }
  };
  const std::string path = folder.file("cache");
  EXPECT_GE(each_allocation([&] { save(cache, path); }), 10);
  EXPECT_EQ(folder.files(), 1U);
  EXPECT_GE(each_allocation([&] {
              memory_source source(bytes.data(), bytes.size());
              load(target, source);
            }),
            50);
  EXPECT_EQ(saved(target), bytes);
}

/// A cache that a file made: what a user may do with one works, and its rows add up.
template <class Cache>
void expect_valid(const Cache& cache, std::uint32_t seed) {
  random_numbers random(seed);
  const auto adds_up = [](const Cache& of) {
    const cache_report report = of.report();
    for (const head_report& head : report.heads) {
      const std::size_t length = of.layer_length(head.head.layer);
      ASSERT_EQ(head.rows + head.folded + head.dropped, length);
      ASSERT_LE(std::max({head.rows, head.folded, head.dropped}), length);
      ASSERT_EQ(of.kept_positions(head.head.layer, head.head.kv_head).size(), head.rows);
    }
  };
  adds_up(cache);
  for (std::size_t to = 0; to <= cache.length() && to < 100; ++to) {
    Cache fork = cache;
    if (fork.truncate(to)) adds_up(fork);
    if (testing::Test::HasFatalFailure()) return;
  }
  for (const std::size_t back : {0U, 1U, 2U, 5U, 17U, 40U}) {
    Cache fork = cache;
    if (back <= fork.length() && fork.truncate(fork.length() - back)) adds_up(fork);
    const tokens rows = random_tokens(cache.shape(), 3, random.bits());
    append(fork, rows, 0, 1);
    append(fork, rows, 1, 2);
    for (std::size_t layer = 0; layer < cache.shape().layers; ++layer) {
      try {
        attended(fork, layer, rows.queries(2, 1));
      } catch (const error&) {  // as after a retain() that dropped what a window needs
        EXPECT_NE(fork.window(layer), 0U);
      }
      fork.retain(layer, 0, fork.kept_positions(layer, 0), other_rows::drop);
    }
    fork.compress();
    append(fork, rows, 0, 1);
    static_cast<void>(fork.truncate(fork.length() - 1));
    adds_up(fork);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(snapshot_of, with_checksums_recomputed_every_changed_byte_is_refused_or_leaves_a_valid_cache) {
  for (const std::size_t reserve : {0U, 6U}) {
    auto cache = mixed<TypeParam>(reserve, when_to_compress::every_append);
    grow(cache, 45);
    cache.retain(1, 1, {0, 1, 3, 30, 33, 44});
    const blob good = saved(cache);
    const auto ends = section_ends(cache);
    ASSERT_EQ(ends.back() + 8, good.size());
    std::size_t accepted = 0, refused = 0;
    for (std::size_t at = 0; at < good.size(); ++at)
      for (const unsigned flip : {0x01U, 0x08U, 0xFFU}) {
        blob bad = good;
        bad[at] ^= static_cast<std::byte>(flip);
        seal_all(bad, ends);
        if (bad == good) continue;  // it was in a checksum
        auto target = mixed<TypeParam>(reserve, when_to_compress::every_append);
        try {
          load_all(target, bad);
        } catch (const error&) {
          ++refused;
          ASSERT_EQ(target.length(), 0U);
          continue;
        }
        ++accepted;
        ASSERT_EQ(saved(target), bad);  // all that was read, and nothing else
        if (at < ends[0] || accepted % 50 == 0) expect_valid(target, static_cast<std::uint32_t>(at));
        if (this->HasFailure()) FAIL() << "byte " << at << " ^ " << flip;
      }
    EXPECT_GE(refused, 1200U);   // most of the header
    EXPECT_GE(accepted, 3000U);  // bits of rows and sums
  }
}

TYPED_TEST(snapshot_of, with_checksums_recomputed_many_changed_numbers_are_refused_or_leave_a_valid_cache) {
  random_numbers random(1);
  std::size_t accepted = 0, refused = 0;
  for (std::size_t trial = 0; trial < 6000; ++trial) {
    const std::size_t reserve = trial % 3 == 0 ? 0 : 1 + trial % 20;
    auto cache = mixed<TypeParam>(reserve, when_to_compress::every_append);
    grow(cache, 20 + trial % 40);
    const std::size_t length = cache.length();
    if (trial % 4 == 0) cache.retain(1, 1, {0, 2, length - 9, length - 3, length - 2, length - 1});
    if (trial % 8 == 0) grow(cache, 1 + trial % 30, 1, 2);
    blob bytes = saved(cache);
    const header_fields fields(cache);
    const auto ends = section_ends(cache);
    const auto change = [&](const std::string& field, auto&& number) {
      put_number(bytes, fields[field], number(number_at(bytes, fields[field])));
    };
    const std::string layer = "layer " + std::to_string(random.below(3));
    const std::uint64_t shift = random.below(3) == 0 ? random.below(6) : std::uint64_t{0} - random.below(3);
    const auto shifted = [&](std::uint64_t now) { return now + shift; };
    change(layer + ": length", shifted);  // as many rows as before
    for (const char* head : {", KV head 0", ", KV head 1"}) {
      change(layer + head + ": raw from", shifted);
      change(layer + head + ": kept from", shifted);
      const char* const others[] = {"kept from", "kept from before the last append", "length at the last retain",
                                    "kept from at the last retain"};
      for (const char* other : others)
        if (random.below(3) == 0)
          change(layer + head + ": " + other, [&](std::uint64_t now) {
            return random.below(2) == 0 ? now + random.below(5) - 2 : std::uint64_t{random.below(60)};
          });
    }
    for (const char* other : {": length at the last compress", ": length before the last append"})
      if (random.below(2) == 0) change(layer + other, [&](std::uint64_t now) { return now + random.below(5) - 2; });
    seal_all(bytes, ends);
    auto target = mixed<TypeParam>(reserve, when_to_compress::every_append);
    try {
      load_all(target, bytes);
    } catch (const error&) {
      ++refused;
      ASSERT_EQ(target.length(), 0U);
      continue;
    }
    ++accepted;
    ASSERT_EQ(saved(target), bytes);
    expect_valid(target, static_cast<std::uint32_t>(trial));
    if (this->HasFailure()) FAIL() << "trial " << trial;
  }
  EXPECT_GE(accepted, 200U);
  EXPECT_GE(refused, 2000U);
}

TEST(snapshot, a_sink_that_no_list_let_go_and_a_block_that_is_not_full_are_refused) {
  auto cache = mixed<moment_compensation>(8);
  grow(cache, 90);
  cache.compress();
  const blob good = saved(cache);
  const auto ends = section_ends(cache);
  const header_fields fields(cache);
  ASSERT_EQ(number_at(good, fields["layer 0, KV head 0: kept from"]), 4U + 64U);
  auto target = mixed<moment_compensation>(8);
  const auto refused = [&](blob bad, const char* words) {
    seal_all(bad, ends);
    EXPECT_REFUSED(load_all(target, bad), "load: layer 0, KV head 0: ", words);
  };
  blob bad = good;
  put_number(bad, fields["layer 0, KV head 0: kept from"], 67);
  refused(bad, "kept from: found 67, expected 4 and a multiple of 16 more");
  bad = good;
  const std::size_t last = ends[0] + 8 + 3 * (8 + (8 + 4) * 2);  // the position of the fourth sink
  ASSERT_EQ(number_at(bad, last), 3U);
  put_number(bad, last, 4);
  refused(bad, "found no early row at position 3, expected 4 sinks");
}

TYPED_TEST(snapshot_of, with_checksums_recomputed_any_number_in_any_field_is_refused_or_leaves_a_valid_cache) {
  for (const std::size_t reserve : {0U, 6U}) {
    auto cache = mixed<TypeParam>(reserve, when_to_compress::every_append);
    grow(cache, 45);
    cache.retain(1, 1, {0, 1, 3, 30, 33, 44});
    grow(cache, 3, 1, 2);
    const blob good = saved(cache);
    const header_fields fields(cache);
    const auto ends = section_ends(cache);
    std::size_t accepted = 0;
    for (const auto& field : fields.all()) {
      const std::uint64_t now = number_at(good, field.second);
      for (const std::uint64_t value :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4}, std::uint64_t{20}, std::uint64_t{44},
            std::uint64_t{45}, std::uint64_t{47}, std::uint64_t{48}, std::uint64_t{49}, std::uint64_t{1} << 32,
            std::uint64_t{1} << 40, std::uint64_t{1} << 63, now - 1, now + 1, now + 64, now - 64, now ^ 16}) {
        blob bad = good;
        put_number(bad, field.second, value);
        seal_all(bad, ends);
        auto target = mixed<TypeParam>(reserve, when_to_compress::every_append);
        try {
          load_all(target, bad);
        } catch (const error& refusal) {
          ASSERT_EQ(std::string(refusal.what()).rfind("load: ", 0), 0U) << refusal.what();
          ASSERT_EQ(target.length(), 0U);
          continue;
        }
        ++accepted;
        ASSERT_EQ(saved(target), bad);
        expect_valid(target, 1);
        if (this->HasFailure()) FAIL() << field.first << " = " << value;
      }
    }
    EXPECT_GE(accepted, fields.all().size());  // each with its own value, or a plausible other
  }
}

TEST(snapshot, positions_of_early_rows_ascend_and_lie_before_all_others) {
  auto cache = mixed();
  grow(cache, 60);
  cache.compress();
  cache.retain(0, 0, cache.kept_positions(0, 0));  // from now on sinks may be missing
  const blob good = saved(cache);
  const auto ends = section_ends(cache);
  const std::size_t first = ends[0] + 8, row = 8 + (8 + 4) * 2;  // position, key, value
  for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(number_at(good, first + i * row), i);
  const auto refused = [&](std::size_t i, std::uint64_t position, const char* words) {
    blob bad = good;
    put_number(bad, first + i * row, position);
    seal_all(bad, ends);
    auto target = mixed();
    EXPECT_REFUSED(load_all(target, bad), "load: layer 0, KV head 0: position of early row", words);
  };
  refused(1, 0, "found 0, expected 1..39");
  refused(1, 3, "row 2: found 2, expected 4..39");
  refused(3, 40, "found 40, expected 3..39");
  refused(3, static_cast<std::uint64_t>(-1), "expected 3..39");
}

/// A budget of one's own needs two members more.
struct pyramid_budget {
  std::size_t rows = 16;
  std::size_t operator()(head_id head, std::size_t) const { return rows / (head.layer + 1); }
  static const char* name() { return "pyramid"; }
  std::array<std::size_t, 1> parameters() const { return {rows}; }
};

TEST(snapshot, policies_of_ones_own_are_saved_by_their_name_and_numbers) {
  const temporary_folder folder;
  kv_cache<bfloat16, pyramid_budget, any_compensation> cache(mixed_plan(), pyramid_budget{24}, mean_compensation{});
  grow(cache, 100);
  cache.compress();
  save(cache, folder.file("cache"));
  kv_cache<bfloat16, pyramid_budget, mean_compensation> loaded(mixed_plan(), pyramid_budget{24});
  load(loaded, folder.file("cache"));  // a variant is the member that was chosen
  EXPECT_EQ(saved(loaded), saved(cache));
  kv_cache<bfloat16, pyramid_budget, mean_compensation> other(mixed_plan(), pyramid_budget{25});
  EXPECT_REFUSED(load(other, folder.file("cache")), folder.file("cache").c_str(),
                 "budget: found 'pyramid(24)', expected 'pyramid(25)'");
}

TEST(snapshot, what_version_1_looks_like) {
  // Whoever changes this changes what files mean: give it another version.
  head_plan plan({1, 1, 1, 2, 0}, head_role::local, 1);
  kv_cache<float32, fixed_budget, mean_compensation> cache(plan, fixed_budget{2}, {}, when_to_compress::every_append);
  tokens rows(plan.shape(), 5);
  for (std::size_t i = 0; i < rows.k.size(); ++i) rows.k[i] = rows.v[i] = static_cast<float>(i);
  append(cache, rows, 0, 5);
  cache.compress();
  memory_sink expected;
  const auto number = [&](std::uint64_t value) { expected.write(&value, sizeof value); };
  const auto text = [&](const std::string& value) {
    number(value.size());
    expected.write(value.data(), value.size());
  };
  auto sum = [&, begin = std::size_t{0}]() mutable {
    checksum of;
    of.add(expected.bytes().data() + begin, expected.bytes().size() - begin);
    number(of.value());
    begin = expected.bytes().size();
  };
  const auto numbers = [&](std::initializer_list<std::uint64_t> values) {
    for (const std::uint64_t value : values) number(value);
  };
  const auto floats = [&](std::initializer_list<float> values) { expected.write(values.begin(), values.size() * 4); };
  const std::uint32_t marks[] = {0x01020304, 1};
  expected.write("\x89HWKV\r\n\x1A", 8);
  expected.write(marks, sizeof marks);
  number(256);
  numbers({1, 1, 1, 2, 2});  // layers, query heads, KV heads, sizes of keys and values
  text("f32"), text("fixed(2)"), text("mean"), text("every_append");
  numbers({0, 1});  // reserve, sinks
  numbers(
      {0, 5, 1, 5, 5});  // of the layer: window, length, rolling, length at the last compress, before the last append
  text("local");
  numbers({3, 3, 1, 0, 0, 0, 1, 2, 40, 0, 0});  // kept and raw from 3, 1 early row; summary: 2 rows, 40 bytes
  sum();
  number(0), floats({0, 1}), floats({0, 1});
  floats({6, 7, 8, 9}), floats({6, 7, 8, 9});
  number(2);
  for (int i = 0; i < 2; ++i) {
    const double sums[] = {2 + 4, 3 + 5};
    expected.write(sums, sizeof sums);
  }
  sum();
  EXPECT_EQ(saved(cache), expected.bytes());
}

}  // namespace
}  // namespace headwise::test
