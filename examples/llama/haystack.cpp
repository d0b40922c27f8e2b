// SPDX-License-Identifier: MIT
#include "haystack.hpp"

#include <cstdio>
#include <string_view>

#include "headwise/core/error.hpp"
#include "headwise/core/file.hpp"

namespace headwise_llama {
namespace {

/// One verse a line, "Ge1:1 In the beginning ..."; the reference is left out.
std::string bible_text() {
  std::FILE* const bible = popen("bible -f gen1:1-rev22:21 2>/dev/null", "r");
  if (bible == nullptr) headwise::detail::fail("haystack: the bible program cannot be started");
  std::string text;
  bool reference = true;
  for (int c = std::fgetc(bible); c != EOF; c = std::fgetc(bible)) {
    if (c == '\n') {
      text += ' ';
      reference = true;
    } else if (reference) {
      reference = c != ' ';
    } else {
      text += static_cast<char>(c);
    }
  }
  if (pclose(bible) != 0 || text.empty())
    headwise::detail::fail("haystack: no text; install Debian's bible-kjv, or name a file with --haystack");
  return text;
}

}  // namespace

std::vector<std::string> haystack_sentences(const std::string& path) {
  const std::string text = path.empty() ? bible_text() : headwise::read_text_file(path);
  std::vector<std::string> sentences;
  std::string sentence;
  bool space = true;  // runs of white space become one space, and a sentence does not begin with one
  for (const char c : text) {
    const bool white = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (!white) {
      if (space && !sentence.empty()) sentence += ' ';
      sentence += c;
    } else if (!sentence.empty() && std::string_view(".!?").find(sentence.back()) != std::string_view::npos) {
      sentences.push_back(sentence);
      sentence.clear();
    }
    space = white;
  }
  if (!sentence.empty()) sentences.push_back(sentence);
  if (sentences.empty()) headwise::detail::fail(path, ": found no sentence, expected plain text");
  return sentences;
}

std::vector<std::vector<token>> haystack_contexts(const engine& model, const std::string& path, std::size_t length,
                                                  std::size_t more, std::size_t count) {
  const std::size_t stretch = length + more;
  if (stretch > model.context_length())
    headwise::detail::fail("--length: found ", length, ", and ", more, " more to continue, but the model's context is ",
                           model.context_length());
  std::string all;
  for (const std::string& sentence : haystack_sentences(path)) all += sentence + " ";
  const std::vector<token> text = model.tokenize(all, false, false);
  if (text.size() < stretch)
    headwise::detail::fail("text: ", text.size(), " tokens, expected at least ", stretch, " (--length + --tokens)");
  const auto prefix = model.first_token();
  std::vector<std::vector<token>> contexts;
  for (std::size_t i = 0; i < count; ++i) {
    const auto start = static_cast<std::ptrdiff_t>(count == 1 ? 0 : (text.size() - stretch) / (count - 1) * i);
    contexts.emplace_back(text.begin() + start, text.begin() + start + static_cast<std::ptrdiff_t>(stretch));
    if (prefix) contexts.back().front() = *prefix;
  }
  return contexts;
}

}  // namespace headwise_llama
