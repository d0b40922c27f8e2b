// SPDX-License-Identifier: MIT
#include "headwise/core/shared_value.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace headwise::test {
namespace {

struct counted {
  explicit counted(int n) : number(n) { ++live; }
  counted(const counted& other) : number(other.number) { ++live; }
  counted& operator=(const counted&) = delete;
  ~counted() { --live; }

  int number;
  inline static int live = 0;
};
using shared = detail::shared_value<counted>;

TEST(shared_value, is_shared_until_a_copy_asks_to_own_it) {
  {
    shared first(counted(1));
    shared second = first;
    EXPECT_EQ(counted::live, 1);
    EXPECT_FALSE(first.alone());
    second.own().number = 2;
    EXPECT_EQ(counted::live, 2);
    EXPECT_EQ(first->number, 1);
    EXPECT_EQ(second->number, 2);
    EXPECT_TRUE(first.alone() && second.alone());
    const counted* const place = &*first;
    EXPECT_EQ(&first.own(), place);  // nobody else has it: it stays where it is
  }
  EXPECT_EQ(counted::live, 0);
}

TEST(shared_value, can_be_assigned_in_every_way) {
  {
    shared one(counted(1)), two(counted(2)), none;
    one = two;
    EXPECT_EQ(counted::live, 1);
    const shared& same = one;
    one = same;
    EXPECT_EQ(one->number, 2);
    none = std::move(one);
    EXPECT_FALSE(one);  // NOLINT(bugprone-use-after-move): it is none
    EXPECT_EQ(none->number, 2);
    none = {};
    EXPECT_FALSE(none);
    EXPECT_TRUE(two.alone());
  }
  EXPECT_EQ(counted::live, 0);
}

/// A template, since there clang 14 forgets to destroy what an operator= takes by value.
template <class Value>
struct holder {
  void clear() { held = {}; }
  Value held;
};
TEST(shared_value, is_gone_when_a_member_of_a_template_is_cleared) {
  holder<shared> of{shared(counted(3))};
  of.clear();
  of.held = shared(counted(4));
  of.clear();
  EXPECT_EQ(counted::live, 0);
}

}  // namespace
}  // namespace headwise::test
