// SPDX-License-Identifier: MIT
#include "headwise/core/token_view.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "support/refused.hpp"

namespace {

using headwise::output_view;
using headwise::token_view;

/// Both kinds of views: 5 tokens, 3 heads, 8 elements, and the extent just reached.
template <class View>
class views : public testing::Test {
 protected:
  std::vector<float> numbers = std::vector<float>(5 * 3 * 8);
  View packed() {
    View view;
    view.data = numbers.data();
    view.tokens = 5;
    view.heads = 3;
    view.dim = 8;
    view.token_stride = 24;
    view.head_stride = 8;
    view.extent = numbers.size();
    return view;
  }
  static void check(const View& view) { headwise::detail::check_view(view, "test: keys", 3, 8); }
};
using view_types = testing::Types<token_view, output_view>;
struct view_names {
  template <class View>
  static std::string GetName(int) {
    return std::is_same_v<View, token_view> ? "token_view" : "output_view";
  }
};
TYPED_TEST_SUITE(views, view_types, view_names);

TYPED_TEST(views, any_order_of_tokens_and_heads_is_taken_up_to_its_last_element) {
  auto view = this->packed();
  EXPECT_NO_THROW(this->check(view));
  view.token_stride = 8;  // [D, T, H]
  view.head_stride = 40;
  EXPECT_NO_THROW(this->check(view));
  view.extent = (std::numeric_limits<std::size_t>::max)();  // unknown
  EXPECT_NO_THROW(this->check(view));
}

TYPED_TEST(views, an_extent_one_short_is_refused_with_both_numbers) {
  auto view = this->packed();
  view.extent = 119;
  EXPECT_REFUSED(this->check(view), "test: keys", "120", "119");
  view = this->packed();
  view.token_stride = 25;  // reaches 4 * 25 + 2 * 8 + 8 = 124
  EXPECT_REFUSED(this->check(view), "124", "120");
}

TYPED_TEST(views, huge_strides_do_not_wrap) {
  for (const std::size_t stride :
       {std::size_t{1} << 62, std::size_t{1} << 63, static_cast<std::size_t>(-1), static_cast<std::size_t>(-24)}) {
    auto view = this->packed();
    view.token_stride = stride;
    EXPECT_REFUSED(this->check(view), "120");
    view = this->packed();
    view.head_stride = stride;
    EXPECT_REFUSED(this->check(view), "120");
  }
}

TYPED_TEST(views, null_is_refused_with_tokens_and_taken_without) {
  auto view = this->packed();
  view.data = nullptr;
  EXPECT_REFUSED(this->check(view), "null", "5 tokens");
  view.tokens = 0;
  EXPECT_NO_THROW(this->check(view));
}

TYPED_TEST(views, rows_that_overlap_are_refused) {
  auto view = this->packed();
  view.head_stride = 7;
  EXPECT_REFUSED(this->check(view), "head stride 7", "8");
  view = this->packed();
  view.token_stride = 7;
  EXPECT_REFUSED(this->check(view), "token stride 7", "8");
  view = this->packed();
  view.tokens = 1;  // a single token needs no stride
  view.token_stride = 0;
  EXPECT_NO_THROW(this->check(view));
}

TYPED_TEST(views, another_shape_is_refused_with_both_shapes) {
  auto view = this->packed();
  view.heads = 2;
  EXPECT_REFUSED(this->check(view), "2 heads of 8", "3 of 8");
  view = this->packed();
  view.dim = 9;
  EXPECT_REFUSED(this->check(view), "3 heads of 9", "3 of 8");
}

TYPED_TEST(views, negative_counts_in_disguise_are_refused) {
  for (const std::size_t tokens : {std::size_t{1} << 31, static_cast<std::size_t>(-1)}) {
    auto view = this->packed();
    view.tokens = tokens;
    EXPECT_REFUSED(this->check(view), std::to_string(tokens).c_str(), "2147483648");
  }
}

TEST(packed, strides_are_those_of_token_head_element) {
  std::vector<float> numbers(5 * 3 * 8);
  const token_view rows = headwise::packed_rows(numbers.data(), 5, 3, 8);
  const output_view out = headwise::packed_output(numbers.data(), 5, 3, 8);
  EXPECT_EQ(rows.token_stride, 24U);
  EXPECT_EQ(rows.head_stride, 8U);
  EXPECT_EQ(out.token_stride, 24U);
  EXPECT_EQ(out.head_stride, 8U);
}

}  // namespace
