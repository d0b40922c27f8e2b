// SPDX-License-Identifier: MIT
#include "headwise/policy/identity.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "headwise/core/byte_stream.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/comma_locale.hpp"

namespace {

using namespace headwise;
using headwise::detail::identity;

struct without_numbers {
  static const char* name() { return "own"; }
};
struct with_numbers {
  double share = 0.15;
  const char* name() const { return "own"; }
  std::array<double, 2> parameters() const { return {share, 1e300}; }
};
struct with_a_list {
  std::vector<int> numbers;
  const char* name() const { return "list"; }
  const std::vector<int>& parameters() const { return numbers; }
};
struct hides_a_number {
  std::size_t rows = 0;
  static const char* name() { return "hides"; }
};
struct nameless {
  static std::array<int, 0> parameters() { return {}; }
};

TEST(identity, is_the_name_and_the_numbers_as_text) {
  EXPECT_EQ(identity(razor_budget{}), "razor(4000, 5)");
  EXPECT_EQ(identity(razor_budget{0, 7}), "razor(0, 7)");
  EXPECT_EQ(identity(fixed_budget{12}), "fixed(12)");
  EXPECT_EQ(identity(unlimited_budget{}), "unlimited");
  EXPECT_EQ(identity(no_compensation{}), "none");
  EXPECT_EQ(identity(mean_compensation{}), "mean");
  EXPECT_EQ(identity(moment_compensation{}), "moment(16)");
  EXPECT_EQ(identity(without_numbers{}), "own");
  EXPECT_EQ(identity(with_a_list{{}}), "list");
  EXPECT_EQ(identity(with_a_list{{1, -2, 3}}), "list(1, -2, 3)");
  EXPECT_EQ(identity(fixed_budget{(std::numeric_limits<std::size_t>::max)()}), "fixed(18446744073709551615)");
}

TEST(identity, a_variant_speaks_for_the_member_that_was_chosen) {
  EXPECT_EQ(identity(any_compensation(mean_compensation{})), "mean");
  EXPECT_EQ(identity(any_compensation(moment_compensation{})), identity(moment_compensation{}));
  EXPECT_EQ(identity(compensation_variant<any_compensation, no_compensation>(any_compensation(moment_compensation{}))),
            "moment(16)");
}

TEST(identity, two_numbers_that_differ_in_one_bit_differ_and_no_locale_matters) {
  EXPECT_NE(identity(with_numbers{0.1 + 0.2}), identity(with_numbers{0.3}));
  EXPECT_NE(identity(with_numbers{0.0}), identity(with_numbers{-0.0}));
  const std::string before = identity(with_numbers{});
  EXPECT_EQ(before, "own(0.15, 1e+300)");
  const headwise::test::comma_locale commas;
  EXPECT_EQ(identity(with_numbers{}), before);
  EXPECT_EQ(identity(razor_budget{1000000, 5}), "razor(1000000, 5)");
}

TEST(identity, who_might_hide_a_number_has_none) {
  static_assert(detail::has_identity<razor_budget> && detail::has_identity<fixed_budget> &&
                detail::has_identity<unlimited_budget>);
  static_assert(detail::has_identity<without_numbers> && detail::has_identity<with_numbers>);
  static_assert(!detail::has_identity<hides_a_number> && !detail::has_identity<nameless>);
  const auto lambda = [](head_id, std::size_t) { return std::size_t{7}; };
  static_assert(!detail::has_identity<decltype(lambda)>);
}

}  // namespace
