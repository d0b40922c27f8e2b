// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headwise_llama {

/// A number with so many digits after the point, the same in every locale.
std::string fixed(double value, int digits);
/// 1234567 as "1.18 MiB".
std::string bytes_text(std::size_t bytes);

/// What a sub-command found: printed aligned for people, written as TSV for programs.
class table {
 public:
  explicit table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> row);
  /// On standard output: numbers to the right, words to the left.
  void print() const;
  /// Tab-separated, the column names first; as a whole or not at all.
  void write(const std::string& path) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace headwise_llama
