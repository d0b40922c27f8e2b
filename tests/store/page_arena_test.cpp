// SPDX-License-Identifier: MIT
#include "headwise/store/page_arena.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "headwise/store/page_layout.hpp"
#include "support/counting_map.hpp"
#include "support/counting_new.hpp"
#include "support/random.hpp"

namespace {

using headwise::page_arena;
using headwise::page_layout;
using headwise::test::memory;
constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

std::uintptr_t address(const page_arena::page& page) { return reinterpret_cast<std::uintptr_t>(page.data()); }

TEST(page_layout, rows_fit_and_no_distance_is_a_power_of_two) {
  for (std::size_t keys = 1; keys <= 2048; keys += keys < 20 ? 1 : 12)
    for (const std::size_t values : {std::size_t{1}, std::size_t{64}, keys, 4 * keys}) {
      const page_layout layout(keys, values);
      EXPECT_GE(layout.value_offset, 64 * keys);
      EXPECT_GE(layout.bytes, layout.value_offset + 64 * values);
      EXPECT_EQ(layout.value_offset % 64, 0U);
      EXPECT_EQ(layout.bytes % 128, 64U);  // an odd number of lines
      if (keys % 2 == 0) {
        EXPECT_EQ(layout.value_offset % 128, 64U);
        EXPECT_NE(layout.value_offset, 64U);
      }
      EXPECT_LE(layout.bytes - layout.row_bytes(), 64 * (3 * ((keys + 63) / 64 + 2) + 3));  // and the gaps are small
    }
  constexpr page_layout f16(256, 256);  // head size 128
  EXPECT_LT(f16.bytes, f16.row_bytes() * 102 / 100);
}

/// Keys and values of the same token lie in other sets of a cache of 64 sets of 64 bytes.
TEST(page_layout, keys_and_values_of_a_token_do_not_meet_in_a_cache_set) {
  for (const std::size_t row : {64U, 128U, 256U, 512U, 1024U}) {
    const page_layout layout(row, row);
    for (std::size_t token = 0; token < 64; ++token) {
      std::set<std::size_t> sets;
      for (std::size_t byte = 0; byte < row; byte += 64) {
        sets.insert((token * row + byte) / 64 % 64);
        sets.insert((layout.value_offset + token * row + byte) / 64 % 64);
      }
      EXPECT_EQ(sets.size(), 2 * row / 64) << row << " bytes, token " << token;
    }
  }
}

/// 8 heads take a page each: how many begin a new 4 KiB page, in keys or values, at the same token?
TEST(page_layout, pages_side_by_side_are_out_of_phase) {
  for (const std::size_t row : {128U, 256U, 512U}) {
    const page_layout layout(row, row);
    std::map<std::size_t, std::size_t> heads_at;
    for (std::size_t head = 0; head < 8; ++head)
      for (const std::size_t offset : {std::size_t{0}, layout.value_offset})
        for (std::size_t token = 0; token < 4096 / row; ++token) {
          const std::size_t first = head * layout.bytes + offset + token * row;
          if (first / 4096 != (first + row - 1) / 4096 || first % 4096 == 0) ++heads_at[token];
        }
    for (const auto& [token, heads] : heads_at) EXPECT_LE(heads, 16U * row / 4096 + 2) << row << ", " << token;
  }
}

TEST(page_arena, pages_are_apart_and_on_cache_lines) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{192}, 33 * kib + 64, 600 * kib, 3 * mib + 64}) {
    page_arena arena(bytes, 3);
    std::vector<page_arena::page> pages;
    std::set<std::uintptr_t> begins;
    for (std::size_t i = 0; i < 40; ++i) {
      pages.push_back(arena.take());
      std::memset(pages.back().data(), static_cast<int>(i), bytes);
      EXPECT_EQ(address(pages.back()) % 64, 0U);
      begins.insert(address(pages.back()));
    }
    for (auto it = begins.begin(), next = std::next(it); next != begins.end(); it = next++)
      EXPECT_GE(*next - *it, bytes);
    for (std::size_t i = 0; i < 40; ++i)
      for (const std::size_t at : {std::size_t{0}, bytes - 1})
        ASSERT_EQ(std::to_integer<std::size_t>(pages[i].data()[at]), i);
    EXPECT_EQ(arena.pages(), 40U);
    EXPECT_GE(arena.held_bytes(), 40 * bytes);
  }
}

TEST(page_arena, holds_little_that_no_page_uses) {
  for (const std::size_t bytes : {kib + 64, 16 * kib + 192, 33 * kib + 64}) {
    page_arena arena(bytes);
    std::vector<page_arena::page> pages;
    for (std::size_t used = bytes; used < 40 * mib; used += bytes) {
      pages.push_back(arena.take());
      ASSERT_LE(arena.held_bytes(), used + used / 7 + 64 * kib) << used;
      if (used < 16 * mib) {
        ASSERT_LE(arena.held_bytes(), used + used / 15 + 64 * kib) << used;
      }
      ASSERT_LE(arena.held_bytes(), used + used / 50 + 2 * mib) << used;
    }
  }
}

