// SPDX-License-Identifier: MIT
// headwise-llama certificate: how far are the outputs of compressed heads from those of the full cache, and how far
// does a certificate say they may be?
#include "headwise/attend/certificate.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>
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
  std::size_t tokens = 16;
  std::size_t contexts = 4;
  std::string output;
};

/// What was found about the outputs of heads of one role; each list has an entry per output.
struct measured {
  std::vector<double> output;  // how long the full cache's is
  std::vector<double> error;
  std::vector<double> bound;
  std::vector<double> ratio;
  std::size_t exceeded = 0;
  std::size_t none = 0;
};

double distance(const float* a, const float* b, std::size_t size) {
  double sum = 0.0;
  for (std::size_t i = 0; i < size; ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum);
}

void run(const options& chosen) {
  std::optional<output_folder> folder;
  if (!chosen.output.empty()) folder.emplace(chosen.output);
  runner model(chosen.common);
  const headwise::model_shape& shape = model.shape();
  const headwise::plan_file plan = plan_for(model.model(), chosen.plan);
  const auto contexts = haystack_contexts(model.model(), chosen.file, chosen.length, chosen.tokens, chosen.contexts);
  const headwise::bounded_compensation<headwise::any_compensation> compensation(chosen.common.chosen_compensation());

  std::map<headwise::head_role, measured> found;
  headwise::attend_schedule schedule;
  headwise::openmp executor;
  if (chosen.common.threads != 0) executor.threads = chosen.common.threads;
  const std::vector<float> zeros(shape.value_size());
  std::vector<float> outputs(chosen.common.chunk * shape.query_heads * shape.value_size());
  progress_line line("certificate: context", chosen.common.quiet);
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const token_span tokens(contexts[i]);
    any_cache full = model.full_cache();
    model.decode(full, tokens.part(0, chosen.length), logits_of::none);
    auto compressed = full.with(plan.plan, plan.budget, compensation);
    compressed.compress();

    // The model goes on from the full cache; the compressed one is asked the same queries.
    const auto compare = [&](const attention_call& call) {
      full.append(call.layer, call.k, call.v);
      compressed.append(call.layer, call.k, call.v);
      headwise::attend(full, call.layer, call.q, call.out, schedule, executor, call.params);
      headwise::attend(compressed, call.layer, call.q,
                       headwise::packed_output(outputs.data(), call.q.tokens, shape.query_heads, shape.value_size()),
                       schedule, executor, call.params);
      const auto bounds = headwise::certificate(compressed, call.layer, call.q, call.params);
      for (std::size_t j = 0; j < bounds.size(); ++j) {
        const std::size_t head = j % shape.query_heads;
        measured& of = found[plan.plan.role({call.layer, head / shape.group()})];
        const float* const exact =
            call.out.data + j / shape.query_heads * call.out.token_stride + head * call.out.head_stride;
        of.output.push_back(distance(exact, zeros.data(), zeros.size()));
        of.error.push_back(distance(exact, outputs.data() + j * zeros.size(), zeros.size()));
        if (!bounds[j]) {
          ++of.none;
          continue;
        }
        of.bound.push_back(*bounds[j]);
        if (of.error.back() > 0.0) of.ratio.push_back(*bounds[j] / of.error.back());
        // attend rounds to float32, which a certificate leaves out
        of.exceeded += of.error.back() > *bounds[j] + 1e-4 * (1.0 + of.output.back());
      }
    };
    model.decode(compare, tokens.part(chosen.length, chosen.tokens), chosen.length, logits_of::none);
    line.show(i + 1, contexts.size());
  }
  line.finish();

  table summary({"heads", "outputs", "output_median", "error_median", "error_90", "error_max", "bound_median",
                 "bound_90", "bound_max", "ratio_median", "ratio_90", "ratio_max", "exceeded", "none"});
  for (const auto& [role, of] : found) {
    std::vector<std::string> row = {headwise::to_string(role), std::to_string(of.output.size()),
                                    fixed(quantile_of(of.output, 0.5), 3)};
    for (const std::vector<double>* list : {&of.error, &of.bound, &of.ratio})
      for (const double share : {0.5, 0.9, 1.0})
        row.push_back(list->empty() ? "-" : fixed(quantile_of(*list, share), list == &of.ratio ? 1 : 3));
    row.push_back(std::to_string(of.exceeded));
    row.push_back(std::to_string(of.none));
    summary.add(row);
  }
  std::printf("%s: %s\n%zu contexts of %zu tokens, compressed (%s), then the queries of %zu tokens more\n\n",
              model.model().path().c_str(), to_string(shape).c_str(), contexts.size(), chosen.length,
              chosen.common.compensation.c_str(), chosen.tokens);
  summary.print();
  std::printf(
      "\noutput, error, bound: Euclidean length of the full cache's output of a query head, its distance to the\n"
      "compressed cache's, and what the certificate says that distance is at most; ratio: bound over error.\n"
      "exceeded: errors above their bound. none: outputs without a certificate (rows were dropped).\n"
      "A bound is loose where the ranges of the folded rows allow what the rows themselves do not do: one key that\n"
      "outweighs the kept rows, with the farthest value. It is a guarantee, no estimate of the error.\n\n");
  if (folder) {
    summary.write(folder->file("certificate.tsv"));
    std::printf("%s\n", folder->file("certificate.tsv").c_str());
  }
  say_if_nothing_folds(plan, chosen.length);
}

}  // namespace

void add_certificate(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  CLI::App* command =
      program.add_subcommand("certificate", "how far are compressed heads' outputs off, and how far may they be?");
  chosen->common.add_model(*command);
  chosen->common.add_policies(*command);
  command->add_option("-p,--plan", chosen->plan, "plan file")->required();
  command->add_option("-f,--file", chosen->file, "text file (default: Debian's bible program)");
  command->add_option("--length", chosen->length, "tokens of a context")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tokens", chosen->tokens, "tokens that follow it, whose queries are compared")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--contexts", chosen->contexts, "contexts, spread over the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("-o", chosen->output, "folder for certificate.tsv");
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
