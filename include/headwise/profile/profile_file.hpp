// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/core/file.hpp"
#include "headwise/core/head_scores.hpp"
#include "headwise/profile/metadata.hpp"
#include "headwise/profile/table_reader.hpp"

namespace headwise {

// A profile on disk, one row per query head, so that numpy and spreadsheets read it as it stands:
//   # headwise profile 1
//   # layers: 30            (query_heads, kv_heads, head_dim, value_dim likewise)
//   # windows: 0 512 0 512  (of each layer, 0: it sees everything; only where the model has some; then other metadata)
//   layer	kv_head	query_head	echo	induction
//   0	0	0	0.001515	0.001569

namespace detail {

inline head_scores parse_profile(const std::string& path, std::string text, const model_shape* expected) {
  table_reader reader(path, std::move(text), "headwise profile 1");
  const model_shape shape = reader.shape(expected);
  const auto& columns = reader.columns();
  if (columns.size() < 4 || columns[0] != "layer" || columns[1] != "kv_head" || columns[2] != "query_head")
    reader.refuse("columns", reader.line(), "layer, kv_head, query_head and at least one score");
  std::set<std::string_view> names;
  for (std::size_t score = 3; score < columns.size(); ++score)
    if (columns[score].empty() || columns[score] != printable(columns[score]) || !names.insert(columns[score]).second)
      reader.refuse("columns", columns[score], "a short printable name that no other column has");

  const std::vector<std::size_t> windows = reader.counts("windows");
  if (!windows.empty() && windows.size() != shape.layers)
    fail(path, ": windows: found ", windows.size(), " numbers, expected one for each of ", shape.layers, " layers");

  const std::size_t rows = shape.layers * shape.query_heads;
  std::vector<std::vector<double>> scores(columns.size() - 3);  // grows with the rows that are really there
  for (std::size_t i = 0; i < rows; ++i) {
    reader.next_row(i, rows);
    const std::size_t head = i % shape.query_heads;
    reader.expect_count(0, i / shape.query_heads);
    reader.expect_count(1, head / shape.group());
    reader.expect_count(2, head);
    for (std::size_t score = 0; score < scores.size(); ++score) scores[score].push_back(reader.number(3 + score));
  }
  reader.expect_end();

  head_scores result(shape);
  for (std::size_t layer = 0; layer < windows.size(); ++layer)
    if (windows[layer] != 0) result.set_window(layer, windows[layer]);
  for (std::size_t score = 0; score < scores.size(); ++score)
    result.add(std::string(columns[3 + score]), std::move(scores[score]));
  return result;
}

/// Empty where all layers see everything.
inline std::string window_line(const head_scores& scores) {
  if (scores.ranked_heads() == scores.shape().heads()) return {};
  std::string line = "# windows:";
  for (std::size_t layer = 0; layer < scores.shape().layers; ++layer) line += join(" ", scores.window(layer));
  return line + "\n";
}

inline std::string profile_text(const head_scores& scores, const metadata& more = {}) {
  const model_shape& shape = scores.shape();
  std::string text = "# headwise profile 1\n" + shape_lines(shape) + window_line(scores) + metadata_lines(more);
  text += "layer\tkv_head\tquery_head";
  for (const std::string& name : scores.names()) text += "\t" + name;
  text += "\n";
  for (std::size_t layer = 0; layer < shape.layers; ++layer)
    for (std::size_t head = 0; head < shape.query_heads; ++head) {
      text += join(layer, "\t", head / shape.group(), "\t", head);
      for (const std::string& name : scores.names()) text += join("\t", scores.at(name, layer, head));
      text += "\n";
    }
  return text;
}

}  // namespace detail

/// Writes scores as a whole or not at all. Numbers are the shortest that read back to the same double. What could not
/// be read back is refused: no column, a NaN, a column name with a tab, metadata that repeats a key.
inline void write_profile(const std::string& path, const head_scores& scores, const metadata& more = {}) {
  const std::string text = detail::profile_text(scores, more);
  detail::parse_profile(path, text, &scores.shape());
  write_text_file(path, text);
}

/// Reads what write_profile wrote. Refuses anything else, naming file, line, field, what was found and what was
/// expected; and, where `expected` is given, the profile of a model of another shape. Any finite number is a score,
/// 1.0000001 and -0.1 too.
inline head_scores read_profile(const std::string& path, const model_shape* expected = nullptr) {
  return detail::parse_profile(path, read_text_file(path), expected);
}

}  // namespace headwise
