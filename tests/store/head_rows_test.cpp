// SPDX-License-Identifier: MIT
#include "headwise/store/head_rows.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "reference/rows.hpp"
#include "support/format_names.hpp"
#include "support/random.hpp"

namespace {

constexpr std::size_t key_size = 5;
constexpr std::size_t value_size = 3;
constexpr std::size_t page_rows = 64;

/// head_rows beside lists of positions. The row of a position is a function of the position, so any row that moves,
/// stays behind or is overwritten shows.
template <class Format>
struct rows_and_lists {
  headwise::page_arena arena{headwise::head_rows<Format>::layout(Format{}, key_size, value_size).bytes};
  headwise::head_rows<Format> rows{Format{}, key_size, value_size, arena};
  reference::row_lists lists;

  rows_and_lists() = default;
  rows_and_lists(const rows_and_lists& other) : rows(other.rows, arena), lists(other.lists) {}
  rows_and_lists& operator=(const rows_and_lists& other) {
    rows = headwise::head_rows<Format>(other.rows, arena);
    lists = other.lists;
    return *this;
  }

  static std::vector<float> row_of(std::size_t position) {
    std::vector<float> row(key_size + value_size);
    for (std::size_t i = 0; i < row.size(); ++i) {  // any numbers that differ: a multiplicative hash
      const auto hash = static_cast<std::uint32_t>((position * row.size() + i + 1) * 2654435761U);
      row[i] = static_cast<float>(hash >> 8) * 0x1p-23F - 1.0F;
    }
    return row;
  }
  static void expect_row(std::size_t position, const std::byte* key, const std::byte* value) {
    const std::vector<float> row = row_of(position);
    std::byte bytes[sizeof(float) * (key_size + value_size)];
    Format::encode(row.data(), bytes, row.size());
    ASSERT_EQ(std::memcmp(key, bytes, Format::bytes(key_size)), 0) << "key " << position;
    ASSERT_EQ(std::memcmp(value, bytes + Format::bytes(key_size), Format::bytes(value_size)), 0)
        << "value " << position;
  }

  void append(const std::vector<float>& row) {
    std::vector<float> scratch(key_size + value_size);
    rows.append(headwise::packed_rows(row.data(), 1, 1, key_size),
                headwise::packed_rows(row.data() + key_size, 1, 1, value_size), 0, 0, scratch.data());
  }
  void append(std::size_t tokens) {
    rows.reserve(rows.length() + tokens);
    for (std::size_t i = 0; i < tokens; ++i) {
      const std::vector<float> row = row_of(rows.length());
      append(row);
    }
    lists.append(tokens);
  }

  /// Folds as a cache does, and looks at each row as it leaves.
  void fold(std::size_t sinks, std::size_t window) {
    const std::size_t left_before = lists.left.size();
    lists.fold(sinks, window);
    if (lists.left.size() == left_before) return;
    std::vector<std::size_t> left;
    const std::size_t end = lists.left.back() + 1;
    rows.visit(std::max(sinks, rows.kept_from()), end, [&](const headwise::run& leaving) {
      expect_run(leaving);
      for (std::size_t i = 0; i < leaving.rows; ++i) left.push_back(leaving.position + i);
    });
    rows.prepare_leave(sinks);
    rows.leave(sinks, end, end);
    const auto begin = lists.left.begin() + static_cast<std::ptrdiff_t>(left_before);
    ASSERT_EQ(left, std::vector<std::size_t>(begin, lists.left.end()));  // each once, in order
  }

  void expect_run(const headwise::run& run) {
    ASSERT_GE(run.rows, 1U);
    ASSERT_LE(run.rows, page_rows);
    ASSERT_EQ(run.position / page_rows, (run.position + run.rows - 1) / page_rows) << "crosses a multiple of 64";
    ASSERT_EQ(run.bias, 0.0F);
    for (std::size_t i = 0; i < run.rows; ++i)
      expect_row(run.position + i, run.keys + i * rows.key_bytes(), run.values + i * rows.value_bytes());
  }

