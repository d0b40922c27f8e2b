// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/core/error.hpp"
#include "headwise/core/model_shape.hpp"

namespace headwise::detail {

/// A number as JSON writes it, -1.5e-3, whatever the locale: no sign but -, no leading zeros, digits on both sides of
/// the point. Nothing else, no spaces, no NaN, no infinity.
inline std::optional<double> parse_number(std::string_view text) noexcept {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t first = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - first;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const std::size_t first = i;
  const std::size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[first] == '0')) return std::nullopt;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return std::nullopt;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (digits() == 0) return std::nullopt;
  }
  if (i != text.size()) return std::nullopt;
  double value = 0.0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

inline std::optional<std::size_t> parse_count(std::string_view text) noexcept {
  std::size_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool leading_zero = text.size() > 1 && text[0] == '0';
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size() || leading_zero) return std::nullopt;
  return value;
}

/// A TSV of ours: `# key: value` lines, one line of column names, then rows. Strict: every line ends in a newline (a
/// file that was cut does not), every row has all columns, keys are unique. Messages name file, line, field, what was
/// found and what was expected. Memory and time are those of the file's size, whatever numbers it states.
class table_reader {
 public:
  /// `text` is the content of `file`, whose first line must be "# `title`".
  table_reader(std::string file, std::string text, std::string_view title)
      : file_(std::move(file)), text_(std::move(text)) {
    if (text_.empty()) fail(file_, ": the file is empty, expected '# ", title, "'");
    const std::string expected = "# " + std::string(title);
    if (next_line() != expected) refuse("first line", line_, expected);
    while (!rest().empty() && rest().front() == '#') {
      const std::string_view line = next_line();
      const std::size_t colon = line.find(": ");
      if (line.size() < 2 || line[1] != ' ' || colon == std::string_view::npos)
        refuse("metadata", line, "'# key: value'");
      const std::string_view key = line.substr(2, colon - 2);
      if (!metadata_.try_emplace(std::string(key), entry{std::string(line.substr(colon + 2)), number_}).second)
        refuse("metadata", key, "a key that is not there yet");
    }
    if (rest().empty()) fail(file_, ":", number_, ": the file ends before the column names");
    columns_ = split(next_line());
    constexpr std::size_t most = 1000;
    if (columns_.size() > most)
      fail(file_, ":", number_, ": columns: found ", columns_.size(), ", expected at most ", most);
  }

  table_reader(const table_reader&) = delete;  // views into its own text
  table_reader& operator=(const table_reader&) = delete;

  const std::vector<std::string_view>& columns() const noexcept { return columns_; }
  /// The current line; before the first row it is the one with the column names.
  std::string_view line() const noexcept { return line_; }

  /// A number of the metadata.
  std::size_t count(std::string_view key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) fail(file_, ": no metadata line '# ", key, ": ...'");
    const auto& [text, line] = found->second;
    const auto value = parse_count(text);
    if (!value) fail(file_, ":", line, ": ", key, ": found '", printable(text), "', expected a whole number");
    return *value;
  }

  /// A line of the metadata that may be missing: numbers with a space between them.
  std::vector<std::size_t> counts(std::string_view key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return {};
    const auto& [text, line] = found->second;
    std::vector<std::size_t> values;
    for (std::string_view rest = text;;) {
      const std::size_t space = rest.find(' ');
      const auto value = parse_count(rest.substr(0, space));
      if (!value) fail(file_, ":", line, ": ", key, ": found '", printable(text), "', expected whole numbers");
      values.push_back(*value);
      if (space == std::string_view::npos) return values;
      rest.remove_prefix(space + 1);
    }
  }

  /// The five numbers of the shape; refuses one that makes no sense, and another one than `expected`.
  model_shape shape(const model_shape* expected) const {
    model_shape found;
    found.layers = count("layers");
    found.query_heads = count("query_heads");
    found.kv_heads = count("kv_heads");
    found.head_dim = count("head_dim");
    found.value_dim = count("value_dim");
    if (found.value_dim == 0) fail(file_, ": value_dim: found 0, expected at least 1");
    const std::string problem = shape_problem(found);
    if (!problem.empty()) fail(file_, ": ", problem);
    if (expected != nullptr && found != *expected)
      fail(file_, ": is for another model: found ", to_string(found), ", expected ", to_string(*expected));
    return found;
  }

  /// The next row's fields, as many as there are columns; `rows` says how many there must be in all.
  const std::vector<std::string_view>& next_row(std::size_t index, std::size_t rows) {
    if (rest().empty()) fail(file_, ":", number_, ": the file ends after ", index, " rows, expected ", rows);
    fields_ = split(next_line());
    if (fields_.size() != columns_.size())
      fail(file_, ":", number_, ": found ", fields_.size(), " fields, expected ", columns_.size());
    return fields_;
  }
  void expect_end() const {
    if (!rest().empty()) fail(file_, ":", number_ + 1, ": found more rows, expected the end of the file");
  }

  /// Refuses the current line.
  [[noreturn]] HEADWISE_COLD void refuse(std::string_view field, std::string_view found,
                                         std::string_view expected) const {
    fail(file_, ":", number_, ": ", field, ": found '", printable(found), "', expected ", expected);
  }

  /// Field `column` of the current row must be the number `expected`.
  void expect_count(std::size_t column, std::size_t expected) const {
    const auto found = parse_count(fields_[column]);
    if (!found || *found != expected) refuse(columns_[column], fields_[column], join(expected));
  }
  double number(std::size_t column) const {
    const auto found = parse_number(fields_[column]);
    if (!found) refuse(columns_[column], fields_[column], "a finite number");
    return *found;
  }

 private:
  struct entry {
    std::string value;
    std::size_t line;
  };

  std::string_view rest() const noexcept { return std::string_view(text_).substr(position_); }

  std::string_view next_line() {
    ++number_;
    const std::size_t end = text_.find('\n', position_);
    if (end == std::string::npos) fail(file_, ":", number_, ": the last line has no end: the file was cut");
    line_ = std::string_view(text_).substr(position_, end - position_);
    position_ = end + 1;
    return line_;
  }

  static std::vector<std::string_view> split(std::string_view line) {
    std::vector<std::string_view> fields;
    for (std::size_t start = 0;;) {
      const std::size_t tab = line.find('\t', start);
      fields.push_back(line.substr(start, tab == std::string_view::npos ? tab : tab - start));
      if (tab == std::string_view::npos) return fields;
      start = tab + 1;
    }
  }

  std::string file_;
  std::string text_;
  std::size_t position_ = 0;
  std::size_t number_ = 0;  // of the current line
  std::string_view line_;
  std::map<std::string, entry, std::less<>> metadata_;  // by key
  std::vector<std::string_view> columns_;
  std::vector<std::string_view> fields_;
};

/// Lines `# key: value` that other lines of the file are read by.
inline std::string shape_lines(const model_shape& shape) {
  return join("# layers: ", shape.layers, "\n# query_heads: ", shape.query_heads, "\n# kv_heads: ", shape.kv_heads,
              "\n# head_dim: ", shape.key_size(), "\n# value_dim: ", shape.value_size(), "\n");
}

}  // namespace headwise::detail
