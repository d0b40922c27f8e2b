// SPDX-License-Identifier: MIT
#include "table.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "headwise/core/error.hpp"
#include "headwise/core/file.hpp"

namespace headwise_llama {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.+-e%x") == std::string::npos;
}

std::string line_of(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) line += (line.empty() ? "" : "\t") + field;
  return line + "\n";
}

}  // namespace

std::string fixed(double value, int digits) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr;
  return {text, end};
}

std::string bytes_text(std::size_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1024 * 1024) return fixed(value / 1024, 1) + " KiB";
  if (bytes < std::size_t{1024} * 1024 * 1024) return fixed(value / (1024 * 1024), 1) + " MiB";
  return fixed(value / (1024.0 * 1024 * 1024), 2) + " GiB";
}

void table::add(std::vector<std::string> row) {
  if (row.size() != columns_.size())
    headwise::detail::fail("table: a row of ", row.size(), " fields, expected ", columns_.size());
  rows_.push_back(std::move(row));
}

void table::print() const {
  for (std::size_t line = 0; line <= rows_.size(); ++line) {
    std::string text;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      std::size_t width = columns_[column].size();
      bool numbers = true;
      for (const auto& row : rows_) {
        width = std::max(width, row[column].size());
        numbers = numbers && is_number(row[column]);
      }
      const std::string& field = line == 0 ? columns_[column] : rows_[line - 1][column];
      const std::string space(width - field.size(), ' ');
      text += (column == 0 ? "" : "  ") + (numbers ? space + field : field + space);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void table::write(const std::string& path) const {
  std::string text = line_of(columns_);
  for (const auto& row : rows_) text += line_of(row);
  headwise::write_text_file(path, text);
}

}  // namespace headwise_llama
