// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "headwise/core/error.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/head_scores.hpp"
#include "headwise/policy/head_selection.hpp"

namespace headwise {

/// What a check found when it ran a model under a plan.
struct recipe_check {
  bool passed = false;
  std::size_t folded = 0;  ///< rows that had left local heads while it looked; 0 means it has tested nothing
  double quality = 0.0;    ///< what it measured, for the report
};

struct recipe_step {
  double share = 0.0;
  std::size_t retrieval_heads = 0;
  recipe_check check;
};

struct recipe_result {
  bool passed = false;
  head_plan plan;  ///< of the last step
  std::vector<recipe_step> steps;
};

/// The authors' recipe: start from a rule's share and add 3 % of the heads per step until a check passes or the limit
/// is met.
struct recipe {
  double step = 0.03;
  double limit = 0.5;  ///< largest share that is tried

  static constexpr double smallest_step = 1e-4;  ///< below it a run would hardly end

  /// `check(plan)` returns a recipe_check. A check at a length where nothing is folded is refused, because every plan
  /// would pass it.
  template <class Rule, class Check>
  recipe_result run(const Rule& rule, const head_scores& scores, Check&& check) const {
    detail::check_share("recipe: limit", limit);
    detail::check_share("recipe: step", step);
    if (step < smallest_step) detail::fail("recipe: step must be at least ", smallest_step, ", found ", step);
    if (rule.share() > limit)
      detail::fail("recipe: the rule starts at a share of ", rule.share(), ", above the limit of ", limit);
    recipe_result result{false, rule.plan(scores), {}};
    for (std::size_t i = 0;; ++i) {
      const double share = rule.share() + step * static_cast<double>(i);
      if (share > limit + 1e-9) return result;
      result.plan = rule.with_share((std::min)(share, 1.0)).plan(scores);
      const std::size_t chosen = result.plan.retrieval_heads().size();
      const recipe_check found = check(std::as_const(result.plan));
      if (found.folded == 0 && chosen < scores.ranked_heads())
        detail::fail(
            "recipe: the check ran at a length where nothing is folded, so every plan passes it; use a longer "
            "prompt or a smaller window");
      result.steps.push_back({share, chosen, found});
      result.passed = found.passed;
      if (found.passed) return result;
    }
  }
};

}  // namespace headwise
