// SPDX-License-Identifier: MIT
#include "methods.hpp"

#include <algorithm>
#include <filesystem>
#include <random>
#include <utility>

#include "headwise/core/error.hpp"
#include "headwise/policy/moment_compensation.hpp"

namespace headwise_llama {
namespace {

using headwise::head_id;
using headwise::head_plan;
using headwise::head_role;

/// The windows of a plan's model, and all other heads in one role.
head_plan all_heads(const head_plan& plan, head_role role) {
  head_plan all(plan.shape(), role, plan.sinks());
  for (std::size_t layer = 0; layer < plan.shape().layers; ++layer)
    if (plan.window(layer) != 0) all.set_window(layer, plan.window(layer));
  return all;
}

policies full(const method_input& in) {
  return {all_heads(in.file.plan, head_role::retrieval), in.file.budget, headwise::no_compensation{}};
}
policies razor(const method_input& in) { return {in.file.plan, in.file.budget, in.compensation}; }
policies none(const method_input& in) { return {in.file.plan, in.file.budget, headwise::no_compensation{}}; }
policies moment(const method_input& in) { return {in.file.plan, in.file.budget, headwise::moment_compensation{}}; }

/// As many retrieval heads as the plan has, anywhere.
policies random_heads(const method_input& in) {
  const headwise::model_shape& shape = in.file.plan.shape();
  head_plan plan = all_heads(in.file.plan, head_role::local);
  std::mt19937_64 random(in.seed);
  for (std::size_t left = in.file.plan.retrieval_heads().size(); left != 0;) {
    const std::size_t i = static_cast<std::size_t>(random() % shape.heads());
    const head_id head{i / shape.kv_heads, i % shape.kv_heads};
    if (plan.role(head) != head_role::local) continue;
    plan.set(head, head_role::retrieval);
    --left;
  }
  return {std::move(plan), in.file.budget, in.compensation};
}

/// A window that spends the bytes of a plan's retrieval and local heads on all of them alike.
struct equal_bytes {
  headwise::razor_budget budget;  // the plan's
  std::size_t sinks;
  std::size_t retrieval;
  std::size_t heads;

  std::size_t operator()(head_id head, std::size_t tokens) const {
    const std::size_t recent = std::min(budget(head, tokens), tokens);
    const std::size_t kept = std::min(tokens, sinks + recent);
    const std::size_t rows = (retrieval * tokens + (heads - retrieval) * kept) / heads;
    return rows > sinks ? rows - sinks : 1;
  }
  static const char* name() noexcept { return "equal_bytes"; }
  std::vector<std::size_t> parameters() const { return {budget.min_recent, budget.divisor, sinks, retrieval, heads}; }
};

/// StreamingLLM: no retrieval heads, nothing for what left, and a window of the same bytes.
policies local(const method_input& in) {
  const equal_bytes window{in.file.budget, in.file.plan.sinks(), in.file.plan.retrieval_heads().size(),
                           std::max<std::size_t>(1, heads_in_full(in.file.plan))};
  return {all_heads(in.file.plan, head_role::local), window, headwise::no_compensation{}};
}

}  // namespace

std::size_t heads_in_full(const head_plan& plan) {
  std::size_t heads = 0;
  for (std::size_t layer = 0; layer < plan.shape().layers; ++layer)
    heads += plan.window(layer) == 0 ? plan.shape().kv_heads : 0;
  return heads;
}

const std::vector<method>& all_methods() {
  static const std::vector<method> methods = {
      {"full", "every row of every head", full},
      {"razor", "the plan, with --compensation for what local heads fold", razor},
      {"none", "the plan, nothing for what left", none},
      {"moment", "the plan, value-key covariance for what left", moment},
      {"random", "as many retrieval heads, anywhere, another choice each trial", random_heads},
      {"local", "no retrieval heads: sinks and a window of the same bytes", local},
  };
  return methods;
}

std::vector<method> methods_named(const std::vector<std::string>& names) {
  std::vector<method> chosen = {all_methods().front()};
  for (const std::string& name : names) {
    const auto& known = all_methods();
    const auto found = std::find_if(known.begin(), known.end(), [&](const method& m) { return name == m.name; });
    if (found == known.end()) {
      std::string list;
      for (const method& m : known) list += (list.empty() ? "" : ", ") + m.name;
      headwise::detail::fail("--methods: found '", name, "', expected some of ", list);
    }
    const bool there = std::any_of(chosen.begin(), chosen.end(), [&](const method& m) { return name == m.name; });
    if (!there) chosen.push_back(*found);
  }
  return chosen;
}

method other_plan(const std::string& path, const headwise::plan_file& file) {
  return {std::filesystem::path(path).stem().string(), "the plan of " + path, [file](const method_input& in) {
            return policies{file.plan, file.budget, in.compensation};
          }};
}

}  // namespace headwise_llama