  void expect_equal() {
    std::vector<std::size_t> kept;
    for (std::size_t i = 0; i < rows.runs(); ++i) {
      const headwise::run run = rows.run_at(i);
      expect_run(run);
      for (std::size_t row = 0; row < run.rows; ++row) kept.push_back(run.position + row);
    }
    ASSERT_EQ(kept, lists.kept);
    ASSERT_EQ(rows.length(), lists.seen);
    ASSERT_EQ(rows.left(), lists.left.size());
    ASSERT_EQ(rows.kept(), lists.kept.size());
    for (std::size_t position = 0; position <= lists.seen; ++position)
      ASSERT_EQ(rows.keeps(position), lists.keeps(position)) << position;

    // Memory: the pages that hold a recent row and no other, so that at most the oldest and the newest are in part
    // unused; and little beside the rows before the gap, which are packed.
    std::set<std::size_t> pages;
    for (const std::size_t position : lists.kept)
      if (position >= rows.kept_from()) pages.insert(position / page_rows);
    const std::size_t bytes = rows.key_bytes() + rows.value_bytes();
    const std::size_t early = rows.early() == 0 ? 0 : 2 * 64 + rows.early() * 2 * sizeof(std::size_t);
    ASSERT_EQ(rows.row_bytes(), lists.kept.size() * bytes);
    ASSERT_LE(rows.row_bytes() + rows.slack_bytes(), pages.size() * page_rows * bytes + rows.early() * bytes + early);
    ASSERT_LE(rows.slack_bytes(), 2 * (page_rows - 1) * bytes + early);
    ASSERT_EQ(arena.pages(), pages.size());
    ASSERT_GE(arena.held_bytes(), rows.row_bytes() + rows.slack_bytes());
  }
};

const std::size_t sink_counts[] = {0, 1, 4, 63, 64, 65, 130};
const std::size_t windows[] = {1, 2, 6, 63, 64, 65, 128, 200};

template <class Format>
class head_rows : public testing::Test {};
using formats = testing::Types<headwise::float32, headwise::float16>;
TYPED_TEST_SUITE(head_rows, formats, headwise::test::format_names);

TYPED_TEST(head_rows, one_by_one_they_equal_lists_of_rows) {
  for (const std::size_t sinks : sink_counts)
    for (const std::size_t window : windows) {
      SCOPED_TRACE(testing::Message() << "S " << sinks << " W " << window);
      rows_and_lists<TypeParam> test;
      for (std::size_t n = 1; n <= sinks + window + 140; ++n) {
        test.append(1);
        test.fold(sinks, window);
        if (n % 7 == 0 || (n + 1) % 64 < 3) test.expect_equal();
        if (testing::Test::HasFatalFailure()) return;
      }
    }
}

TYPED_TEST(head_rows, in_chunks_they_equal_lists_of_rows) {
  headwise::test::random_numbers random(1);
  for (const std::size_t sinks : sink_counts)
    for (const std::size_t window : windows) {
      SCOPED_TRACE(testing::Message() << "S " << sinks << " W " << window);
      rows_and_lists<TypeParam> test;
      test.expect_equal();
      while (test.lists.seen < 700) {
        test.append(1 + random.below(random.below(2) == 0 ? 3 : 150));
        test.expect_equal();
        if (random.below(3) != 0) test.fold(sinks, window);
        test.expect_equal();
        if (testing::Test::HasFatalFailure()) return;
      }
    }
}

/// A window that grows and shrinks, as budgets may: what has left stays away.
TYPED_TEST(head_rows, a_window_that_changes_brings_nothing_back) {
  headwise::test::random_numbers random(2);
  rows_and_lists<TypeParam> test;
  for (int step = 0; step < 300; ++step) {
    test.append(1 + random.below(20));
    test.fold(4, 1 + random.below(200));
    test.expect_equal();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(head_rows, copies_are_independent) {
  rows_and_lists<TypeParam> test;
  test.append(300);
  test.fold(4, 100);
  rows_and_lists<TypeParam> copy = test;
  copy.append(200);
  copy.fold(4, 10);
  test.expect_equal();
  copy.expect_equal();
  test.append(1);
  copy = test;
  copy.expect_equal();
  const rows_and_lists<TypeParam>& itself = copy;
  copy = itself;
  copy.expect_equal();
}

TYPED_TEST(head_rows, moving_takes_the_pages_along) {
  rows_and_lists<TypeParam> test;
  test.append(300);
  test.fold(4, 100);
  const std::byte* const newest = test.rows.run_at(test.rows.runs() - 1).keys;
  headwise::head_rows<TypeParam> moved = std::move(test.rows);
  EXPECT_EQ(moved.run_at(moved.runs() - 1).keys, newest);
  test.rows = std::move(moved);
  test.expect_equal();
  test.append(100);
  test.expect_equal();
}

/// No cache asks for it, since the newest row always stays; the store need not know.
TYPED_TEST(head_rows, all_rows_may_leave) {
  for (const std::size_t sinks : {0U, 4U, 64U})
    for (const std::size_t length : {65U, 100U, 128U, 300U}) {
      rows_and_lists<TypeParam> test;
      test.append(length);
      test.rows.prepare_leave(sinks);
      test.rows.leave(sinks, length, length);
      EXPECT_EQ(test.rows.left(), length - sinks);
      ASSERT_EQ(test.rows.runs(), sinks == 0 ? 0U : 1U) << sinks << " of " << length;
      for (std::size_t i = 0; i < test.rows.runs(); ++i) test.expect_run(test.rows.run_at(i));
      const std::vector<float> row = test.row_of(length);
      test.rows.reserve(length + 1);
      test.append(row);
      ASSERT_EQ(test.rows.runs(), sinks == 0 ? 1U : 2U);
      EXPECT_EQ(test.rows.run_at(test.rows.runs() - 1).position, length);
      EXPECT_EQ(test.rows.run_at(test.rows.runs() - 1).rows, 1U);
      test.expect_run(test.rows.run_at(test.rows.runs() - 1));
    }
}

/// The address of every row, while a window slides over 1000 rows and while it jumps. Only the sinks move, once, when
/// what is behind them leaves.
TYPED_TEST(head_rows, no_row_moves_for_as_long_as_it_is_kept) {
  for (const std::size_t window : {1U, 64U, 100U, 200U}) {
    rows_and_lists<TypeParam> test;
    std::map<std::size_t, const std::byte*> places;
    for (std::size_t n = 0; n < 1000; ++n) {
      test.append(1);
      if (n < 500 || n % 100 == 0) test.fold(4, window);
      for (std::size_t i = 0; i < test.rows.runs(); ++i) {
        const headwise::run run = test.rows.run_at(i);
        for (std::size_t row = 0; row < run.rows; ++row) {
          const std::byte* const place = run.keys + row * test.rows.key_bytes();
          const std::size_t name =
              run.position + row < test.rows.early() ? run.position + row + 2000 : run.position + row;
          ASSERT_EQ(places.emplace(name, place).first->second, place) << run.position + row;
        }
      }
    }
  }
}

TYPED_TEST(head_rows, room_that_was_reserved_ahead_shows_in_nothing_but_slack) {
  rows_and_lists<TypeParam> test;
  test.append(70);
  test.rows.reserve(1000);
  EXPECT_EQ(test.rows.length(), 70U);
  EXPECT_EQ(test.rows.runs(), 2U);
  const std::size_t held = test.rows.row_bytes() + test.rows.slack_bytes();
  EXPECT_EQ(held, 16 * page_rows * (test.rows.key_bytes() + test.rows.value_bytes()));
  test.append(930);  // fits
  EXPECT_EQ(test.rows.row_bytes() + test.rows.slack_bytes(), held);
  test.fold(3, 40);
  test.expect_equal();
}

TYPED_TEST(head_rows, rows_start_on_a_cache_line_and_never_move) {
  rows_and_lists<TypeParam> test;
  test.append(64);
  const headwise::run first = test.rows.run_at(0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.keys) % 64, 0U);
  test.append(1000);
  const headwise::run late = test.rows.run_at(15);
  test.fold(4, 104);  // keeps positions 960 and up: page 15
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(test.rows.run_at(0).keys) % 64, 0U);  // the sinks, which are packed
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(test.rows.run_at(0).values) % 64, 0U);
  EXPECT_EQ(test.rows.run_at(1).position, 960U);
  EXPECT_EQ(test.rows.run_at(1).keys, late.keys);
}

}  // namespace
