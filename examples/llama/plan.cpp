// SPDX-License-Identifier: MIT
// headwise-llama plan: from scores to a role per KV head, by a rule, or by raising the share until the needle is found.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "haystack.hpp"
#include "needle_task.hpp"
#include "table.hpp"
#include "tool.hpp"

namespace headwise_llama {
namespace {

struct options {
  common_options common;
  std::string profile;
  std::string rule = "combined";
  double share = 0.15;
  std::string group = "sum";
  std::size_t sinks = 4;
  headwise::razor_budget budget;
  std::string output;
  bool automatic = false;
  std::size_t length = 4000;
  std::size_t trials = 8;
  double tolerance = 0.1;
  double limit = 0.5;
  std::string haystack;
};

headwise::head_group group_of(const options& chosen) {
  return chosen.group == "max" ? headwise::head_group::max : headwise::head_group::sum;
}
headwise::combined_heads combined(const options& chosen) {
  return headwise::combined_heads(chosen.share, group_of(chosen));
}
/// The published rule spends 1 % on echo heads and the rest of the share on induction heads.
headwise::retrieval_heads published(const options& chosen) {
  headwise::retrieval_heads rule;
  rule.induction = std::max(0.0, chosen.share - rule.echo);
  rule.group = group_of(chosen);
  return rule;
}

/// The check of the recipe: needles at one length, asked of the full cache and of the plan.
class needle_check {
 public:
  needle_check(const options& chosen, runner& model)
      : chosen_(chosen), model_(model), sentences_(haystack_sentences(chosen.haystack)) {}

  headwise::recipe_check operator()(const headwise::head_plan& plan) {
    headwise::plan_file file{plan, chosen_.budget};
    file.plan.set_sinks(chosen_.sinks);
    const std::vector<method> methods = methods_named({"razor"});
    headwise::recipe_check result;
    double full = 0.0;
    double nll = 0.0;
    progress_line line("plan: " + std::to_string(plan.retrieval_heads().size()) + " retrieval heads, needle",
                       chosen_.common.quiet);
    for (std::size_t trial = 0; trial < chosen_.trials; ++trial) {
      needle_case test;
      test.length = chosen_.length;
      test.depth = needle_depth(trial, chosen_.trials);
      test.seed = chosen_.common.seed + trial;
      const needle_prompt prompt = make_needle_prompt(model_.model(), sentences_, test);
      const auto outcomes =
          run_needle(model_, prompt, methods, {file, chosen_.common.chosen_compensation(), test.seed}, false);
      full += outcomes[0].exact ? 1.0 : 0.0;
      result.quality += outcomes[1].exact ? 1.0 : 0.0;
      nll += outcomes[1].nll;
      result.folded += outcomes[1].folded;
      line.show(trial + 1, chosen_.trials);
    }
    const auto trials = static_cast<double>(chosen_.trials);
    full /= trials;
    result.quality /= trials;
    result.passed = result.quality >= full - chosen_.tolerance - 1e-9;
    steps_.push_back({full, nll / trials});
    return result;
  }

  struct step {
    double full;
    double nll;
  };
  const std::vector<step>& steps() const noexcept { return steps_; }

