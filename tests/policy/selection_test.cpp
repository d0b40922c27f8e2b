// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headwise/policy/head_selection.hpp"
#include "headwise/policy/recipe.hpp"
#include "support/refused.hpp"

namespace {

using headwise::combined_heads;
using headwise::head_group;
using headwise::head_id;
using headwise::head_plan;
using headwise::head_role;
using headwise::head_scores;
using headwise::model_shape;
using headwise::recipe;
using headwise::recipe_check;
using headwise::retrieval_heads;
using column = std::vector<double>;
using ids = std::vector<head_id>;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// One query head per KV head unless the shape says otherwise.
head_scores scores_of(const model_shape& shape, column echo, column induction) {
  head_scores scores(shape);
  scores.add("induction", std::move(induction));  // found by name, not by place
  scores.add("echo", std::move(echo));
  return scores;
}
head_scores flat(std::size_t layers, std::size_t kv_heads, double score = 0.5) {
  const column same(layers * kv_heads, score);
  return scores_of({layers, kv_heads, kv_heads, 8, 0}, same, same);
}
std::size_t count(const head_plan& plan) { return plan.retrieval_heads().size(); }
retrieval_heads published(double induction, double echo, head_group group = head_group::sum) {
  retrieval_heads rule;
  rule.induction = induction;
  rule.echo = echo;
  rule.group = group;
  return rule;
}

TEST(selection, all_heads_keeps_every_head_whatever_the_scores) {
  model_shape shape;
  shape.layers = 3, shape.query_heads = 4, shape.kv_heads = 2, shape.head_dim = 8;
  EXPECT_EQ(headwise::all_heads{}.plan(head_scores(shape)).retrieval_heads().size(), 6U);
}

TEST(selection, layers_with_a_window_of_the_model_take_no_part) {
  // The best heads lie in layers 1 and 2, which the model itself windows.
  const column scores = {0.1, 0.2, 0.9, 0.8, 0.7, 0.9, 0.4, 0.3};
  head_scores measured = scores_of({4, 2, 2, 8, 0}, scores, scores);
  EXPECT_EQ(measured.ranked_heads(), 8U);
  measured.set_window(1, 100);
  measured.set_window(2, 200);
  EXPECT_EQ(measured.ranked_heads(), 4U);
  const auto check = [&](const head_plan& plan, const ids& expected) {
    EXPECT_EQ(plan.retrieval_heads(), expected);
    EXPECT_EQ(plan.window(0), 0U);
    EXPECT_EQ(plan.window(1), 100U);
    EXPECT_EQ(plan.role({2, 1}), head_role::windowed);
    EXPECT_EQ(plan.window(2), 200U);
  };
  check(combined_heads(0.5).plan(measured), {{3, 0}, {3, 1}});  // half of four heads, not of eight
  check(combined_heads(1.0).plan(measured), {{0, 0}, {0, 1}, {3, 0}, {3, 1}});
  check(published(0.25, 0.0).plan(measured), {{3, 0}});
  check(headwise::all_heads{}.plan(measured), {{0, 0}, {0, 1}, {3, 0}, {3, 1}});
  retrieval_heads protecting = published(0.0, 0.0);
  protecting.protect_first_layers = 2;
  check(protecting.plan(measured), {{0, 0}, {0, 1}, {3, 0}});

  std::size_t checks = 0;
  const auto never = [&](const head_plan& plan) {
    ++checks;
    return recipe_check{false, plan.retrieval_heads().size() == 4 ? 0U : 7U, 0.0};
  };
  recipe whole;
  whole.step = 0.5;
  whole.limit = 1.0;
  EXPECT_FALSE(whole.run(combined_heads(0.5), measured, never).passed);  // with all four, nothing can be folded
  EXPECT_EQ(checks, 2U);

  measured.set_window(0, 1);
  measured.set_window(3, 1);
  EXPECT_TRUE(combined_heads(0.5).plan(measured).retrieval_heads().empty());
  EXPECT_TRUE(published(0.5, 0.5).plan(measured).retrieval_heads().empty());
  EXPECT_REFUSED(measured.set_window(4, 1), "layer 4");
  EXPECT_REFUSED(measured.set_window(3, 0), "layer 3", "at least 1");
}

TEST(selection, a_share_becomes_a_count_by_rounding_half_up) {
  const struct {
    std::size_t layers, kv_heads;
    double share;
    std::size_t heads;
  } cases[] = {
      {30, 3, 0.15, 14},   // 13.5, which binary fractions put below the half
      {10, 1, 0.25, 3},    // 2.5
      {10, 1, 0.15, 2},    // 1.5
      {10, 1, 0.05, 1},    // 0.5
      {10, 1, 0.0499, 0},  // below
      {10, 1, 0.35, 4},      {10, 1, 0.45, 5}, {30, 3, 0.05, 5}, {30, 3, 0.1, 9},       {30, 3, 0.2, 18},
      {32, 8, 0.14, 36},     {24, 2, 0.14, 7}, {10, 1, 0.0, 0},  {10, 1, 1.0, 10},      {30, 3, 1e-9, 0},
      {30, 3, 0.999999, 90}, {1, 1, 0.5, 1},   {1, 1, 0.49, 0},  {64, 16, 0.999, 1023},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.share << " of " << c.layers * c.kv_heads);
    const head_scores scores = flat(c.layers, c.kv_heads);
    EXPECT_EQ(count(combined_heads(c.share).plan(scores)), c.heads);
    // All scores equal: echo's one head is the first, which induction has taken already, unless it takes none.
    EXPECT_EQ(count(published(c.share, 0.0).plan(scores)), c.heads == 0 ? 1U : c.heads);
    EXPECT_EQ(count(published(0.0, c.share).plan(scores)), c.heads == 0 ? 1U : c.heads);
  }
}

