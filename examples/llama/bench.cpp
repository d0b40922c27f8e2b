// SPDX-License-Identifier: MIT
// headwise-llama bench: tokens per second and bytes of memory, against llama.cpp as it is.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench_run.hpp"
#include "commands.hpp"
#include "haystack.hpp"
#include "process.hpp"
#include "statistics.hpp"
#include "table.hpp"

namespace headwise_llama {
namespace {

struct options {
  bench_task task;  // of every process; engine and threads differ
  std::string file;
  std::size_t rounds = 5;
  std::vector<int> threads = {1, 0};
  std::vector<std::string> waits = {"passive", "active"};
  std::vector<std::string> engines = bench_engines();
  std::string output;
};

/// One row of the table: an engine at a number of threads and a wait policy, measured once in every round.
struct contest {
  std::string engine;
  int threads = 1;
  std::string wait;
  std::vector<bench_result> rounds;

  template <class Number>
  double median(Number bench_result::*field) const {
    std::vector<double> values;
    for (const bench_result& round : rounds) values.push_back(static_cast<double>(round.*field));
    return median_of(values);
  }
  double prompt_tps(std::size_t length) const {
    return static_cast<double>(length) / median(&bench_result::prompt_seconds);
  }
  double decode_tps() const { return 1e3 / median(&bench_result::token_ms); }
};

/// Half the distance between the fastest and the slowest round, as a share of the median.
double spread(const contest& row) {
  const auto slower = [](const bench_result& a, const bench_result& b) { return a.token_ms < b.token_ms; };
  const auto [least, most] = std::minmax_element(row.rounds.begin(), row.rounds.end(), slower);
  return (most->token_ms - least->token_ms) / 2 / row.median(&bench_result::token_ms);
}

std::string threads_text(int threads) { return std::to_string(threads) + (threads == 1 ? " thread" : " threads"); }

/// Where a row was measured. One thread waits for nobody: the policy does not matter.
std::string place(const contest& row) { return threads_text(row.threads) + (row.threads == 1 ? "" : ", " + row.wait); }

/// 0 means all; each number once, in the order given.
std::vector<int> resolved(const std::vector<int>& wanted) {
  std::vector<int> found;
  for (const int threads : wanted) {
    const int count = threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    if (std::find(found.begin(), found.end(), count) == found.end()) found.push_back(count);
  }
  return found;
}

std::vector<contest> all_contests(const options& chosen) {
  std::vector<contest> rows;
  for (const int threads : resolved(chosen.threads))
    for (const std::string& wait : chosen.waits)
      for (const std::string& engine : bench_engines()) {
        const bool wanted = std::find(chosen.engines.begin(), chosen.engines.end(), engine) != chosen.engines.end();
        if (wanted && (threads > 1 || wait == chosen.waits.front())) rows.push_back({engine, threads, wait, {}});
      }
  return rows;
}

/// The fastest row of an engine by a figure, at a number of threads (0: at any); none when it has no rows there.
template <class Figure>
const contest* fastest(const std::vector<contest>& rows, const std::string& engine, int threads, const Figure& figure) {
  const contest* best = nullptr;
  for (const contest& row : rows)
    if (row.engine == engine && (threads == 0 || row.threads == threads))
      if (best == nullptr || figure(row) > figure(*best)) best = &row;
  return best;
}

/// A figure over stock's, each at the faster of its wait policies (and, where threads is 0, at its fastest number of
/// threads); "-" where stock did not run.
template <class Figure>
std::string over_stock(const std::vector<contest>& rows, double value, int threads, const Figure& figure) {
  const contest* const stock = fastest(rows, "stock", threads, figure);
  return stock == nullptr ? "-" : fixed(value / figure(*stock), 3);
}

/// The prompt and the tokens that are decoded after it: the same for everybody.
std::vector<token> text_tokens(const options& chosen) {
  const engine model(chosen.task.common.model);  // let go before anything is measured
  plan_for(model, chosen.task.plan);             // refused here, before anything runs
  const std::size_t limit = model.context_length();
  const std::size_t length = chosen.task.length;
  const std::size_t decode = chosen.task.decode;
  if (length > limit || decode > limit - length)
    headwise::detail::fail("--length: found ", length, ", and ", decode, " more to decode, but the model's context is ",
                           limit);
  // A token is rarely longer than 16 bytes, and much text takes long to cut into tokens.
  std::string text;
  for (const std::string& sentence : haystack_sentences(chosen.file)) {
    if (text.size() > 16 * (length + decode)) break;
    text += sentence + " ";
  }
  std::vector<token> tokens = model.tokenize(text, false, false);
  if (tokens.size() < length + decode)
    headwise::detail::fail("text: ", tokens.size(), " tokens, expected at least ", length + decode,
                           " (--length + --decode)");
  tokens.resize(length + decode);
  if (const auto prefix = model.first_token()) tokens.front() = *prefix;
  return tokens;
}

/// Round after round, so that a machine that gets slower or faster in between does so for all.
void measure(const options& chosen, const std::vector<token>& tokens, std::vector<contest>& rows) {
  const nameless_file input, logits;
  write_at(input.descriptor(), tokens.data(), tokens.size() * sizeof(token), 0);
  const std::size_t runs = rows.size() * chosen.rounds + 1;
  std::size_t done = 0;
  progress_line line("", chosen.task.common.quiet);
  const auto run = [&](const std::string& engine, int threads, const std::string& wait) {
    bench_task task = chosen.task;
    task.engine = engine;
    task.common.threads = threads;
    line.rename("bench: " + engine + ", " + threads_text(threads) + ", " + wait + "; runs done");
    line.show(done++, runs, /*at_once*/ true);
    return run_bench_task(task, wait, input.descriptor(), logits.descriptor());
  };
  int most = 1;
  for (const contest& row : rows) most = std::max(most, row.threads);
  run("reference", most, "passive");
  for (std::size_t round = 0; round < chosen.rounds; ++round)
    for (contest& row : rows) row.rounds.push_back(run(row.engine, row.threads, row.wait));
}

/// Where the milliseconds of a decoded token go; none for engines without a hook, or without stock to compare with.
struct parts_of_token {
  std::optional<double> hook;
  std::optional<double> rest;
  std::optional<double> overhead;
};

parts_of_token parts(const std::vector<contest>& rows, const contest& row) {
  parts_of_token found;
  if (row.median(&bench_result::hook_ms) == 0) return found;
  found.hook = row.median(&bench_result::hook_ms);
  found.rest = row.median(&bench_result::rest_ms);
  for (const contest& other : rows)
    if (other.engine == "stock" && other.threads == row.threads && other.wait == row.wait)
      found.overhead = *found.rest - other.median(&bench_result::empty_ms);
  return found;
}

std::string number(const std::optional<double>& value, int digits) { return value ? fixed(*value, digits) : "-"; }

void print(const options& chosen, const std::vector<contest>& rows) {
  const std::size_t length = chosen.task.length;
  const auto prompt = [&](const contest& row) { return row.prompt_tps(length); };
  const auto decode = [](const contest& row) { return row.decode_tps(); };

  table speed({"engine", "at", "prompt tokens/s", "decode tokens/s", "+-", "cache", "peak memory", "logit difference"});
  for (const contest& row : rows)
    speed.add({row.engine, place(row), fixed(prompt(row), 1), fixed(decode(row), 2), fixed(100 * spread(row), 0) + "%",
               bytes_text(static_cast<std::size_t>(row.median(&bench_result::cache_bytes))),
               bytes_text(static_cast<std::size_t>(row.median(&bench_result::peak_bytes))),
               fixed(row.median(&bench_result::max_logit_diff), 3)});
  speed.print();

  std::printf("\nTokens per second over those of stock, each at the faster of its wait policies:\n\n");
  table ratios({"compared", "engine", "prompt", "prompt at", "decode", "decode at"});
  std::vector<int> compared = resolved(chosen.threads);
  const auto elsewhere = [&](const contest& row) { return place(row) != place(rows.front()); };
  if (std::any_of(rows.begin(), rows.end(), elsewhere)) compared.push_back(0);  // there is a choice to be fastest by
  for (const int threads : compared)
    for (const std::string& engine : bench_engines()) {
      const contest* const first = fastest(rows, engine, threads, prompt);
      const contest* const second = fastest(rows, engine, threads, decode);
      if (first == nullptr) continue;
      ratios.add({threads == 0 ? "each at its fastest" : threads_text(threads), engine,
                  over_stock(rows, prompt(*first), threads, prompt), place(*first),
                  over_stock(rows, decode(*second), threads, decode), place(*second)});
    }
  ratios.print();

  std::printf("\nWhere the milliseconds of a decoded token go:\n\n");
  table parts_table({"engine", "at", "token", "in headwise", "rest", "token at empty context", "overhead"});
  for (const contest& row : rows) {
    const parts_of_token spent = parts(rows, row);
    parts_table.add({row.engine, place(row), fixed(row.median(&bench_result::token_ms), 2), number(spent.hook, 2),
                     number(spent.rest, 2), fixed(row.median(&bench_result::empty_ms), 2), number(spent.overhead, 2)});
  }
  parts_table.print();
  std::printf(
      "\noverhead: rest - stock's token at an empty context, what the callback costs beside attention itself\n\n");
}

void write(const options& chosen, const std::vector<contest>& rows, const std::string& path) {
  const std::size_t length = chosen.task.length;
  const auto prompt = [&](const contest& row) { return row.prompt_tps(length); };
  const auto decode = [](const contest& row) { return row.decode_tps(); };
  table all(
      {"engine",         "length",  "threads", "prompt_tps",   "decode_tps",   "cache_bytes",       "peak_bytes",
       "max_logit_diff", "wait",    "rounds",  "prompt_ratio", "decode_ratio", "best_prompt_ratio", "best_decode_ratio",
       "decode_spread",  "hook_ms", "rest_ms", "empty_ms",     "overhead_ms",  "same_best",         "cpu_ms",
       "prompt_cpu_s"});
  for (const contest& row : rows) {
    const parts_of_token spent = parts(rows, row);
    // "-" where the engine is faster in another row: each side at its fastest is one row of the table.
    const bool best_prompt = fastest(rows, row.engine, 0, prompt) == &row;
    const bool best_decode = fastest(rows, row.engine, 0, decode) == &row;
    all.add({row.engine,
             std::to_string(length),
             std::to_string(row.threads),
             fixed(prompt(row), 2),
             fixed(decode(row), 3),
             fixed(row.median(&bench_result::cache_bytes), 0),
             fixed(row.median(&bench_result::peak_bytes), 0),
             fixed(row.median(&bench_result::max_logit_diff), 5),
             row.threads == 1 ? "any" : row.wait,
             std::to_string(row.rounds.size()),
             over_stock(rows, prompt(row), row.threads, prompt),
             over_stock(rows, decode(row), row.threads, decode),
             best_prompt ? over_stock(rows, prompt(row), 0, prompt) : "-",
             best_decode ? over_stock(rows, decode(row), 0, decode) : "-",
             fixed(spread(row), 3),
             number(spent.hook, 3),
             number(spent.rest, 3),
             fixed(row.median(&bench_result::empty_ms), 3),
             number(spent.overhead, 3),
             fixed(row.median(&bench_result::same_best), 3),
             fixed(row.median(&bench_result::cpu_ms), 3),
             fixed(row.median(&bench_result::prompt_cpu_seconds), 3)});
  }
  all.write(path);
  std::printf("%s\n", path.c_str());
}

void run(const options& chosen) {
  for (const std::string& engine : chosen.engines)
    if (std::find(bench_engines().begin(), bench_engines().end(), engine) == bench_engines().end())
      headwise::detail::fail("--engines: found '", engine,
                             "', expected some of stock, stock_noflash, full, compressed");
  const std::vector<token> tokens = text_tokens(chosen);
  std::optional<output_folder> folder;
  if (!chosen.output.empty()) folder.emplace(chosen.output);
  const headwise::plan_file plan = headwise::read_plan(chosen.task.plan, nullptr);
  say_if_nothing_folds(plan, chosen.task.length);

  std::vector<contest> rows = all_contests(chosen);
  measure(chosen, tokens, rows);
  std::printf(
      "%s: %s\n%zu tokens of text, then %zu decoded; medians of %zu rounds; %s rows; plan with %zu of %zu heads in "
      "full\n\n",
      chosen.task.common.model.c_str(), to_string(plan.plan.shape()).c_str(), chosen.task.length, chosen.task.decode,
      chosen.rounds, chosen.task.common.rows.c_str(), plan.plan.retrieval_heads().size(), plan.plan.shape().heads());
  print(chosen, rows);
  if (folder) write(chosen, rows, folder->file("bench.tsv"));
}

}  // namespace

void add_bench(CLI::App& program) {
  auto chosen = std::make_shared<options>();
  bench_task& task = chosen->task;
  CLI::App* command = program.add_subcommand("bench", "tokens per second and memory, against llama.cpp as it is");
  command->add_option("-m,--model", task.common.model, "GGUF file of a model with plain grouped-query attention")
      ->required();
  command->add_option("-p,--plan", task.plan, "plan file")->required();
  command->add_option("-f,--file", chosen->file, "text file (default: Debian's bible program)");
  command->add_option("--length", task.length, "tokens of the prompt")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--decode", task.decode, "tokens decoded after it, the text's own")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--rounds", chosen->rounds, "times that every row is measured, interleaved")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--threads", chosen->threads, "with commas (0: all)")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      ->add_option("--wait", chosen->waits,
                   "OMP_WAIT_POLICY where there is more than one thread, with commas (default: not set)")
      ->delimiter(',')
      ->check(CLI::IsMember({"active", "passive", "default"}))
      ->capture_default_str();
  command->add_option("--engines", chosen->engines, "with commas")->delimiter(',')->capture_default_str();
  command
      ->add_option("--chunk", task.common.chunk,
                   "tokens of the prompt per graph for full and compressed (stock: 512, as llama.cpp does)")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  task.common.add_rows(*command);
  task.common.add_policies(*command);
  command->add_option("--when", task.when, "when rows leave the compressed cache; every_append bounds peak memory")
      ->check(CLI::IsMember({"after_prompt", "every_append"}))
      ->capture_default_str();
  command->add_flag("--repack", task.common.repack, "let llama.cpp repack weights, in all engines");
  command->add_flag("-q,--quiet", task.common.quiet, "no progress");
  command->add_option("-o", chosen->output, "folder for bench.tsv");
  command->footer(
      "Engines: stock (llama.cpp with flash attention), stock_noflash, full (headwise, every row of every\n"
      "head), compressed (headwise, the plan). Each run is a process of its own, so peak memory is that\n"
      "engine's; rounds go through all engines in turn, and medians are printed. Which threads and which wait\n"
      "policy are best differs by engine and machine, so each engine is compared at equal threads and at its\n"
      "own fastest.\n"
      "\n"
      "Columns of bench.tsv:\n"
      "prompt_tps, decode_tps: tokens per second; a prompt includes compression, decoding is the median token.\n"
      "cache_bytes: keys and values held at the end, llama.cpp's own cells included. peak_bytes: resident\n"
      "  memory at its highest, mapped weights included.\n"
      "max_logit_diff: over the decoded tokens, to llama.cpp without flash attention and with a float32 cache.\n"
      "  same_best: share of tokens with the same best next token as there.\n"
      "prompt_ratio, decode_ratio: over stock at as many threads, stock at its faster wait policy. best_*: over\n"
      "  stock at its fastest, in the row where the engine is fastest.\n"
      "decode_spread: half of slowest minus fastest round, over the median.\n"
      "hook_ms, rest_ms: of a decoded token, the time in append and attend, and elsewhere. empty_ms: a token at\n"
      "  an empty context. overhead_ms: rest_ms minus stock's empty_ms, what the callback costs beside\n"
      "  attention.\n"
      "cpu_ms, prompt_cpu_s: processor time of all threads, a decoded token's and the prompt's.");
  command->callback([chosen] { run(*chosen); });
}

}  // namespace headwise_llama
