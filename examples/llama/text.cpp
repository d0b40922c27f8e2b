// SPDX-License-Identifier: MIT
// headwise-llama text: how well does the model continue plain text after its context was compressed?
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "haystack.hpp"
#include "statistics.hpp"
#include "table.hpp"
#include "tool.hpp"

namespace headwise_llama {
namespace {

struct options {
  common_options common;
  std::string plan;
  std::string file;
  std::size_t length = 4000;
  std::size_t tokens = 128;
  std::size_t contexts = 8;
  std::vector<std::string> methods = {"full", "razor", "none", "moment", "random", "local"};
  std::string output;
};

struct measured {  // per context
  std::vector<double> nll;
  std::vector<double> kl;
  std::vector<double> bytes;
  std::vector<double> dense_bytes;
};

void run(const options& chosen) {
  std::optional<output_folder> folder;
  if (!chosen.output.empty()) folder.emplace(chosen.output);
  const std::vector<method> methods = methods_named(chosen.methods);
  runner model(chosen.common);
  const headwise::plan_file plan = plan_for(model.model(), chosen.plan);
  const auto contexts = haystack_contexts(model.model(), chosen.file, chosen.length, chosen.tokens, chosen.contexts);

  std::vector<measured> found(methods.size());
  progress_line line("text: context", chosen.common.quiet);
  for (std::size_t i = 0; i < chosen.contexts; ++i) {
    const std::vector<token>& context = contexts[i];
    const token_span all_tokens(context);
    any_cache full = model.full_cache();
    model.decode(full, all_tokens.part(0, chosen.length), logits_of::none);
    logit_rows reference;
    for (std::size_t m = 0; m < methods.size(); ++m) {
      any_cache cache =
          compressed_copy(full, methods[m].choose({plan, chosen.common.chosen_compensation(), chosen.common.seed + i}));
      const logit_rows logits = model.decode(cache, all_tokens.part(chosen.length, chosen.tokens), logits_of::all);
      if (m == 0) reference = logits;
      double nll = 0.0;
      double kl = 0.0;
      for (std::size_t row = 0; row < logits.size(); ++row) {
        kl += divergence(reference[row], logits[row], logits.vocabulary);
        if (row + 1 < logits.size())
          nll += negative_log_likelihood(logits[row], logits.vocabulary, context[chosen.length + row + 1]);
      }
      const auto held = cache.report();
      found[m].nll.push_back(nll / static_cast<double>(logits.size() - 1));
      found[m].kl.push_back(kl / static_cast<double>(logits.size()));
      found[m].bytes.push_back(static_cast<double>(held.held_bytes()));
      found[m].dense_bytes.push_back(static_cast<double>(held.dense_bytes));
    }
    line.show(i + 1, chosen.contexts);
  }
  line.finish();

  const measured* none = nullptr;
  for (std::size_t m = 0; m < methods.size(); ++m)
    if (methods[m].name == "none") none = &found[m];
  table summary({"method", "length", "tokens", "nll", "kl", "bytes", "dense_bytes", "perplexity", "kl_low", "kl_high",
                 "kl_minus_none", "kl_minus_none_low", "kl_minus_none_high"});
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const estimate kl = paired_mean(found[m].kl);
    const bool paired = none != nullptr && none != &found[m];
    const estimate lead = paired ? paired_mean(found[m].kl, none->kl) : estimate{};
    const double nll = mean_of(found[m].nll);
    summary.add({methods[m].name, std::to_string(chosen.length), std::to_string(chosen.tokens * chosen.contexts),
                 fixed(nll, 4), fixed(kl.mean, 4), fixed(mean_of(found[m].bytes), 0),
                 fixed(mean_of(found[m].dense_bytes), 0), fixed(std::exp(nll), 3), fixed(kl.low, 4), fixed(kl.high, 4),
                 paired ? fixed(lead.mean, 4) : "-", paired ? fixed(lead.low, 4) : "-",
                 paired ? fixed(lead.high, 4) : "-"});
  }
  std::printf("%s: %s\n%zu contexts of %zu tokens, compressed, then %zu tokens of the text\n\n",
              model.model().path().c_str(), to_string(model.shape()).c_str(), chosen.contexts, chosen.length,
              chosen.tokens);
  summary.print();
  std::printf(
      "\nnll and kl per token, nats; kl: full cache against the method, with its 95 %% interval over contexts;\n"
      "kl_minus_none: paired difference to dropping what leaves.\n\n");
  if (folder) {
    summary.write(folder->file("text.tsv"));
    std::printf("%s\n", folder->file("text.tsv").c_str());
  }
  say_if_nothing_folds(plan, chosen.length);
}

}  // namespace

void add_text(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  CLI::App* command = program.add_subcommand("text", "how well does plain text go on after a compressed context?");
  chosen->common.add_model(*command);
  chosen->common.add_policies(*command);
  command->add_option("-p,--plan", chosen->plan, "plan file")->required();
  command->add_option("-f,--file", chosen->file, "text file (default: Debian's bible program)");
  command->add_option("--length", chosen->length, "tokens of a context")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tokens", chosen->tokens, "tokens that follow it")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--contexts", chosen->contexts, "contexts, spread over the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--methods", chosen->methods, "with commas, as for needle")->delimiter(',');
  command->add_option("-o", chosen->output, "folder for text.tsv");
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
