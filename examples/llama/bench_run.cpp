// SPDX-License-Identifier: MIT
// headwise-llama bench-run: one engine of a bench. Its process begins and ends with the measurement, so the peak of
// memory is the engine's own and OpenMP's wait policy can be chosen, which libgomp reads when it loads.
#include "bench_run.hpp"

#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <locale>
#include <memory>
#include <optional>
#include <sstream>

#include "commands.hpp"
#include "process.hpp"
#include "statistics.hpp"
#include "table.hpp"

namespace headwise_llama {
namespace {

constexpr const char* command_name = "bench-run";

/// What the engines have in common.
class contender {
 public:
  contender() = default;
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  virtual ~contender() = default;

  virtual void restart() = 0;  ///< an empty sequence
  virtual logit_rows decode(token_span tokens) = 0;
  virtual void end_prompt() {}
  virtual double attention_seconds() const { return 0.0; }
  virtual std::size_t cache_bytes() const = 0;
};

class stock : public contender {
 public:
  explicit stock(const bench_task& task)
      : engine_(task.common.model, task.common.loading()), session_(engine_, [&] {
          stock_options options;
          options.context = task.length + task.decode;
          options.chunk = 512;  // llama.cpp's own default
          options.threads = task.common.threads;
          options.flash_attention = task.engine == "stock";
          options.format = task.engine == "reference" ? cache_format::f32 : cache_format::f16;
          return options;
        }()) {}

  void restart() override { session_.clear(); }
  logit_rows decode(token_span tokens) override { return session_.decode(tokens); }
  std::size_t cache_bytes() const override { return session_.cache_bytes(); }

 private:
  engine engine_;
  stock_session session_;
};

class ours : public contender {
 public:
  explicit ours(const bench_task& task)
      : runner_(task.common),
        policies_(full_policies(runner_.model())),
        when_(task.when == "every_append" ? headwise::when_to_compress::every_append
                                          : headwise::when_to_compress::after_prompt),
        cache_(runner_.full_cache()) {
    if (task.engine == "full") return;
    const headwise::plan_file plan = plan_for(runner_.model(), task.plan);
    policies_ = {plan.plan, plan.budget, task.common.chosen_compensation()};
  }

  void restart() override { cache_ = copy_with(runner_.full_cache(when_), policies_); }
  logit_rows decode(token_span tokens) override { return runner_.decode(cache_, tokens); }
  void end_prompt() override { cache_.compress(); }
  double attention_seconds() const override { return runner_.attention_seconds(); }
  std::size_t cache_bytes() const override { return cache_.report().held_bytes() + runner_.own_cache_bytes(); }

 private:
  runner runner_;
  policies policies_;
  headwise::when_to_compress when_;
  any_cache cache_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Processor time of all threads of this process, spinning ones included.
double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Times of single tokens, given one after the other.
struct token_times {
  std::vector<double> all;
  std::vector<double> hook;
  std::vector<double> rest;
  std::vector<double> cpu;

