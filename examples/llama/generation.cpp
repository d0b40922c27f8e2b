// SPDX-License-Identifier: MIT
#include "generation.hpp"

#include <algorithm>

#include "headwise/core/error.hpp"

namespace headwise_llama {

std::vector<token> prompt_lookup::draft(std::size_t most) const {
  constexpr std::size_t longest = 3;
  constexpr std::size_t shortest = 2;  // a single token has come before nearly everywhere, and says little
  for (std::size_t n = longest; n >= shortest; --n) {
    if (text_.size() <= n) continue;
    const auto words = text_.end() - static_cast<std::ptrdiff_t>(n);
    const auto before =
        std::find_end(text_.begin(), text_.end() - 1, words, text_.end());  // the latest is the likeliest
    if (before == text_.end() - 1) continue;
    const auto next = before + static_cast<std::ptrdiff_t>(n);
    const auto count = std::min(static_cast<std::ptrdiff_t>(most), text_.end() - next);
    return {next, next + count};
  }
  return {};
}

generation_counts generate(runner& run, any_cache& cache, const std::vector<token>& prompt, const logit_rows& logits,
                           const generation_options& options, const std::function<void(token, const float*)>& seen) {
  const engine& model = run.model();
  generation_counts counts;
  prompt_lookup lookup(prompt);
  // Adds the most likely token to the text, unless it ends it.
  const auto add = [&](const logit_rows& rows, std::size_t row) {
    const token next = rows.best(row);
    if (model.ends_generation(next)) return false;
    if (seen) seen(next, rows[row]);
    lookup.add(next);
    ++counts.tokens;
    return true;
  };

  token last = logits.best(0);
  for (bool goes_on = add(logits, 0); goes_on;) {
    const std::size_t length = cache.length();
    if (counts.tokens == options.tokens || length == model.context_length()) break;
    const std::size_t room = std::min(options.tokens - counts.tokens, model.context_length() - length) - 1;
    std::vector<token> fed = {last};
    const std::vector<token> draft = lookup.draft(std::min(options.draft, room));
    fed.insert(fed.end(), draft.begin(), draft.end());
    const logit_rows rows = draft.empty() ? run.decode(cache, fed) : run.verify(cache, fed);

    std::size_t accepted = 0;
    for (;; ++accepted) {
      last = rows.best(accepted);
      goes_on = add(rows, accepted);
      if (!goes_on || accepted == draft.size() || last != draft[accepted]) break;
    }
    ++counts.passes;
    counts.decoded += 1 + accepted;
    counts.drafted += draft.size();
    counts.accepted += accepted;
    if (accepted == draft.size()) continue;
    ++counts.rollbacks;
    if (!cache.truncate(length + 1 + accepted))
      headwise::detail::fail("generate: cannot take back ", draft.size() - accepted, " tokens at ", length,
                             ": the rollback reserve is smaller");
  }
  return counts;
}

}  // namespace headwise_llama
