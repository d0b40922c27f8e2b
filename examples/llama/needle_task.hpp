// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "methods.hpp"
#include "tool.hpp"

namespace headwise_llama {

/// One needle test: five-digit numbers, each bound to a word, hidden in long plain text; one of them is asked for.
struct needle_case {
  std::size_t length = 4000;  ///< tokens of the context, question not counted
  double depth = 0.5;         ///< where the asked needle lies: 0 at the beginning, 1 at the end
  std::size_t keys = 1;       ///< needles in all; the others distract, anywhere
  std::uint64_t seed = 1;     ///< draws words, numbers, places and the stretch of text
};

/// The tokens of a test, each tokenized apart, so that every method sees the same.
struct needle_prompt {
  std::vector<token> context;   ///< chat frame, text with the needles
  std::vector<token> question;  ///< the question, the chat frame's end, and the beginning of the answer
  std::vector<token> answer;    ///< the number
};

needle_prompt make_needle_prompt(const engine& model, const std::vector<std::string>& sentences,
                                 const needle_case& test);

/// What a method made of a test. The answer is scored by teacher forcing: each of its tokens against the most likely.
struct needle_outcome {
  bool exact = false;      ///< every token of the number
  double digits = 0.0;     ///< share of its digits
  double nll = 0.0;        ///< per answer token
  double kl = 0.0;         ///< KL(full || method), mean over question and answer tokens
  std::size_t folded = 0;  ///< rows that had left when the question came
  std::size_t bytes = 0;
  std::size_t dense_bytes = 0;
};

/// Prefills the context once, then lets each method answer from its own compressed copy. The first method is the full
/// cache. With `query_seen` the question belongs to the prompt, and caches are compressed only before the answer.
std::vector<needle_outcome> run_needle(runner& run, const needle_prompt& prompt, const std::vector<method>& methods,
                                       const method_input& input, bool query_seen, const progress& report = {});

/// Depths of `count` tests: the middles of `count` equal parts.
double needle_depth(std::size_t i, std::size_t count);

}  // namespace headwise_llama
