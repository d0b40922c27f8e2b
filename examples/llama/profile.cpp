// SPDX-License-Identifier: MIT
// headwise-llama profile: which heads look back at what came before? A probe of random tokens, repeated, answers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "commands.hpp"
#include "picture.hpp"
#include "table.hpp"
#include "tool.hpp"

namespace headwise_llama {
namespace {

struct options {
  common_options common;
  std::size_t block = 500;
  std::size_t repeats = 4;
  std::string tokens;
  std::string output;
};

/// Token ids separated by white space: the prefix token, then the block.
headwise::repeated_tokens probe_from_file(const std::string& path, std::size_t repeats, std::size_t vocabulary) {
  const std::string text = headwise::read_text_file(path);
  std::vector<token> ids;
  for (std::size_t i = 0, line = 1; i < text.size();) {
    if (text[i] == '\n') ++line;
    if (text[i] == '\n' || text[i] == ' ' || text[i] == '\t' || text[i] == '\r') {
      ++i;
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(" \t\r\n", i), text.size());
    const std::string field = text.substr(i, end - i);
    const auto id = headwise::detail::parse_count(field);
    if (!id || *id >= vocabulary)
      headwise::detail::fail(path, ":", line, ": found '", field, "', expected a token id below ", vocabulary);
    ids.push_back(static_cast<token>(*id));
    i = end;
  }
  if (ids.size() < 2)
    headwise::detail::fail(path, ": found ", ids.size(), " token ids, expected the prefix token and a block");
  return headwise::repeated_tokens::from_block({ids.begin() + 1, ids.end()}, repeats, ids.front());
}

heat_map map_of(const headwise::model_shape& shape, const std::string& name, const std::vector<double>& scores) {
  heat_map map;
  map.title = name + " score of each KV head (sum over its query heads)";
  map.x_label = "layer";
  map.y_label = "KV head";
  map.values.assign(shape.kv_heads, std::vector<double>(shape.layers));
  for (std::size_t i = 0; i < scores.size(); ++i) map.values[i % shape.kv_heads][i / shape.kv_heads] = scores[i];
  for (std::size_t layer = 0; layer < shape.layers; ++layer) map.x_names.push_back(std::to_string(layer));
  for (std::size_t head = 0; head < shape.kv_heads; ++head) map.y_names.push_back(std::to_string(head));
  return map;
}

void run(const options& chosen) {
  const output_folder folder(chosen.output);
  runner model(chosen.common);
  const headwise::model_shape& shape = model.shape();
  const headwise::vocabulary vocabulary{model.model().ordinary_tokens(), model.model().first_token()};
  const headwise::repeated_tokens probe =
      chosen.tokens.empty() ? headwise::repeated_tokens(vocabulary, chosen.block, chosen.repeats, chosen.common.seed)
                            : probe_from_file(chosen.tokens, chosen.repeats, model.model().vocabulary_size());
  std::printf("%s: %s\nprobe: %zu tokens x %zu%s\n", model.model().path().c_str(), to_string(shape).c_str(),
              probe.block(), probe.repeats(), probe.prefix_length() == 0 ? "" : " after one prefix token");
  const std::size_t in_full = heads_in_full(model.model().plan(headwise::head_role::local));
  if (in_full != shape.heads())
    std::printf("%zu layers see only a window, and are not scored\n", shape.layers - in_full / shape.kv_heads);

  progress_line line("profile: tokens", chosen.common.quiet);
  const headwise::head_scores scores =
      model.score(probe, [&](std::size_t done, std::size_t total) { line.show(done, total); });
  headwise::write_profile(
      folder.file("profile.tsv"), scores,
      {{"model", model.model().path()},
       {"description", model.model().description()},
       {"block", std::to_string(probe.block())},
       {"repeats", std::to_string(probe.repeats())},
       {"tokens", chosen.tokens.empty() ? "seed " + std::to_string(chosen.common.seed) : chosen.tokens}});

  using headwise::detail::kv_head_scores;
  const auto echo = kv_head_scores(scores, {"echo"}, headwise::head_group::sum);
  const auto induction = kv_head_scores(scores, {"induction"}, headwise::head_group::sum);
  std::vector<std::size_t> order(echo.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return echo[a] + induction[a] > echo[b] + induction[b]; });
  table top({"rank", "layer", "kv_head", "echo", "induction", "echo+induction"});
  for (std::size_t rank = 0; rank < std::min<std::size_t>(16, order.size()); ++rank) {
    const std::size_t i = order[rank];
    top.add({std::to_string(rank + 1), std::to_string(i / shape.kv_heads), std::to_string(i % shape.kv_heads),
             fixed(echo[i], 3), fixed(induction[i], 3), fixed(echo[i] + induction[i], 3)});
  }
  std::printf("\nThe heads that look back most (sums over the query heads of a KV head):\n");
  top.print();
  std::printf("\n%s\n", folder.file("profile.tsv").c_str());

  double highest = 0.0;
  for (std::size_t i = 0; i < echo.size(); ++i) highest = std::max({highest, echo[i], induction[i]});
  if (draw_heat_maps(folder.file("heads.png"), {map_of(shape, "induction", induction), map_of(shape, "echo", echo)}, 1,
                     0.0, highest))
    std::printf("%s\n", folder.file("heads.png").c_str());
}

}  // namespace

void add_profile(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  CLI::App* command = program.add_subcommand("profile", "score every head with a synthetic probe");
  chosen->common.add_model(*command);
  CLI::Option* block =
      command->add_option("--block", chosen->block, "random tokens in the block")->capture_default_str();
  command->add_option("--repeats", chosen->repeats, "copies of the block")->capture_default_str();
  command->add_option("--tokens", chosen->tokens, "file of token ids instead: the prefix token, then the block")
      ->excludes(block);
  command->add_option("-o", chosen->output, "folder for profile.tsv and heads.png")->required();
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
