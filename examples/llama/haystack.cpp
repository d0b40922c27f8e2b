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

}  // namespace headwise_llama