  logit_rows add(contender& engine, token_span one) {
    const double hook_before = engine.attention_seconds();
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    logit_rows logits = engine.decode(one);
    const double seconds = seconds_since(start);
    const double inside = engine.attention_seconds() - hook_before;
    cpu.push_back(1e3 * (cpu_seconds() - cpu_before));
    all.push_back(1e3 * seconds);
    hook.push_back(1e3 * inside);
    rest.push_back(1e3 * (seconds - inside));
    return logits;
  }
};

bench_result measure(const bench_task& task, int tokens_file, int logits_file) {
  std::vector<token> tokens(task.length + task.decode);
  read_at(tokens_file, tokens.data(), tokens.size() * sizeof(token), 0);
  const token_span all(tokens);
  std::unique_ptr<contender> engine;
  if (task.engine == "full" || task.engine == "compressed")
    engine = std::make_unique<ours>(task);
  else
    engine = std::make_unique<stock>(task);
  bench_result found;

  // Warm-up: weights come from the disk, threads and graphs are made. What follows it is measured too.
  engine->restart();
  constexpr std::size_t warm_tokens = 4;
  constexpr std::size_t short_context = 24;
  token_times empty;
  for (std::size_t i = 0; i < std::min(short_context, all.size()); ++i) {
    if (i == warm_tokens) empty = {};
    empty.add(*engine, all.part(i, 1));
  }
  found.empty_ms = median_of(empty.all);

  engine->restart();
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  engine->decode(all.part(0, task.length));
  engine->end_prompt();
  found.prompt_seconds = seconds_since(start);
  found.prompt_cpu_seconds = cpu_seconds() - cpu_before;

  token_times times;
  std::vector<float> expected;
  std::size_t same = 0;
  for (std::size_t i = 0; i < task.decode; ++i) {
    const logit_rows logits = times.add(*engine, all.part(task.length + i, 1));
    const std::size_t row_bytes = logits.vocabulary * sizeof(float);
    if (task.engine == "reference") {
      write_at(logits_file, logits[0], row_bytes, i * row_bytes);
      continue;
    }
    expected.resize(logits.vocabulary);
    read_at(logits_file, expected.data(), row_bytes, i * row_bytes);
    for (std::size_t j = 0; j < expected.size(); ++j)
      found.max_logit_diff = std::max(found.max_logit_diff, std::fabs(double{expected[j]} - double{logits[0][j]}));
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    if (best == logits.best(0)) ++same;
  }
  found.token_ms = median_of(times.all);
  found.hook_ms = median_of(times.hook);
  found.rest_ms = median_of(times.rest);
  found.cpu_ms = median_of(times.cpu);
  found.same_best = static_cast<double>(same) / static_cast<double>(task.decode);
  found.cache_bytes = engine->cache_bytes();
  found.peak_bytes = peak_memory();
  return found;
}

}  // namespace

const std::vector<std::string>& bench_engines() {
  static const std::vector<std::string> names = {"stock", "stock_noflash", "full", "compressed"};
  return names;
}

bench_result run_bench_task(const bench_task& task, const std::string& wait, int tokens, int logits) {
  const common_options& common = task.common;
  self_call call;
  call.what = "bench: " + task.engine + ", --threads " + std::to_string(common.threads) + ", " + wait;
  call.arguments = {command_name,
                    "--quiet",
                    "--model=" + common.model,
                    "--threads=" + std::to_string(common.threads),
                    "--rows=" + common.rows,
                    "--compensation=" + common.compensation,
                    "--chunk=" + std::to_string(common.chunk),
                    "--repack=" + std::string(common.repack ? "true" : "false"),
                    "--engine=" + task.engine,
                    "--plan=" + task.plan,
                    "--when=" + task.when,
                    "--length=" + std::to_string(task.length),
                    "--decode=" + std::to_string(task.decode),
                    "--logits=" + std::to_string(logits)};
  call.environment = {{"OMP_WAIT_POLICY", wait == "default" ? "" : wait}};
  call.input = tokens;
  const std::string line = run_self(call);
  std::istringstream text(line);
  text.imbue(std::locale::classic());
  bench_result found;
  text >> found.prompt_seconds >> found.token_ms >> found.hook_ms >> found.rest_ms >> found.empty_ms >>
      found.prompt_cpu_seconds >> found.cpu_ms >> found.cache_bytes >> found.peak_bytes >> found.max_logit_diff >>
      found.same_best;
  if (!text) headwise::detail::fail(call.what, ": its process said '", line, "', expected eleven numbers");
  return found;
}

void add_bench_run(CLI::App& program) {
  struct options {
    bench_task task;
    int logits = 0;
  };
  auto chosen = std::make_shared<options>();
  CLI::App* command = program.add_subcommand(command_name, "one engine of a bench, for bench itself")->group("");
  bench_task& task = chosen->task;
  task.common.add_model(*command);
  task.common.add_policies(*command);
  command->add_option("--chunk", task.common.chunk)->required();
  command->add_option("--engine", task.engine)->required();
  command->add_option("--plan", task.plan)->required();
  command->add_option("--when", task.when)->required();
  command->add_flag("--repack", task.common.repack);
  command->add_option("--length", task.length)->required();
  command->add_option("--decode", task.decode)->required();
  command->add_option("--logits", chosen->logits, "an open file")->required();
  command->callback([chosen] {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody waits for the figures of an orphan
#endif
    const bench_result found = measure(chosen->task, STDIN_FILENO, chosen->logits);
    const auto number = [](double value) { return fixed(value, 6); };
    const auto count = [](std::size_t value) { return std::to_string(value); };
    std::string line;
    for (const std::string& field :
         {number(found.prompt_seconds), number(found.token_ms), number(found.hook_ms), number(found.rest_ms),
          number(found.empty_ms), number(found.prompt_cpu_seconds), number(found.cpu_ms), count(found.cache_bytes),
          count(found.peak_bytes), number(found.max_logit_diff), number(found.same_best)})
      line += (line.empty() ? "" : " ") + field;
    std::printf("%s\n", line.c_str());
  });
}

}  // namespace headwise_llama