TEST(selection, a_share_outside_0_to_1_is_refused) {
  const head_scores scores = flat(10, 1);
  for (const double share : {nan, 1.5, -0.1, -1e-9, 1.0000001, HUGE_VAL, -HUGE_VAL}) {
    EXPECT_REFUSED(combined_heads(share).plan(scores), "combined_heads", "0..1");
    EXPECT_REFUSED(published(share, 0.01).plan(scores), "induction", "0..1");
    EXPECT_REFUSED(published(0.14, share).plan(scores), "echo", "0..1");
  }
  EXPECT_REFUSED(combined_heads(1.5).plan(scores), "found 1.5");
}

TEST(selection, ties_go_to_the_lower_layer_then_to_the_lower_head) {
  EXPECT_EQ(combined_heads(0.25).plan(flat(5, 2)).retrieval_heads(), (ids{{0, 0}, {0, 1}, {1, 0}}));
  // The same head wins a tie wherever better ones stand.
  const model_shape shape{3, 2, 2, 8, 0};
  const head_scores scores = scores_of(shape, column(6, 0.0), {0.1, 0.2, 0.2, 0.1, 0.9, 0.2});
  EXPECT_EQ(combined_heads(2.0 / 6).plan(scores).retrieval_heads(), (ids{{0, 1}, {2, 0}}));
  EXPECT_EQ(combined_heads(3.0 / 6).plan(scores).retrieval_heads(), (ids{{0, 1}, {1, 0}, {2, 0}}));
  const head_plan first = combined_heads(0.5).plan(scores);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(combined_heads(0.5).plan(scores) == first);
}

TEST(selection, the_published_rule_unites_two_rankings_and_the_combined_rule_adds_the_scores) {
  const model_shape shape{2, 5, 5, 8, 0};
  //                       0.0  0.1  0.2  0.3  0.4  1.0  1.1  1.2  1.3  1.4
  const column echo{0.00, 0.9, 0.1, 0.0, 0.0, 0.0, 0.8, 0.0, 0.0, 0.45};
  const column induction{0.00, 0.0, 0.7, 0.6, 0.0, 0.0, 0.5, 0.0, 0.0, 0.40};
  const head_scores scores = scores_of(shape, echo, induction);
  const struct {
    double induction, echo;
    ids heads;
  } cases[] = {
      {0.2, 0.1, {{0, 1}, {0, 2}, {0, 3}}},          // apart
      {0.3, 0.2, {{0, 1}, {0, 2}, {0, 3}, {1, 1}}},  // one head in both: 3 + 2 make 4
      {0.2, 0.0, {{0, 1}, {0, 2}, {0, 3}}},          // at least one echo head
      {0.0, 0.0, {{0, 1}}},
      {0.0, 0.3, {{0, 1}, {1, 1}, {1, 4}}},
  };
  for (const auto& c : cases) EXPECT_EQ(published(c.induction, c.echo).plan(scores).retrieval_heads(), c.heads);
  EXPECT_EQ(count(published(1.0, 1.0).plan(scores)), 10U);
  EXPECT_EQ(combined_heads(0.3).plan(scores).retrieval_heads(), (ids{{0, 1}, {1, 1}, {1, 4}}));  // 1.3, 0.9, 0.85
  EXPECT_EQ(combined_heads(0.0).plan(scores).retrieval_heads(), ids{});
  EXPECT_EQ(retrieval_heads{}.plan(scores).sinks(), 4U);
  EXPECT_TRUE(retrieval_heads{}.plan(scores).shape() == shape);
}