 private:
  const options& chosen_;
  runner& model_;
  std::vector<std::string> sentences_;
  std::vector<step> steps_;
};

template <class Rule>
headwise::head_plan run_recipe(const options& chosen, const Rule& rule) {
  runner model(chosen.common);
  const headwise::head_scores scores = profile_for(model.model(), chosen.profile);
  needle_check check(chosen, model);
  headwise::recipe recipe;
  recipe.limit = chosen.limit;
  std::printf("Needles at %zu tokens, %zu trials a step; passes within %s of the full cache's exact answers.\n",
              chosen.length, chosen.trials, fixed(chosen.tolerance, 2).c_str());
  const headwise::recipe_result result = recipe.run(rule, scores, check);
  table steps({"step", "share", "retrieval_heads", "full_exact", "exact", "nll", "passed"});
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const headwise::recipe_step& step = result.steps[i];
    steps.add({std::to_string(i + 1), fixed(step.share, 2), std::to_string(step.retrieval_heads),
               fixed(check.steps()[i].full, 2), fixed(step.check.quality, 2), fixed(check.steps()[i].nll, 2),
               step.check.passed ? "yes" : "no"});
  }
  steps.print();
  if (!result.passed)
    headwise::detail::fail("plan: no share up to ", chosen.limit, " finds the needle as the full cache does");
  return result.plan;
}

void run(const options& chosen) {
  check_writable(chosen.output);
  headwise::head_plan plan = [&] {
    if (chosen.automatic)
      return chosen.rule == "combined" ? run_recipe(chosen, combined(chosen)) : run_recipe(chosen, published(chosen));
    const headwise::head_scores scores = headwise::read_profile(chosen.profile);
    return chosen.rule == "combined" ? combined(chosen).plan(scores) : published(chosen).plan(scores);
  }();
  plan.set_sinks(chosen.sinks);
  headwise::write_plan(chosen.output, {plan, chosen.budget},
                       {{"rule", chosen.rule + (chosen.automatic ? ", raised until the needle was found" : "")},
                        {"profile", chosen.profile}});

  const auto heads = plan.retrieval_heads();
  const std::size_t in_full = heads_in_full(plan);
  std::printf(
      "%zu of %zu KV heads are retrieval heads (%s %%):", heads.size(), in_full,
      fixed(in_full == 0 ? 0 : 100.0 * static_cast<double>(heads.size()) / static_cast<double>(in_full), 1).c_str());
  for (const headwise::head_id head : heads) std::printf(" %zu.%zu", head.layer, head.kv_head);
  if (in_full != plan.shape().heads())
    std::printf("\n%zu more lie in layers where the model itself sees only a window", plan.shape().heads() - in_full);
  std::printf("\n\nRows that such a cache holds, beside one of every row:\n");
  table ratios({"tokens", "recent", "folded", "share_of_rows", "smaller_by"});
  for (const std::size_t tokens : std::vector<std::size_t>{1024, 4096, 8192, 16384, 32768, 131072}) {
    const std::size_t recent = std::min(chosen.budget({}, tokens), tokens);
    const std::size_t kept = std::min(tokens, chosen.sinks + recent + (chosen.sinks + recent < tokens ? 1 : 0));
    std::size_t held = heads.size() * tokens + (in_full - heads.size()) * kept;
    for (std::size_t layer = 0; layer < plan.shape().layers; ++layer)
      held += plan.shape().kv_heads * std::min(tokens, plan.window(layer));
    const double rows = static_cast<double>(held) / static_cast<double>(plan.shape().heads() * tokens);
    ratios.add({std::to_string(tokens), std::to_string(recent),
                std::to_string(tokens - std::min(tokens, chosen.sinks + recent)), fixed(rows, 3),
                fixed(1 / rows, 2) + "x"});
  }
  ratios.print();
  std::printf("\n%s\n", chosen.output.c_str());
}

}  // namespace

void add_plan(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  CLI::App* command = program.add_subcommand("plan", "choose the retrieval heads");
  command->add_option("-p,--profile", chosen->profile, "profile.tsv of the model")->required();
  command
      ->add_option("--rule", chosen->rule, "combined: rank by echo + induction; published: induction, and 1 % by echo")
      ->check(CLI::IsMember({"combined", "published"}))
      ->capture_default_str();
  command->add_option("--share", chosen->share, "share of the KV heads; where --auto starts")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--group", chosen->group, "how a KV head's query heads count together")
      ->check(CLI::IsMember({"sum", "max"}))
      ->capture_default_str();
  command->add_option("--sinks", chosen->sinks, "first rows that local heads keep")->capture_default_str();
  command->add_option("--min-recent", chosen->budget.min_recent, "recent rows that local heads keep at least")
      ->capture_default_str();
  command->add_option("--divisor", chosen->budget.divisor, "and at least tokens / divisor (0: no such share)")
      ->capture_default_str();
  command->add_option("-o", chosen->output, "plan file")->required();

  CLI::Option* automatic =
      command->add_flag("--auto", chosen->automatic,
                        "raise the share by 3 % of the heads until the needle is found as with the full cache");
  CLI::Option* model = command->add_option("-m,--model", chosen->common.model, "GGUF file, for --auto");
  automatic->needs(model);
  command->add_option("--length", chosen->length, "--auto: tokens of the needle's context")->capture_default_str();
  command->add_option("--trials", chosen->trials, "--auto: needles per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tolerance", chosen->tolerance, "--auto: exact answers it may lose")->capture_default_str();
  command->add_option("--limit", chosen->limit, "--auto: largest share to try")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--haystack", chosen->haystack, "--auto: text file (default: Debian's bible program)");
  chosen->common.add_running(*command);
  chosen->common.add_policies(*command);
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
