// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tool.hpp"

namespace headwise_llama {

// A prompt on disk, so that another process can go on from it: magic, then a section with the model's fingerprint, the
// tokens and the logits of the last, then the cache as headwise::save writes it. In the byte order of the machine.

/// What belongs to a cache that has seen a prompt.
struct prompt_state {
  std::vector<token> tokens;
  logit_rows logits;  ///< one row, of the last token
};

/// Writes it as a whole or not at all.
void save_prompt(const std::string& path, const engine& model, const prompt_state& prompt, const any_cache& cache);

/// Reads what save_prompt wrote, for the same model and into a cache that was made with the same plan, policies, rows
/// and reserve. Refuses anything else, and damage; the cache is then as it was.
prompt_state load_prompt(const std::string& path, const engine& model, any_cache& cache);

}  // namespace headwise_llama
