// SPDX-License-Identifier: MIT
#include "headwise/core/head_scores.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/refused.hpp"

namespace {

using headwise::head_scores;
using headwise::model_shape;

const model_shape shape{2, 3, 1, 16, 0};

TEST(head_scores, a_column_is_layer_by_layer_query_head_by_query_head) {
  head_scores scores(shape);
  scores.add("echo", {0, 1, 2, 10, 11, 12});
  scores.add("mine", {5, 5, 5, 5, 5, 6});
  EXPECT_EQ(scores.names(), (std::vector<std::string>{"echo", "mine"}));
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t head = 0; head < 3; ++head)
      EXPECT_EQ(scores.at("echo", layer, head), static_cast<double>(10 * layer + head));
  EXPECT_EQ(scores.at("mine", 1, 2), 6.0);
  EXPECT_TRUE(scores.has("mine"));
  EXPECT_FALSE(scores.has("induction"));
}

TEST(head_scores, a_column_of_another_length_or_a_known_name_is_refused_and_nothing_changes) {
  head_scores scores(shape);
  EXPECT_REFUSED(scores.add("echo", {1, 2, 3, 4, 5}), "'echo'", "5 numbers", "expected 6");
  EXPECT_REFUSED(scores.add("echo", {1, 2, 3, 4, 5, 6, 7}), "7 numbers");
  EXPECT_REFUSED(scores.add("echo", {}), "0 numbers");
  EXPECT_TRUE(scores.names().empty());
  scores.add("echo", {1, 2, 3, 4, 5, 6});
  EXPECT_REFUSED(scores.add("echo", {6, 5, 4, 3, 2, 1}), "'echo'");
  EXPECT_EQ(scores.names().size(), 1U);
  EXPECT_EQ(scores.at("echo", 0, 0), 1.0);
}

TEST(head_scores, a_missing_column_is_refused_with_the_names_that_are_there) {
  head_scores scores(shape);
  EXPECT_REFUSED(scores.at("echo", 0, 0), "'echo'", "none");
  scores.add("one", {1, 2, 3, 4, 5, 6});
  scores.add("two", {1, 2, 3, 4, 5, 6});
  EXPECT_REFUSED(scores.at("three", 0, 0), "'three'", "one, two");
  EXPECT_REFUSED(scores.at("one", 2, 0), "2.0");
  EXPECT_REFUSED(scores.at("one", 0, 3), "0.3");
  EXPECT_REFUSED(head_scores(model_shape{}), "found 0 layers");
}

}  // namespace
