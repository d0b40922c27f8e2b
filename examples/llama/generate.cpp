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
  bool full = false;
  std::string output;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const options& chosen) {
  if (chosen.file.empty() == chosen.text.empty())
    headwise::detail::fail("generate: expected a prompt, either as text or as a file with -f");
  const std::string text = chosen.file.empty() ? chosen.text : headwise::read_text_file(chosen.file);
  if (chosen.plan.empty() && !chosen.full)
    headwise::detail::fail("generate: expected a plan (-p), or --full for the full cache");
  if (chosen.generation.draft > chosen.reserve)
    headwise::detail::fail("--draft: found ", chosen.generation.draft, ", expected at most the ", chosen.reserve,
                           " of --reserve");
  std::optional<output_folder> folder;
  if (!chosen.output.empty()) folder.emplace(chosen.output);
  runner model(chosen.common);
  const engine& engine = model.model();
  policies chosen_policies = full_policies(engine);
  if (!chosen.full) {
    const headwise::plan_file plan = plan_for(engine, chosen.plan);
    chosen_policies = {plan.plan, plan.budget, chosen.common.chosen_compensation()};
  }

  const engine::chat_frame frame = engine.chat();
  std::vector<token> prompt = engine.tokenize(frame.before, true, true);
  const auto append = [&](const std::vector<token>& more) { prompt.insert(prompt.end(), more.begin(), more.end()); };
  append(engine.tokenize(text, false, false));
  append(engine.tokenize(frame.after, false, true));
  if (prompt.size() >= engine.context_length())
    headwise::detail::fail("generate: the prompt has ", prompt.size(),
                           " tokens, expected fewer than the model's context of ", engine.context_length());

  headwise::cache_options cache_options;
  cache_options.rollback_reserve = chosen.reserve;
  any_cache cache =
      copy_with(model.full_cache(headwise::when_to_compress::after_prompt, cache_options), chosen_policies);
  progress_line line("generate: prompt tokens", chosen.common.quiet);
  const auto start = std::chrono::steady_clock::now();
  const logit_rows logits = model.decode(cache, prompt, logits_of::last,
                                         [&](std::size_t done, std::size_t total) { line.show(done, total); });
  const double prompt_seconds = seconds_since(start);
  cache.compress();
  line.finish();

  const auto decode_start = std::chrono::steady_clock::now();
  const generation_counts made =
      generate(model, cache, prompt, logits, chosen.generation, [&](token next, const float*) {
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
  std::printf("\nprompt: %zu tokens, %s tokens/s; decode: %zu tokens, %s tokens/s\n", prompt.size(),
              fixed(static_cast<double>(prompt.size()) / prompt_seconds, 1).c_str(), made.decoded,
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
                count(report.dropped), fixed(static_cast<double>(prompt.size()) / prompt_seconds, 1),
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
  command->add_flag("--full", chosen->full, "keep every row of every head");
  command->add_option("-o", chosen->output, "folder for generate.tsv");
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