TEST(page_arena, large_chunks_are_mappings_of_its_own_on_2_mib_boundaries) {
  const std::size_t mapped = memory().mapped_bytes;
  const std::size_t bytes = 33 * kib + 64;
  {
    page_arena arena(bytes);
    std::vector<page_arena::page> pages;
    while (arena.held_bytes() < 40 * mib) pages.push_back(arena.take());
    pages.push_back(arena.take());
#if defined(__linux__)
    EXPECT_GT(memory().mapped_bytes, mapped + 8 * mib);
    EXPECT_EQ((memory().mapped_bytes - mapped) % (2 * mib), 0U);
#endif
    std::size_t on_boundary = 0;
    for (const auto& page : pages) on_boundary += address(page) % (2 * mib) == 0;
    EXPECT_GE(on_boundary, 5U);
  }
  EXPECT_EQ(memory().mapped_bytes, mapped);
}

/// Pages after which each arena takes a new mapping.
TEST(page_arena, arenas_of_layers_do_not_take_their_large_chunks_at_the_same_time) {
  const std::size_t bytes = 33 * kib + 64;
  std::map<std::size_t, std::size_t> arenas_at;
  for (std::size_t number = 0; number < 32; ++number) {
    page_arena arena(bytes, 8, number);
    std::vector<page_arena::page> pages;
    while (arena.held_bytes() < 40 * mib) {
      const std::size_t mappings = memory().mappings;
      pages.push_back(arena.take());
      if (memory().mappings != mappings) ++arenas_at[pages.size() / 8];
    }
    EXPECT_LE(arena.held_bytes(), pages.size() * bytes * 51 / 50 + 2 * mib);
  }
  // A chunk lasts for 8 times 8 pages, so 4 of the 32 would be an even spread.
  for (const auto& [moment, arenas] : arenas_at) EXPECT_LE(arenas, 8U) << "after 8 times " << moment << " pages";
}

TEST(page_arena, an_empty_chunk_goes_back_and_one_is_spared) {
  const std::size_t live = memory().live_bytes + memory().mapped_bytes;
  const std::size_t bytes = 16 * kib + 64;
  page_arena arena(bytes);
  std::vector<page_arena::page> pages;
  while (arena.held_bytes() < 50 * mib) pages.push_back(arena.take());
  while (pages.size() > 3) pages.pop_back();
  EXPECT_EQ(arena.pages(), 3U);
  EXPECT_LE(arena.held_bytes(), 2 * mib + 64 * kib);
  arena.trim();
  EXPECT_LE(arena.held_bytes(), 64 * kib);
  EXPECT_LE(memory().live_bytes + memory().mapped_bytes - live, 64 * kib + 64 * kib);  // and the lists
  pages.clear();
  arena.trim();
  EXPECT_EQ(arena.held_bytes(), 0U);
}

/// Whatever was returned in whatever order: lower chunks fill up, the others empty.
TEST(page_arena, pages_gather_so_that_chunks_empty) {
  headwise::test::random_numbers random(3);
  const std::size_t bytes = 16 * kib + 64;
  page_arena arena(bytes, 8);
  std::vector<page_arena::page> pages;
  for (int i = 0; i < 3000; ++i) pages.push_back(arena.take());
  const std::size_t full = arena.held_bytes();
  std::size_t oldest = 0;  // 3000 pages shrink to 500, one leaves for each two that are taken, then as many
  random.shuffle(pages);
  pages.resize(1000);
  for (; oldest < 4000; ++oldest) {
    pages[oldest % pages.size()] = page_arena::page();
    pages[oldest % pages.size()] = arena.take();
  }
  pages.resize(500);
  EXPECT_LT(arena.held_bytes(), full / 2);
  for (oldest = 0; oldest < 4000; ++oldest) {
    pages[oldest % pages.size()] = page_arena::page();
    pages[oldest % pages.size()] = arena.take();
  }
  arena.trim();
  EXPECT_LE(arena.held_bytes(), 2 * 500 * bytes);
}

TEST(page_arena, every_failed_take_changes_nothing) {
  for (const std::size_t bytes : {33 * kib + 64, 3 * mib + 64}) {
    page_arena arena(bytes);
    std::vector<page_arena::page> pages;
    pages.reserve(400);
    std::size_t failures = 0;
    for (std::size_t i = 0; i < 400; ++i)
      for (long allowed = 0;; ++allowed) {
        ASSERT_LT(allowed, 10);
        memory().allow = allowed;
        bool failed = false;
        try {
          pages.push_back(arena.take());
        } catch (const std::bad_alloc&) {
          failed = true;
        }
        memory().allow = -1;
        if (!failed) break;
        ++failures;
        ASSERT_EQ(arena.pages(), i);
      }
    EXPECT_GT(failures, 20U);
  }
}

TEST(page_arena, a_page_moves_and_is_returned_once) {
  page_arena arena(1024 + 64);
  page_arena::page a = arena.take();
  page_arena::page b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: looks on purpose
  EXPECT_EQ(arena.pages(), 1U);
  a = std::move(b);
  EXPECT_EQ(arena.pages(), 1U);
  std::byte* const place = a.data();
  a = page_arena::page();
  EXPECT_EQ(arena.pages(), 0U);
  EXPECT_EQ(arena.take().data(), place);  // used again
}

}  // namespace
