// SPDX-License-Identifier: MIT
#include "headwise/core/head_plan.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/refused.hpp"

namespace {

using headwise::head_id;
using headwise::head_plan;
using headwise::head_role;
using headwise::model_shape;

const model_shape shape{3, 8, 4, 16, 0};

TEST(head_plan, every_head_has_the_first_role_until_it_is_set) {
  for (const head_role role : {head_role::local, head_role::retrieval}) {
    const head_plan plan(shape, role);
    for (std::size_t layer = 0; layer < 3; ++layer)
      for (std::size_t head = 0; head < 4; ++head) EXPECT_EQ(plan.role({layer, head}), role);
    EXPECT_EQ(plan.retrieval_heads().size(), role == head_role::retrieval ? 12U : 0U);
    EXPECT_EQ(plan.sinks(), 4U);
  }
}

TEST(head_plan, set_changes_one_kv_head_and_the_list_is_in_order_of_layer_and_head) {
  head_plan plan(shape);
  for (const head_id head : {head_id{2, 0}, head_id{0, 3}, head_id{0, 1}}) plan.set(head, head_role::retrieval);
  EXPECT_EQ(plan.retrieval_heads(), (std::vector<head_id>{{0, 1}, {0, 3}, {2, 0}}));
  plan.set({0, 3}, head_role::local);
  EXPECT_EQ(plan.retrieval_heads(), (std::vector<head_id>{{0, 1}, {2, 0}}));
}

TEST(head_plan, plans_differ_in_shape_sinks_or_a_role) {
  const head_plan plan(shape);
  EXPECT_EQ(plan, head_plan(shape));
  EXPECT_NE(plan, head_plan(shape, head_role::retrieval));
  EXPECT_NE(plan, head_plan(shape, head_role::local, 5));
  EXPECT_NE(plan, head_plan({3, 8, 4, 17, 0}));
}

TEST(head_plan, a_head_that_the_model_has_not_is_refused_and_nothing_changes) {
  head_plan plan(shape);
  EXPECT_REFUSED(plan.role({3, 0}), "3.0", "3 layers");
  EXPECT_REFUSED(plan.role({0, 4}), "0.4", "4 KV heads");  // a query head is no KV head
  EXPECT_REFUSED(plan.set({1, 7}, head_role::retrieval), "1.7");
  EXPECT_EQ(plan, head_plan(shape));
  EXPECT_REFUSED(head_plan(model_shape{}), "found 0 layers");
}

}  // namespace
