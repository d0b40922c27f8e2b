// SPDX-License-Identifier: MIT
#include "needle_task.hpp"

#include <algorithm>
#include <random>
#include <utility>

namespace headwise_llama {
namespace {

const char* const words[] = {"apple",  "river",  "candle", "mirror", "garden", "silver", "button", "window",
                             "pepper", "rocket", "saddle", "ticket", "velvet", "walnut", "yellow", "anchor",
                             "basket", "copper", "dragon", "engine", "falcon", "guitar", "hammer", "island"};

std::string needle_text(const std::string& word, const std::string& number) {
  return "One of the special magic numbers for " + word + " is: " + number + ".";
}

void append(std::vector<token>& to, const std::vector<token>& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

double needle_depth(std::size_t i, std::size_t count) {
  return (static_cast<double>(i) + 0.5) / static_cast<double>(count);
}

needle_prompt make_needle_prompt(const engine& model, const std::vector<std::string>& sentences,
                                 const needle_case& test) {
  constexpr std::size_t word_count = sizeof words / sizeof words[0];
  if (test.keys == 0 || test.keys > word_count)
    headwise::detail::fail("needle: ", test.keys, " keys, expected 1 to ", word_count);
  std::mt19937_64 random(test.seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto text_tokens = [&](const std::string& text) { return model.tokenize(text, false, false); };

  std::vector<std::string> names(words, words + word_count);
  for (std::size_t i = 0; i < test.keys; ++i) std::swap(names[i], names[i + below(word_count - i)]);
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < test.keys; ++i) numbers.push_back(std::to_string(10000 + below(90000)));

  const engine::chat_frame frame = model.chat();
  needle_prompt prompt;
  prompt.context = model.tokenize(frame.before, true, true);
  append(prompt.context,
         text_tokens("Some special magic numbers are hidden within the following text. Make sure to memorize them. I "
                     "will quiz you about the numbers afterwards.\n\n"));

  // Sentences until the context is full, the needles' own tokens counted.
  std::vector<std::vector<token>> needles;
  std::size_t used = prompt.context.size();
  for (std::size_t i = 0; i < test.keys; ++i) {
    needles.push_back(text_tokens(" " + needle_text(names[i], numbers[i])));
    used += needles.back().size();
  }
  std::vector<std::vector<token>> text;
  std::size_t text_size = 0;
  for (std::size_t i = below(sentences.size());; i = (i + 1) % sentences.size()) {
    std::vector<token> sentence = text_tokens(" " + sentences[i]);
    if (used + text_size + sentence.size() > test.length) break;
    text_size += sentence.size();
    text.push_back(std::move(sentence));
  }
  if (text.size() < test.keys)
    headwise::detail::fail("needle: ", test.length, " tokens have no room for ", test.keys, " needles and text");

  // The sentence that each needle goes before: the asked one by its depth in tokens, the others anywhere.
  std::vector<std::size_t> places(test.keys);
  for (std::size_t before = 0; places[0] < text.size(); ++places[0]) {
    if (static_cast<double>(before) >= test.depth * static_cast<double>(text_size)) break;
    before += text[places[0]].size();
  }
  for (std::size_t i = 1; i < test.keys; ++i) places[i] = below(text.size() + 1);
  for (std::size_t sentence = 0; sentence <= text.size(); ++sentence) {
    for (std::size_t i = 0; i < test.keys; ++i)
      if (places[i] == sentence) append(prompt.context, needles[i]);
    if (sentence < text.size()) append(prompt.context, text[sentence]);
  }

  prompt.question =
      text_tokens("\n\nWhat is the special magic number for " + names[0] + " mentioned in the provided text?");
  append(prompt.question, model.tokenize(frame.after, false, true));
  append(prompt.question,
         text_tokens("The special magic number for " + names[0] + " mentioned in the provided text is:"));
  prompt.answer = text_tokens(" " + numbers[0]);
  return prompt;
}

std::vector<needle_outcome> run_needle(runner& run, const needle_prompt& prompt, const std::vector<method>& methods,
                                       const method_input& input, bool query_seen, const progress& report) {
  any_cache context = run.full_cache();
  run.decode(context, prompt.context, logits_of::none, report);
  logit_rows asked;  // the question's logits, which every method shares when it was seen with the whole cache
  if (query_seen) asked = run.decode(context, prompt.question, logits_of::last);

  // The last token of the answer is never fed: nothing is asked of it.
  std::vector<token> fed;
  if (!query_seen) fed = prompt.question;
  fed.insert(fed.end(), prompt.answer.begin(), prompt.answer.end() - 1);

  std::vector<needle_outcome> outcomes;
  logit_rows full;
  for (const method& method : methods) {
    any_cache cache = compressed_copy(context, method.choose(input));
    needle_outcome outcome;
    const auto compressed = cache.report();
    outcome.folded = compressed.folded + compressed.dropped;
    const logit_rows logits = fed.empty() ? logit_rows{} : run.decode(cache, fed, logits_of::all);
    if (outcomes.empty()) full = logits;

    const std::size_t first = logits.size() + 1 - prompt.answer.size();  // row before the second answer token, plus 1
    std::size_t right = 0;
    double digits = 0.0;
    double all_digits = 0.0;
    for (std::size_t i = 0; i < prompt.answer.size(); ++i) {
      const bool from_question = query_seen && i == 0;
      const logit_rows& rows = from_question ? asked : logits;
      const std::size_t row = from_question ? asked.size() - 1 : first + i - 1;
      const std::string piece = run.model().piece(prompt.answer[i]);
      const auto count =
          static_cast<double>(std::count_if(piece.begin(), piece.end(), [](char c) { return c >= '0' && c <= '9'; }));
      const bool hit = rows.best(row) == prompt.answer[i];
      right += hit ? 1 : 0;
      digits += hit ? count : 0.0;
      all_digits += count;
      outcome.nll += negative_log_likelihood(rows[row], rows.vocabulary, prompt.answer[i]);
    }
    outcome.exact = right == prompt.answer.size();
    outcome.digits = digits / all_digits;
    outcome.nll /= static_cast<double>(prompt.answer.size());
    for (std::size_t row = 0; row < logits.size(); ++row)
      outcome.kl += divergence(full[row], logits[row], logits.vocabulary) / static_cast<double>(logits.size());
    const auto held = cache.report();
    outcome.bytes = held.held_bytes();
    outcome.dense_bytes = held.dense_bytes;
    outcomes.push_back(outcome);
  }
  return outcomes;
}

}  // namespace headwise_llama
