// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headwise/core/head_plan.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/profile/plan_file.hpp"

namespace headwise_llama {

/// Policies that are chosen at run time.
using any_budget = std::function<std::size_t(headwise::head_id, std::size_t)>;

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
