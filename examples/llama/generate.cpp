// SPDX-License-Identifier: MIT
// headwise-llama generate: an answer to a long prompt, from the compressed cache.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "generation.hpp"
#include "prompt_file.hpp"
#include "table.hpp"
#include "tool.hpp"

namespace headwise_llama {
namespace {

struct options {
  common_options common;
  std::string plan;
  std::string file;
  std::string text;
  generation_options generation;
  std::size_t reserve = 64;
  std::string save;
  std::string load;
  bool full = false;
  std::string output;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The prompt as a user's message.
std::vector<token> tokens_of(const engine& model, const std::string& text) {
  const engine::chat_frame frame = model.chat();
  std::vector<token> tokens = model.tokenize(frame.before, true, true);
  const auto append = [&](const std::vector<token>& more) { tokens.insert(tokens.end(), more.begin(), more.end()); };
  append(model.tokenize(text, false, false));
  append(model.tokenize(frame.after, false, true));
  if (tokens.size() >= model.context_length())
    headwise::detail::fail("generate: the prompt has ", tokens.size(),
                           " tokens, expected fewer than the model's context of ", model.context_length());
  return tokens;
}

void run(const options& chosen) {
  int prompts = 0;
  for (const std::string* each : {&chosen.file, &chosen.text, &chosen.load}) prompts += each->empty() ? 0 : 1;
  if (prompts != 1)
    headwise::detail::fail("generate: expected a prompt, as text, as a file with -f, or saved before with --load");
  const std::string text = chosen.file.empty() ? chosen.text : headwise::read_text_file(chosen.file);
  if (chosen.plan.empty() && !chosen.full)
    headwise::detail::fail("generate: expected a plan (-p), or --full for the full cache");
  if (chosen.generation.draft > chosen.reserve)
    headwise::detail::fail("--draft: found ", chosen.generation.draft, ", expected at most the ", chosen.reserve,
                           " of --reserve");
  std::optional<output_folder> folder;
  if (!chosen.output.empty()) folder.emplace(chosen.output);
  if (!chosen.save.empty()) check_writable(chosen.save);
  runner model(chosen.common);
  const engine& engine = model.model();
  policies chosen_policies = full_policies(engine);
  if (!chosen.full) {
    const headwise::plan_file plan = plan_for(engine, chosen.plan);
    chosen_policies = {plan.plan, plan.budget, chosen.common.chosen_compensation()};
  }

  headwise::cache_options cache_options;
  cache_options.rollback_reserve = chosen.reserve;
  any_cache cache =
      copy_with(model.full_cache(headwise::when_to_compress::after_prompt, cache_options), chosen_policies);
  progress_line line("generate: prompt tokens", chosen.common.quiet);
  prompt_state prompt;
  if (chosen.load.empty()) prompt.tokens = tokens_of(engine, text);
  const auto start = std::chrono::steady_clock::now();
  if (chosen.load.empty()) {
    prompt.logits = model.decode(cache, prompt.tokens, logits_of::last,
                                 [&](std::size_t done, std::size_t total) { line.show(done, total); });
    cache.compress();
  } else {
    prompt = load_prompt(chosen.load, engine, cache);
  }
  const double prompt_seconds = seconds_since(start);
  line.finish();
  if (!chosen.save.empty()) save_prompt(chosen.save, engine, prompt, cache);

  const auto decode_start = std::chrono::steady_clock::now();
  const generation_counts made =
      generate(model, cache, prompt.tokens, prompt.logits, chosen.generation, [&](token next, const float*) {
        const std::string piece = engine.piece(next);
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      });
  const double decode_seconds = seconds_since(decode_start);
  std::printf("\n\n");

  const headwise::cache_report report = cache.report();
  table summary({"", "this cache", "dense cache"});
  summary.add({"bytes held", bytes_text(report.held_bytes()), bytes_text(report.dense_bytes)});
  summary.add({"  of rows", bytes_text(report.row_bytes), ""});
  summary.add({"  of page slack", bytes_text(report.slack_bytes), ""});
  summary.add({"  of rows for rolling back", bytes_text(report.reserve_bytes), ""});
  summary.add({"  of spare pages", bytes_text(report.spare_bytes), ""});
  summary.add({"  of summaries", bytes_text(report.summary_bytes), ""});
  summary.add({"rows kept", std::to_string(report.rows), std::to_string(report.tokens * model.shape().heads())});
  summary.add({"rows folded", std::to_string(report.folded), ""});
  summary.add({"rows dropped", std::to_string(report.dropped), ""});
  summary.print();
  const std::string prompt_tps = fixed(static_cast<double>(prompt.tokens.size()) / prompt_seconds, 1);
  std::printf("\n%s: %zu tokens, %s tokens/s; decode: %zu tokens, %s tokens/s\n",
              chosen.load.empty() ? "prompt" : "loaded", prompt.tokens.size(), prompt_tps.c_str(), made.decoded,
              made.decoded == 0 ? "-" : fixed(static_cast<double>(made.decoded) / decode_seconds, 1).c_str());
  if (chosen.generation.draft != 0)
    std::printf("drafted: %zu tokens, %zu of them accepted, in %zu passes with %zu rollbacks\n", made.drafted,
                made.accepted, made.passes, made.rollbacks);
  if (folder) {
    table totals({"tokens", "bytes", "dense_bytes", "row_bytes", "slack_bytes", "summary_bytes", "rows", "folded",
                  "dropped", "prompt_tps", "decode_tps", "reserve_bytes", "spare_bytes", "drafted", "accepted"});
    const auto count = [](std::size_t n) { return std::to_string(n); };
    totals.add({count(report.tokens), count(report.held_bytes()), count(report.dense_bytes), count(report.row_bytes),
                count(report.slack_bytes), count(report.summary_bytes), count(report.rows), count(report.folded),
                count(report.dropped), prompt_tps,
                made.decoded == 0 ? "-" : fixed(static_cast<double>(made.decoded) / decode_seconds, 1),
                count(report.reserve_bytes), count(report.spare_bytes), count(made.drafted), count(made.accepted)});
    totals.write(folder->file("generate.tsv"));
    std::printf("%s\n", folder->file("generate.tsv").c_str());
  }
  if (made.tokens < chosen.generation.tokens && cache.length() == engine.context_length())
    std::fprintf(stderr, "stopped at the model's context of %zu tokens\n", engine.context_length());
}

}  // namespace

void add_generate(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  CLI::App* command = program.add_subcommand("generate", "answer a prompt from the compressed cache");
  chosen->common.add_model(*command);
  chosen->common.add_policies(*command);
  command->add_option("-p,--plan", chosen->plan, "plan file");
  command->add_option("-f,--file", chosen->file, "file with the prompt");
  command->add_option("prompt", chosen->text, "the prompt itself");
  command->add_option("-n", chosen->generation.tokens, "most tokens to generate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--draft", chosen->generation.draft,
                   "guess so many tokens ahead from what came before, and verify them in one pass")
      ->capture_default_str();
  command->add_option("--reserve", chosen->reserve, "tokens that can be rolled back, at least --draft")
      ->capture_default_str();
  command->add_option("--save", chosen->save, "file for the compressed cache of the prompt, to go on from later");
  command->add_option("--load", chosen->load,
                      "go on from such a file, in place of a prompt: same model, plan and options");
  command->add_flag("--full", chosen->full, "keep every row of every head");
  command->add_option("-o", chosen->output, "folder for generate.tsv");
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
