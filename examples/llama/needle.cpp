// SPDX-License-Identifier: MIT
// headwise-llama needle: is a number hidden in a long text still found, by each way to make the cache small?
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "haystack.hpp"
#include "needle_task.hpp"
#include "picture.hpp"
#include "statistics.hpp"
#include "table.hpp"
#include "tool.hpp"

namespace headwise_llama {
namespace {

struct options {
  common_options common;
  std::string plan;
  std::vector<std::size_t> lengths = {4000};
  std::size_t depths = 10;
  std::vector<std::size_t> keys = {1};
  std::size_t trials = 1;
  std::vector<std::string> methods = {"full", "razor", "none", "moment", "random", "local"};
  std::vector<std::string> other_plans;
  bool query_seen = false;
  std::string haystack;
  std::string output;
};

/// The outcomes of one length and number of keys: [method][trial], trials of one depth side by side.
struct cell {
  std::size_t length;
  std::size_t keys;
  std::vector<std::vector<needle_outcome>> outcomes;
};

template <class Field>
std::vector<double> column(const std::vector<needle_outcome>& outcomes, Field&& field) {
  std::vector<double> values;
  for (const needle_outcome& outcome : outcomes) values.push_back(static_cast<double>(field(outcome)));
  return values;
}
std::vector<double> exact_column(const std::vector<needle_outcome>& outcomes) {
  return column(outcomes, [](const needle_outcome& o) { return o.exact ? 1.0 : 0.0; });
}

cell run_cell(runner& model, const std::vector<std::string>& sentences, const std::vector<method>& methods,
              const headwise::plan_file& plan, const options& chosen, std::size_t length, std::size_t keys,
              progress_line& line) {
  cell result{length, keys, std::vector<std::vector<needle_outcome>>(methods.size())};
  for (std::size_t depth = 0; depth < chosen.depths; ++depth)
    for (std::size_t trial = 0; trial < chosen.trials; ++trial) {
      const std::size_t index = depth * chosen.trials + trial;
      needle_case test;
      test.length = length;
      test.depth = needle_depth(depth, chosen.depths);
      test.keys = keys;
      test.seed = chosen.common.seed + index;
      const needle_prompt prompt = make_needle_prompt(model.model(), sentences, test);
      const auto outcomes =
          run_needle(model, prompt, methods, {plan, chosen.common.chosen_compensation(), test.seed}, chosen.query_seen);
      for (std::size_t m = 0; m < methods.size(); ++m) result.outcomes[m].push_back(outcomes[m]);
      line.show(index + 1, chosen.depths * chosen.trials);
    }
  return result;
}

heat_map map_of(const method& method, std::size_t m, const std::vector<cell>& cells, const options& chosen) {
  heat_map map;
  map.title = method.name + ": digits found";
  map.x_label = "tokens, keys";
  map.y_label = "depth";
  map.values.assign(chosen.depths, std::vector<double>(cells.size()));
  for (std::size_t depth = 0; depth < chosen.depths; ++depth)
    map.y_names.push_back(fixed(needle_depth(depth, chosen.depths), 2));
  for (std::size_t x = 0; x < cells.size(); ++x) {
    map.x_names.push_back(std::to_string(cells[x].length) + ", " + std::to_string(cells[x].keys));
    for (std::size_t depth = 0; depth < chosen.depths; ++depth)
      for (std::size_t trial = 0; trial < chosen.trials; ++trial)
        map.values[depth][x] +=
            cells[x].outcomes[m][depth * chosen.trials + trial].digits / static_cast<double>(chosen.trials);
  }
  return map;
}

void run(const options& chosen) {
  const output_folder folder(chosen.output);
  std::vector<method> methods = methods_named(chosen.methods);
  runner model(chosen.common);
  const headwise::plan_file plan = plan_for(model.model(), chosen.plan);
  for (const std::string& other : chosen.other_plans)
    methods.push_back(other_plan(other, plan_for(model.model(), other)));
  const std::vector<std::string> sentences = haystack_sentences(chosen.haystack);
  const std::size_t longest = *std::max_element(chosen.lengths.begin(), chosen.lengths.end());
  if (longest + 128 > model.model().context_length())
    headwise::detail::fail("--length: found ", longest, ", and 128 more for the question, but the model's context is ",
                           model.model().context_length());
  std::printf(
      "%s: %s\nplan %s: %zu retrieval heads, %zu sinks, recent rows max(%zu, tokens / %zu), rows in %s; question "
      "%s\n\n",
      model.model().path().c_str(), to_string(model.shape()).c_str(), chosen.plan.c_str(),
      plan.plan.retrieval_heads().size(), plan.plan.sinks(), plan.budget.min_recent, plan.budget.divisor,
      chosen.common.rows.c_str(), chosen.query_seen ? "seen before compression" : "hidden until after compression");

  table summary({"method", "length", "keys", "trials", "exact", "exact_low", "exact_high", "digits", "nll", "kl",
                 "bytes", "dense_bytes", "razor_minus", "razor_minus_low", "razor_minus_high"});
  table trials({"method", "length", "keys", "depth", "trial", "exact", "digits", "nll", "kl", "bytes"});
  std::vector<cell> cells;
  progress_line line("", chosen.common.quiet);
  for (const std::size_t length : chosen.lengths)
    for (const std::size_t keys : chosen.keys) {
      line.rename("needle: " + std::to_string(length) + " tokens, " + std::to_string(keys) + " keys, trial");
      cells.push_back(run_cell(model, sentences, methods, plan, chosen, length, keys, line));
      const cell& found = cells.back();
      const std::vector<double>* razor = nullptr;
      std::vector<std::vector<double>> exact;
      for (std::size_t m = 0; m < methods.size(); ++m) exact.push_back(exact_column(found.outcomes[m]));
      for (std::size_t m = 0; m < methods.size(); ++m)
        if (methods[m].name == "razor") razor = &exact[m];
      for (std::size_t m = 0; m < methods.size(); ++m) {
        const auto& outcomes = found.outcomes[m];
        std::size_t hits = 0;
        for (const needle_outcome& outcome : outcomes) hits += outcome.exact ? 1 : 0;
        const estimate share = proportion(hits, outcomes.size());
        const bool paired = razor != nullptr && razor != &exact[m];
        const estimate lead = paired ? paired_mean(*razor, exact[m]) : estimate{};
        summary.add({methods[m].name, std::to_string(length), std::to_string(keys), std::to_string(outcomes.size()),
                     fixed(share.mean, 3), fixed(share.low, 3), fixed(share.high, 3),
                     fixed(mean_of(column(outcomes, [](const auto& o) { return o.digits; })), 3),
                     fixed(mean_of(column(outcomes, [](const auto& o) { return o.nll; })), 3),
                     fixed(mean_of(column(outcomes, [](const auto& o) { return o.kl; })), 4),
                     fixed(mean_of(column(outcomes, [](const auto& o) { return o.bytes; })), 0),
                     fixed(mean_of(column(outcomes, [](const auto& o) { return o.dense_bytes; })), 0),
                     paired ? fixed(lead.mean, 3) : "-", paired ? fixed(lead.low, 3) : "-",
                     paired ? fixed(lead.high, 3) : "-"});
        for (std::size_t i = 0; i < outcomes.size(); ++i)
          trials.add({methods[m].name, std::to_string(length), std::to_string(keys),
                      fixed(needle_depth(i / chosen.trials, chosen.depths), 3), std::to_string(i % chosen.trials),
                      outcomes[i].exact ? "1" : "0", fixed(outcomes[i].digits, 3), fixed(outcomes[i].nll, 4),
                      fixed(outcomes[i].kl, 5), std::to_string(outcomes[i].bytes)});
      }
      say_if_nothing_folds(plan, length);
    }
  line.finish();
  summary.print();
  std::printf(
      "\nexact: all digits of the answer, with its 95 %% interval; nll: per answer token; kl: full cache against the "
      "method\n"
      "over question and answer, nats; razor_minus: exact answers of razor less the method's, paired, 95 %% "
      "bootstrap.\n\n");
  summary.write(folder.file("needle.tsv"));
  trials.write(folder.file("needle_trials.tsv"));
  std::printf("%s\n%s\n", folder.file("needle.tsv").c_str(), folder.file("needle_trials.tsv").c_str());
  std::vector<heat_map> maps;
  for (std::size_t m = 0; m < methods.size(); ++m) maps.push_back(map_of(methods[m], m, cells, chosen));
  if (draw_heat_maps(folder.file("needle.png"), maps, std::min<std::size_t>(3, maps.size()), 0.0, 1.0))
    std::printf("%s\n", folder.file("needle.png").c_str());
}

}  // namespace

void add_needle(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  CLI::App* command = program.add_subcommand("needle", "is a hidden number still found?");
  chosen->common.add_model(*command);
  chosen->common.add_policies(*command);
  command->add_option("-p,--plan", chosen->plan, "plan file")->required();
  command->add_option("--length", chosen->lengths, "tokens of the context, several with commas")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--depths", chosen->depths, "places of the needle, evenly spread")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--keys", chosen->keys, "needles in the text, several numbers with commas; one is asked for")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--trials", chosen->trials, "trials per depth")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  std::string known = "with commas:";
  for (const method& each : all_methods()) known += "\n" + each.name + ": " + each.meaning;
  command->add_option("--methods", chosen->methods, known)->delimiter(',');
  command->add_option("--other-plan", chosen->other_plans,
                      "plan files to compare with, each a method named after its file");
  command->add_flag("--query-seen", chosen->query_seen, "compress after the question instead of before it");
  command->add_option("--haystack", chosen->haystack, "text file (default: Debian's bible program)");
  command->add_option("-o", chosen->output, "folder for needle.tsv, needle_trials.tsv and needle.png")->required();
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
