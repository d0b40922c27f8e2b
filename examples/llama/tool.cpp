// SPDX-License-Identifier: MIT
#include "tool.hpp"

#include <omp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

#include "table.hpp"

template class headwise::kv_cache<headwise::any_format, headwise_llama::any_budget, headwise::any_compensation>;

namespace headwise_llama {

void common_options::add_model(CLI::App& command) {
  command.add_option("-m,--model", model, "GGUF file of a model with plain grouped-query attention")->required();
  add_running(command);
}

void common_options::add_running(CLI::App& command) {
  command.add_option("--threads", threads, "threads of llama.cpp and of the attention, one pool (0: all)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--seed", seed, "of everything random")->capture_default_str();
  command.add_flag("-q,--quiet", quiet, "no progress");
  add_rows(command);
}

void common_options::add_rows(CLI::App& command) {
  command.add_option("--rows", rows, "how key and value rows are stored")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
}

void common_options::add_policies(CLI::App& command) {
  command.add_option("--compensation", compensation, "what stands for folded rows")
      ->check(CLI::IsMember({"mean", "none", "moment"}))
      ->capture_default_str();
}

engine_options common_options::loading() const {
  engine_options options;
  options.repack = repack;
  return options;
}

headwise::any_format common_options::format() const {
  if (rows == "f32") return headwise::float32{};
  if (rows == "bf16") return headwise::bfloat16{};
  return headwise::float16{};
}

headwise::any_compensation common_options::chosen_compensation() const {
  if (compensation == "none") return headwise::no_compensation{};
  if (compensation == "moment") return headwise::moment_compensation{};
  return headwise::mean_compensation{};
}

progress_line::progress_line(std::string what, bool quiet)
    : what_(std::move(what)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      last_(std::chrono::steady_clock::now()) {}

progress_line::~progress_line() { finish(); }

void progress_line::finish() {
  if (printed_ && terminal_) std::fprintf(stderr, "\r\033[K");
  printed_ = false;
}

void progress_line::show(std::size_t done, std::size_t total, bool at_once) {
  const auto now = std::chrono::steady_clock::now();
  const double since = std::chrono::duration<double>(now - last_).count();
  if (quiet_ || (!at_once && since < (terminal_ ? 0.2 : 10.0))) return;
  last_ = now;
  printed_ = true;
  std::fprintf(stderr, terminal_ ? "\r\033[K%s: %zu of %zu" : "%s: %zu of %zu\n", what_.c_str(), done, total);
  std::fflush(stderr);
}

void check_writable(const std::string& file) {
  const std::string trial = file + ".partial";
  std::FILE* const opened = std::filesystem::is_directory(file) ? nullptr : std::fopen(trial.c_str(), "wb");
  if (opened == nullptr) headwise::detail::fail(file, ": cannot be written");
  std::fclose(opened);
  std::filesystem::remove(trial);
}

output_folder::output_folder(const std::string& path) : path_(path) {
  std::error_code problem;
  std::filesystem::create_directories(path, problem);
  if (!std::filesystem::is_directory(path)) headwise::detail::fail(path, ": cannot be made a folder for the results");
  check_writable(file("trial"));
}

namespace {

/// `found` is a plan or scores: both know windows.
template <class Found>
void check_windows(const engine& model, const std::string& path, const Found& found) {
  const headwise::head_plan expected = model.plan(headwise::head_role::retrieval);
  for (std::size_t layer = 0; layer < model.shape().layers; ++layer)
    if (found.window(layer) != expected.window(layer))
      headwise::detail::fail(path, ": is for another model: found a window of ", found.window(layer),
                             " tokens in layer ", layer, ", expected ", expected.window(layer), " (0: none)");
}

}  // namespace

headwise::plan_file plan_for(const engine& model, const std::string& path) {
  headwise::plan_file file = headwise::read_plan(path, &model.shape());
  check_windows(model, path, file.plan);
  return file;
}

headwise::head_scores profile_for(const engine& model, const std::string& path) {
  headwise::head_scores scores = headwise::read_profile(path, &model.shape());
  check_windows(model, path, scores);
  return scores;
}

void say_if_nothing_folds(const headwise::plan_file& plan, std::size_t length) {
  const std::size_t sinks = plan.plan.sinks();
  const std::size_t recent = plan.budget({}, length);
  if (sinks < length && recent < length - sinks) return;
  std::fprintf(stderr, "at %zu tokens nothing is folded: %zu sinks and %zu recent rows hold them all\n", length, sinks,
               recent);
}

namespace {

session_options session_of(const common_options& common, cache_format rows) {
  session_options options;
  options.threads = common.threads;
  options.chunk = common.chunk;
  options.rows = rows;
  return options;
}

headwise::token_view part_of(headwise::token_view view, std::size_t first, std::size_t count) {
  const std::size_t element = view.type == headwise::element_type::f32 ? 4 : 2;
  view.data = static_cast<const std::byte*>(view.data) + first * view.token_stride * element;
  view.tokens = count;
  return view;
}

/// Some tokens of a chunk.
attention_call part_of(attention_call call, std::size_t first, std::size_t count) {
  call.q = part_of(call.q, first, count);
  call.k = part_of(call.k, first, count);
  call.v = part_of(call.v, first, count);
  call.out.data += first * call.out.token_stride;
  call.out.tokens = count;
  return call;
}

}  // namespace

runner::runner(const common_options& options)
    : options_(options),
      engine_(options.model, options.loading()),
      // Rows that will be f16 can come as f16: rounding twice to the same format changes nothing.
      session_(engine_, session_of(options, options.rows == "f16" ? cache_format::f16 : cache_format::f32)) {
  if (options.threads != 0) executor_.threads = options.threads;
}

any_cache runner::full_cache(headwise::when_to_compress when, const headwise::cache_options& options) const {
  const policies keep = full_policies(engine_);
  return any_cache(keep.plan, keep.budget, keep.compensation, when, options_.format(), options);
}

logit_rows runner::decode(any_cache& cache, token_span tokens, logits_of wanted, const progress& report) {
  return decode_by(tokens.size(), cache, tokens, wanted, report);
}

logit_rows runner::verify(any_cache& cache, token_span tokens) {
  return decode_by(1, cache, tokens, logits_of::all, {});
}

logit_rows runner::decode_by(std::size_t step, any_cache& cache, token_span tokens, logits_of wanted,
                             const progress& report) {
  const auto start = std::chrono::steady_clock::now();
  const auto hook = [&](const attention_call& call) {
    const auto entered = std::chrono::steady_clock::now();
    for (std::size_t first = 0; first < call.q.tokens; first += step) {
      const attention_call part = part_of(call, first, std::min(step, call.q.tokens - first));
      cache.append(part.layer, part.k, part.v);
      headwise::attend(cache, part.layer, part.q, part.out, schedule_, executor_, part.params);
    }
    attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - entered).count();
  };
  logit_rows logits = session_.decode(tokens, cache.length(), hook, wanted, report);
  watch_speed(tokens.size(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return logits;
}

headwise::head_scores runner::score(const headwise::repeated_tokens& probe, const progress& report) {
  any_cache cache = full_cache();
  std::optional<headwise::head_scorer<headwise::echo, headwise::induction>> scorer;  // made when the scale is known
  const auto hook = [&](const attention_call& call) {
    cache.append(call.layer, call.k, call.v);
    headwise::attend(cache, call.layer, call.q, call.out, schedule_, executor_, call.params);
    if (!scorer) {
      scorer.emplace(shape(), probe, call.params);
      for (std::size_t layer = 0; layer < shape().layers; ++layer)
        if (cache.window(layer) != 0) scorer->set_window(layer, cache.window(layer));
    }
    scorer->observe(call.layer, call.q, call.k, executor_);
  };
  session exact(engine_, session_of(options_, cache_format::f32));  // scores are of the keys as the model made them
  exact.decode(probe.tokens(), 0, hook, logits_of::none, report);
  return scorer->scores();
}

/// Spinning OpenMP threads beside another busy program wait for time slices, which costs seconds a token.
void runner::watch_speed(std::size_t tokens, double seconds) {
  if (warned_ || options_.quiet || seconds < 1.0 * static_cast<double>(tokens)) return;
  warned_ = true;
  std::fprintf(stderr,
               "%s s a token: if other programs keep the cores busy, OMP_WAIT_POLICY=passive in the environment makes "
               "waiting threads sleep instead of spin\n",
               fixed(seconds / static_cast<double>(tokens), 1).c_str());
}

policies full_policies(const engine& model) {
  return {model.plan(headwise::head_role::retrieval), headwise::unlimited_budget{}, headwise::no_compensation{}};
}

any_cache copy_with(const any_cache& full, const policies& chosen) {
  return full.with(chosen.plan, chosen.budget, chosen.compensation);
}

any_cache compressed_copy(const any_cache& full, const policies& chosen) {
  any_cache copy = copy_with(full, chosen);
  copy.compress();
  return copy;
}

double log_sum_exp(const float* logits, std::size_t count) {
  const double largest = static_cast<double>(*std::max_element(logits, logits + count));
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  return largest + std::log(sum);
}

double negative_log_likelihood(const float* logits, std::size_t count, token id) {
  return log_sum_exp(logits, count) - static_cast<double>(logits[id]);
}

double divergence(const float* reference, const float* other, std::size_t count) {
  const double reference_norm = log_sum_exp(reference, count);
  const double other_norm = log_sum_exp(other, count);
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double log_p = static_cast<double>(reference[i]) - reference_norm;
    sum += std::exp(log_p) * (log_p - (static_cast<double>(other[i]) - other_norm));
  }
  return std::max(0.0, sum);
}

}  // namespace headwise_llama