TEST(selection, query_heads_of_a_group_count_by_sum_or_by_max) {
  const model_shape shape{1, 6, 2, 8, 0};  // query heads 0-2 read KV head 0, 3-5 KV head 1
  const head_scores scores = scores_of(shape, {0.3, 0.3, 0.3, 0.0, 0.8, 0.0}, {0.2, 0.2, 0.2, 0.5, 0.0, 0.0});
  EXPECT_EQ(combined_heads(0.5).plan(scores).retrieval_heads(), (ids{{0, 0}}));                   // 1.5 and 1.3
  EXPECT_EQ(combined_heads(0.5, head_group::max).plan(scores).retrieval_heads(), (ids{{0, 1}}));  // 0.5 and 0.8
  EXPECT_EQ(published(0.0, 0.5).plan(scores).retrieval_heads(), (ids{{0, 0}}));                   // 0.9 and 0.8
  EXPECT_EQ(published(0.0, 0.5, head_group::max).plan(scores).retrieval_heads(), (ids{{0, 1}}));
  EXPECT_EQ(published(0.5, 0.0).plan(scores).retrieval_heads(), (ids{{0, 0}}));                   // 0.6 and 0.5
  EXPECT_EQ(published(0.5, 0.0, head_group::max).plan(scores).retrieval_heads(), (ids{{0, 1}}));  // 0.2 and 0.5
  // Max is the largest of the group also where all are below 0, as a user's own scores may be.
  const head_scores below = scores_of(shape, column(6, 0.0), {-3, -1, -2, -0.5, -9, -9});
  EXPECT_EQ(combined_heads(0.5, head_group::max).plan(below).retrieval_heads(), (ids{{0, 1}}));
  EXPECT_EQ(combined_heads(0.5).with_share(1.0).plan(below).retrieval_heads().size(), 2U);
}

TEST(selection, a_missing_column_is_refused_by_name) {
  head_scores scores(model_shape{1, 2, 2, 8, 0});
  EXPECT_REFUSED(combined_heads().plan(scores), "'echo'", "none");
  scores.add("echo", {1, 2});
  EXPECT_REFUSED(combined_heads().plan(scores), "'induction'", "found: echo");
  EXPECT_REFUSED(retrieval_heads().plan(scores), "'induction'", "found: echo");
  scores.add("Induction", {1, 2});
  EXPECT_REFUSED(combined_heads().plan(scores), "'induction'", "echo, Induction");
}

TEST(selection, a_score_that_is_no_number_is_refused_with_its_head) {
  const model_shape shape{2, 4, 2, 8, 0};
  for (const double bad : {nan, HUGE_VAL, -HUGE_VAL})
    for (std::size_t i = 0; i < 8; ++i) {
      column spoiled(8, 0.5);
      spoiled[i] = bad;
      const std::string head = std::to_string(i / 4) + "." + std::to_string(i % 4);
      for (const head_group group : {head_group::sum, head_group::max}) {
        EXPECT_REFUSED(combined_heads(0.5, group).plan(scores_of(shape, spoiled, column(8, 0.5))), head.c_str());
        EXPECT_REFUSED(published(0.5, 0.1, group).plan(scores_of(shape, column(8, 0.5), spoiled)), head.c_str());
        EXPECT_REFUSED(published(0.5, 0.1, group).plan(scores_of(shape, spoiled, column(8, 0.5))), head.c_str());
      }
    }
  const column large(8, 1e308);  // finite each, not their sum
  EXPECT_REFUSED(combined_heads(0.5).plan(scores_of(shape, large, large)), "inf");
}

