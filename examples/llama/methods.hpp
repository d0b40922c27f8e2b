// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "headwise/core/head_plan.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/profile/plan_file.hpp"

namespace headwise_llama {

/// A budget that is chosen at run time. It says who it is, as a saved cache asks for (headwise/policy/identity.hpp).
class any_budget {
 public:
  template <class Budget>
  any_budget(Budget budget)  // NOLINT: a budget is what it converts from
      : name_(budget.name()), parameters_(headwise::detail::parameter_texts(budget)), rows_(std::move(budget)) {
    headwise::detail::require_saveable_budget<Budget>();
  }

  std::size_t operator()(headwise::head_id head, std::size_t tokens_seen) const { return rows_(head, tokens_seen); }
  const char* name() const noexcept { return name_; }
  const std::vector<std::string>& parameters() const noexcept { return parameters_; }

 private:
  const char* name_;
  std::vector<std::string> parameters_;
  std::function<std::size_t(headwise::head_id, std::size_t)> rows_;
};

/// Policies that are chosen at run time.

struct policies {
  headwise::head_plan plan;
  any_budget budget;
  headwise::any_compensation compensation;
};

/// What a method starts from.
struct method_input {
  const headwise::plan_file& file;          ///< the plan under test
  headwise::any_compensation compensation;  ///< of --compensation
  std::uint64_t seed;                       ///< differs from trial to trial
};

/// A way to make the cache small. All are compared at the same rows: each takes a copy of one full cache.
struct method {
  std::string name;
  std::string meaning;
  std::function<policies(const method_input&)> choose;
};

/// All methods, the full cache first. Adding one is adding a line to the table in methods.cpp.
const std::vector<method>& all_methods();

/// The methods of a list "full,razor,...". Refuses an unknown name with the known ones. The full cache is always
/// first: the others are compared with it.
std::vector<method> methods_named(const std::vector<std::string>& names);

/// KV heads of the layers that see everything: those that a plan decides about.
std::size_t heads_in_full(const headwise::head_plan& plan);

/// Another plan, as a method named after its file: published.tsv becomes "published".
method other_plan(const std::string& path, const headwise::plan_file& file);

}  // namespace headwise_llama
