// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>

#include "headwise/probe/repeated_tokens.hpp"

namespace headwise {

// A target rule names, for a row of the probe, the earlier rows whose share of the attention it scores.
//   | Expression               | Returns     | Meaning                                                   | May throw |
//   | rule.name()              | const char* | the column of head_scores                                 | no        |
//   | rule(probe, row, target) | ignored     | calls target(j), j <= row, for each target of a row; rows | no        |
//   |                          |             | count from 0 inside the repeated part, after the prefix   |           |
// It may be called several times for a row and names the same targets each time.
// A head's score is the mean, over the rows with a target, of the attention mass on the row's targets: in 0..1, and 1
// for a head that looks at nothing else, however it splits its attention among several targets.

/// Attention on all earlier copies of the current token: rows i - L, i - 2L, ... >= 0.
struct echo {
  static constexpr const char* name() noexcept { return "echo"; }

  template <class Target>
  void operator()(const repeated_tokens& probe, std::size_t row, Target&& target) const {
    for (std::size_t j = row; j >= probe.block();) target(j -= probe.block());
  }
};

/// Attention on the tokens that followed those copies: rows i - L + 1, i - 2L + 1, ...
struct induction {
  static constexpr const char* name() noexcept { return "induction"; }

  template <class Target>
  void operator()(const repeated_tokens& probe, std::size_t row, Target&& target) const {
    echo{}(probe, row, [&](std::size_t j) { target(j + 1); });
  }
};

namespace detail {

struct any_target {
  void operator()(std::size_t) const noexcept {}
};

template <class Rule>
constexpr void require_target_rule() {
  static_assert(std::is_invocable_v<const Rule&, const repeated_tokens&, std::size_t, any_target>,
                "headwise: a target rule has name() and is called as rule(probe, row, target), const "
                "(probe/target_rules.hpp)");
}

}  // namespace detail
}  // namespace headwise
