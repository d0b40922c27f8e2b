// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "tool.hpp"

namespace headwise_llama {

/// Guesses how a text goes on: as it did after its last words when they came before. Answers that repeat their prompt
/// (quotations, code, lists) are guessed well, and a guess costs nothing.
class prompt_lookup {
 public:
  explicit prompt_lookup(std::vector<token> text) : text_(std::move(text)) {}

  void add(token next) { text_.push_back(next); }
  /// At most `most` tokens; none where the last two tokens have not come before.
  std::vector<token> draft(std::size_t most) const;

 private:
  std::vector<token> text_;
};

struct generation_options {
  std::size_t tokens = 200;  ///< most tokens of text
  std::size_t draft = 0;     ///< most tokens guessed ahead and verified in one pass; no more than the rollback reserve
};

/// What a text took.
struct generation_counts {
  std::size_t tokens = 0;   ///< of the text
  std::size_t decoded = 0;  ///< of them, those that the model has seen: all but the last, if it was cut
  std::size_t passes = 0;   ///< of llama.cpp through the model
  std::size_t drafted = 0;
  std::size_t accepted = 0;   ///< drafted tokens that the model would have chosen; the others were rolled back
  std::size_t rollbacks = 0;  ///< passes after which some were
};

/// The most likely text after a prompt that a compressed cache has seen. `logits` are those of the prompt's last token.
/// Ends with the tokens, with the model's context, or where the model ends it. `seen(token, logits)` is called with
/// each token and what it was chosen from. Drafts change neither text nor cache, but for rounding: llama.cpp multiplies
/// other matrix sizes in another order.
generation_counts generate(runner& run, any_cache& cache, const std::vector<token>& prompt, const logit_rows& logits,
                           const generation_options& options,
                           const std::function<void(token, const float*)>& seen = {});

}  // namespace headwise_llama