TEST(selection, protected_first_layers_are_added_to_what_the_ranking_takes) {
  const model_shape shape{4, 2, 2, 8, 0};
  const head_scores scores = scores_of(shape, column(8, 0.0), {0, 0, 0, 0, 0, 0, 0, 0.9});
  const std::size_t taken[] = {2, 3, 5, 7, 8, 8};  // echo's head 0.0 and induction's 3.1, then 2 a layer
  for (std::size_t layers = 0; layers < 6; ++layers) {
    retrieval_heads rule = published(0.125, 0.0);
    rule.protect_first_layers = layers;
    const head_plan plan = rule.plan(scores);
    EXPECT_EQ(count(plan), taken[layers]) << layers;
    for (std::size_t layer = 0; layer < 4; ++layer)
      if (layer < layers) {
        EXPECT_EQ(plan.role({layer, 1}), head_role::retrieval);
      }
    EXPECT_EQ(plan.role({3, 1}), head_role::retrieval);
    EXPECT_TRUE(rule.with_share(0.125).plan(scores) == plan);  // the share alone changes
  }
}

TEST(selection, a_larger_share_only_adds_heads) {
  const model_shape shape{6, 4, 2, 8, 0};
  column echo, induction;
  for (std::size_t i = 0; i < 24; ++i) {
    echo.push_back(static_cast<double>(i * 7 % 5) / 5);
    induction.push_back(static_cast<double>(i * 11 % 7) / 7);
  }
  const head_scores scores = scores_of(shape, echo, induction);
  const auto grows = [&](const auto& rule) {
    head_plan before = rule.with_share(0.0).plan(scores);
    for (int step = 1; step <= 50; ++step) {
      const head_plan plan = rule.with_share(0.02 * step).plan(scores);
      for (const head_id head : before.retrieval_heads()) EXPECT_EQ(plan.role(head), head_role::retrieval);
      before = plan;
    }
    EXPECT_EQ(count(before), shape.heads());
  };
  grows(combined_heads());
  grows(combined_heads(0.5, head_group::max));
  grows(retrieval_heads());
}

// --- recipe ---------------------------------------------------------------------------------------------------------

TEST(recipe, adds_three_per_cent_a_step_and_reports_every_step_until_the_check_passes) {
  column induction(100);
  for (std::size_t i = 0; i < 100; ++i) induction[i] = 1.0 - static_cast<double>(i) / 100;
  const head_scores scores = scores_of({100, 1, 1, 8, 0}, column(100, 0.0), induction);
  const auto passes_from = [](std::size_t heads) {
    return [heads](const head_plan& plan) {
      return recipe_check{count(plan) >= heads, 7, static_cast<double>(count(plan))};
    };
  };
  const struct {
    std::size_t needed, steps, heads;
  } cases[] = {{0, 1, 15}, {15, 1, 15}, {16, 2, 18}, {18, 2, 18}, {30, 6, 30}, {43, 11, 45}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.needed);
    const auto result = recipe{}.run(combined_heads(0.15), scores, passes_from(c.needed));
    EXPECT_TRUE(result.passed);
    ASSERT_EQ(result.steps.size(), c.steps);
    EXPECT_EQ(count(result.plan), c.heads);
    for (std::size_t k = 0; k < result.steps.size(); ++k) {
      const auto& step = result.steps[k];
      EXPECT_NEAR(step.share, 0.15 + 0.03 * static_cast<double>(k), 1e-12);
      EXPECT_EQ(step.retrieval_heads, 15 + 3 * k);
      EXPECT_EQ(step.check.passed, k + 1 == c.steps);
      EXPECT_EQ(step.check.folded, 7U);
      EXPECT_EQ(step.check.quality, static_cast<double>(15 + 3 * k));
    }
    EXPECT_TRUE(result.plan == combined_heads(result.steps.back().share).plan(scores));
  }
}

