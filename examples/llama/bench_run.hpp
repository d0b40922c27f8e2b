// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tool.hpp"

namespace headwise_llama {

/// The engines that bench compares, in the order of its table. One more, `reference`, is what their logits are compared
/// with: llama.cpp without flash attention and with a float32 cache.
const std::vector<std::string>& bench_engines();

/// What one process measures: one engine at one number of threads, one prompt, then tokens that are given to it.
struct bench_task {
  common_options common;  ///< model, threads, rows, compensation, chunk
  std::string engine;
  std::string plan;
  std::string when = "after_prompt";  ///< or "every_append": when rows leave the compressed cache
  std::size_t length = 7900;
  std::size_t decode = 64;
};

/// Its findings. Times of a token are medians over the tokens.
struct bench_result {
  double prompt_seconds = 0.0;      ///< the whole prompt; compression included
  double token_ms = 0.0;            ///< a decoded token
  double hook_ms = 0.0;             ///< of it, append and attend: inside headwise
  double rest_ms = 0.0;             ///< of it, everything else
  double empty_ms = 0.0;            ///< a decoded token at an empty context
  double prompt_cpu_seconds = 0.0;  ///< processor time of all threads, for the prompt
  double cpu_ms = 0.0;              ///< and for a decoded token: on a busy machine steadier than the clock on the wall
  std::size_t cache_bytes = 0;      ///< keys and values held at the end, llama.cpp's own cells included
  std::size_t peak_bytes = 0;       ///< of the process
  double max_logit_diff = 0.0;      ///< to the reference, over all decoded tokens
  double same_best = 0.0;           ///< share of decoded tokens whose best next token is the reference's
};

/// Runs a task in a process of its own, under a wait policy of OpenMP ("active", "passive", or "default":
/// a short spin). `tokens` is an open file
/// of the prompt's and the decoded tokens, `logits` one for the logits of the decoded tokens: the engine `reference`
/// writes it, the others read it. Refuses, in words, when the process fails or dies.
bench_result run_bench_task(const bench_task& task, const std::string& wait, int tokens, int logits);

}  // namespace headwise_llama
