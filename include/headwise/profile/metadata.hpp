// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace headwise {

/// Lines `# key: value` that a writer adds for people to read (model, command, seed); readers let them pass.
using metadata = std::vector<std::pair<std::string, std::string>>;

namespace detail {

inline std::string metadata_lines(const metadata& lines) {
  std::string text;
  for (const auto& [key, value] : lines) {
    std::string line = "# " + key + ": " + value;
    for (char& c : line)  // one entry, one line
      if (c == '\n' || c == '\r') c = ' ';
    text += line + "\n";
  }
  return text;
}

}  // namespace detail
}  // namespace headwise
