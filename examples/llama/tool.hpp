// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine.hpp"
#include "headwise/headwise.hpp"
#include "methods.hpp"

namespace CLI {
class App;
}

namespace headwise {
extern template class kv_cache<any_format, headwise_llama::any_budget, any_compensation>;  // compiled once, in tool.cpp
}

namespace headwise_llama {

/// The cache of this program: format, budget and compensation are chosen on the command line.
using any_cache = headwise::kv_cache<headwise::any_format, any_budget, headwise::any_compensation>;

/// Options that every sub-command with a model has.
struct common_options {
  std::string model;
  int threads = 0;  ///< 0: all
  std::uint64_t seed = 1;
  bool quiet = false;
  std::string rows = "f16";
  std::string compensation = "mean";
  // Not options of every sub-command.
  std::size_t chunk = 256;  ///< tokens per graph
  bool repack = false;      ///< engine_options::repack

  void add_model(CLI::App& command);
  void add_running(CLI::App& command);  ///< all of add_model but the model itself
  void add_rows(CLI::App& command);
  void add_policies(CLI::App& command);

  engine_options loading() const;
  headwise::any_format format() const;
  headwise::any_compensation chosen_compensation() const;
};

/// Progress of long work, on standard error: one line that is overwritten on a terminal, a line now and then elsewhere.
class progress_line {
 public:
  progress_line(std::string what, bool quiet);
  ~progress_line();
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  /// `at_once`: a step so long that people should know what is going on, however soon it follows the last.
  void show(std::size_t done, std::size_t total, bool at_once = false);
  void finish();  ///< before anything else is printed
  /// The same line for the next part of the work.
  void rename(const std::string& what) { what_ = what; }

 private:
  std::string what_;
  bool quiet_;
  bool terminal_;
  bool printed_ = false;
  std::chrono::steady_clock::time_point last_;
};

/// A folder that results go to: made if it is not there, and known to be writable before long work begins.
class output_folder {
 public:
  explicit output_folder(const std::string& path);
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Refuses a file that could not be written later.
void check_writable(const std::string& file);

/// A plan or a profile for a model: of its shape and with its windows, or refused.
headwise::plan_file plan_for(const engine& model, const std::string& path);
headwise::head_scores profile_for(const engine& model, const std::string& path);

/// Says so on standard error where sinks and window hold a whole context, since every method then keeps the same rows.
void say_if_nothing_folds(const headwise::plan_file& plan, std::size_t length);

/// A model that attends through headwise caches: llama.cpp computes, `any_cache` remembers.
class runner {
 public:
  explicit runner(const common_options& options);

  const engine& model() const noexcept { return engine_; }
  const headwise::model_shape& shape() const noexcept { return engine_.shape(); }

  /// Bytes of llama.cpp's own cache, which holds the chunk at hand.
  std::size_t own_cache_bytes() const { return session_.cache_bytes(); }

  /// A cache of no tokens that keeps everything, to be prefilled and then copied `with` other policies.
  any_cache full_cache(headwise::when_to_compress when = headwise::when_to_compress::after_prompt,
                       const headwise::cache_options& options = {}) const;

  /// Runs tokens after those the cache has seen; each layer's keys and values go into the cache, and the attention
  /// comes from it.
  logit_rows decode(any_cache& cache, token_span tokens, logits_of wanted = logits_of::last,
                    const progress& report = {});

  /// The same with a hook of one's own in the cache's place; `position` is that of the first token.
  logit_rows decode(const attention_hook& hook, token_span tokens, std::size_t position,
                    logits_of wanted = logits_of::last, const progress& report = {}) {
    return session_.decode(tokens, position, hook, wanted, report);
  }

  /// The same in one pass of llama.cpp, but as if the tokens came one by one: rows leave, and each token attends,
  /// before the next is appended. All logits: what drafted tokens are verified with.
  logit_rows verify(any_cache& cache, token_span tokens);

  /// Seconds spent in the cache and its attention, in all calls so far.
  double attention_seconds() const noexcept { return attention_seconds_; }

  /// Prefills a probe and scores its heads.
  headwise::head_scores score(const headwise::repeated_tokens& probe, const progress& report = {});

 private:
  logit_rows decode_by(std::size_t step, any_cache& cache, token_span tokens, logits_of wanted, const progress& report);
  void watch_speed(std::size_t tokens, double seconds);

  common_options options_;
  engine engine_;
  session session_;
  headwise::openmp executor_;
  headwise::attend_schedule schedule_;
  double attention_seconds_ = 0.0;
  bool warned_ = false;
};

/// What keeps every row that the model sees.
policies full_policies(const engine& model);

/// A copy of a cache under a method's plan and policies; compressed_copy also lets rows leave.
any_cache copy_with(const any_cache& full, const policies& chosen);
any_cache compressed_copy(const any_cache& full, const policies& chosen);

/// ln sum e^logits, and the negative log-likelihood of one token.
double log_sum_exp(const float* logits, std::size_t count);
double negative_log_likelihood(const float* logits, std::size_t count, token id);
/// Kullback-Leibler divergence KL(reference || other) of two rows of logits, in nats.
double divergence(const float* reference, const float* other, std::size_t count);

}  // namespace headwise_llama