TEST(recipe, ends_at_its_limit_with_the_last_plan_it_tried) {
  const head_scores scores = flat(100, 1);
  const auto never = [](const head_plan&) { return recipe_check{false, 1, 0.0}; };
  const struct {
    double start, step, limit;
    std::size_t steps, heads;
  } cases[] = {
      {0.15, 0.03, 0.50, 12, 48},  // 0.15 + 0.03 * 11
      {0.15, 0.03, 0.48, 12, 48},  // the limit itself is tried, although the sum of the shares rounds
      {0.15, 0.03, 0.15, 1, 15},  {0.15, 0.03, 0.1799, 1, 15}, {0.0, 0.5, 1.0, 3, 100},
      {0.97, 0.03, 1.0, 2, 100},  {0.1, 0.1, 0.7, 7, 70},      {1.0, 0.03, 1.0, 1, 100},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.start << " + " << c.step << " up to " << c.limit);
    const auto result = recipe{c.step, c.limit}.run(combined_heads(c.start), scores, never);
    EXPECT_FALSE(result.passed);
    EXPECT_EQ(result.steps.size(), c.steps);
    EXPECT_EQ(count(result.plan), c.heads);
  }
}

TEST(recipe, raises_the_induction_share_of_the_published_rule_and_keeps_its_other_settings) {
  const model_shape shape{10, 1, 1, 8, 0};
  const head_scores scores = scores_of(shape, {0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 0, 0, 9, 8, 7, 0, 6});
  retrieval_heads rule = published(0.1, 0.1);
  rule.protect_first_layers = 1;
  const auto result = recipe{0.1, 0.3}.run(rule, scores, [](const head_plan&) { return recipe_check{false, 1, 0}; });
  ASSERT_EQ(result.steps.size(), 3U);
  EXPECT_EQ(result.plan.retrieval_heads(), (ids{{0, 0}, {5, 0}, {6, 0}, {7, 0}, {8, 0}}));
}

TEST(recipe, a_check_where_nothing_is_folded_is_refused_even_if_it_passes) {
  const head_scores scores = flat(10, 1);
  for (const bool passes : {false, true}) {
    int calls = 0;
    const auto nothing_folded = [&](const head_plan&) { return ++calls, recipe_check{passes, 0, 1.0}; };
    EXPECT_REFUSED(recipe{}.run(combined_heads(), scores, nothing_folded), "nothing is folded");
    EXPECT_EQ(calls, 1);
  }
  // With every head a retrieval head nothing can be folded, and that is no fault of the length.
  const auto result = recipe{0.5, 1.0}.run(combined_heads(0.5), scores, [](const head_plan& plan) {
    return recipe_check{count(plan) == 10, static_cast<std::size_t>(10 - count(plan)), 1.0};
  });
  EXPECT_TRUE(result.passed);
  EXPECT_EQ(result.steps.size(), 2U);
}

TEST(recipe, settings_that_make_no_recipe_are_refused_before_any_check) {
  const head_scores scores = flat(10, 1);
  const auto fail_if_called = [](const head_plan&) {
    ADD_FAILURE() << "called";
    return recipe_check{true, 1, 1.0};
  };
  const struct {
    double start, step, limit;
    const char* word;
  } cases[] = {
      {0.15, 0.0, 0.5, "step"},   {0.15, 1e-300, 0.5, "step"}, {0.15, -0.03, 0.5, "step"},
      {0.15, nan, 0.5, "step"},   {0.15, 1.5, 0.5, "step"},    {0.15, 0.03, nan, "limit"},
      {0.15, 0.03, 1.5, "limit"}, {0.15, 0.03, -1, "limit"},   {0.15, 0.03, 0.1, "above the limit"},
      {nan, 0.03, 0.5, "0..1"},   {-0.1, 0.03, 0.5, "0..1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.start << " + " << c.step << " up to " << c.limit);
    EXPECT_REFUSED((recipe{c.step, c.limit}.run(combined_heads(c.start), scores, fail_if_called)), c.word);
  }
  EXPECT_REFUSED(recipe{}.run(combined_heads(), head_scores(scores.shape()), fail_if_called), "'echo'");
}

TEST(recipe, what_a_check_throws_comes_through) {
  struct stop {};
  EXPECT_THROW(recipe{}.run(combined_heads(), flat(10, 1), [](const head_plan&) -> recipe_check { throw stop{}; }),
               stop);
}

}  // namespace
