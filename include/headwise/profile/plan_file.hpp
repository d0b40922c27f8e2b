// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/core/file.hpp"
#include "headwise/core/head_id.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/profile/metadata.hpp"
#include "headwise/profile/table_reader.hpp"

namespace headwise {

// A plan on disk, one row per KV head:
//   # headwise plan 1
//   # layers: 30            (query_heads, kv_heads, head_dim, value_dim likewise)
//   # sinks: 4
//   # min_recent: 4000
//   # divisor: 5            (then any other metadata)
//   layer	kv_head	role
//   0	0	local          (or: retrieval; or windowed:1024, the same for all heads of a layer)

/// A plan and the budget that goes with it.
struct plan_file {
  head_plan plan;
  razor_budget budget;
};

namespace detail {

inline std::string role_text(const head_plan& plan, head_id head) {
  const head_role role = plan.role(head);
  return role == head_role::windowed ? join("windowed:", plan.window(head.layer)) : to_string(role);
}

inline std::string plan_text(const plan_file& file, const metadata& more = {}) {
  const model_shape& shape = file.plan.shape();
  std::string text = "# headwise plan 1\n" + shape_lines(shape);
  text += join("# sinks: ", file.plan.sinks(), "\n# min_recent: ", file.budget.min_recent,
               "\n# divisor: ", file.budget.divisor, "\n");
  text += metadata_lines(more) + "layer\tkv_head\trole\n";
  for (std::size_t layer = 0; layer < shape.layers; ++layer)
    for (std::size_t head = 0; head < shape.kv_heads; ++head)
      text += join(layer, "\t", head, "\t", role_text(file.plan, {layer, head}), "\n");
  return text;
}

inline plan_file parse_plan(const std::string& path, std::string text, const model_shape* expected) {
  table_reader reader(path, std::move(text), "headwise plan 1");
  const model_shape shape = reader.shape(expected);
  const std::size_t sinks = reader.count("sinks");
  const razor_budget budget{reader.count("min_recent"), reader.count("divisor")};
  const auto& columns = reader.columns();
  if (columns.size() != 3 || columns[0] != "layer" || columns[1] != "kv_head" || columns[2] != "role")
    reader.refuse("columns", reader.line(), "layer, kv_head, role");
  std::vector<std::pair<std::size_t, std::size_t>> windows;  // of layers
  std::vector<head_id> retrieval;  // grows with the rows that are really there; a plan takes its size from the shape
  for (std::size_t i = 0; i < shape.heads(); ++i) {
    const auto& fields = reader.next_row(i, shape.heads());
    const head_id head{i / shape.kv_heads, i % shape.kv_heads};
    reader.expect_count(0, head.layer);
    reader.expect_count(1, head.kv_head);
    const std::string_view role = fields[2];
    const std::string_view windowed = "windowed:";
    const std::size_t window =
        role.substr(0, windowed.size()) == windowed ? parse_count(role.substr(windowed.size())).value_or(0) : 0;
    if (head.kv_head == 0 && window != 0) windows.emplace_back(head.layer, window);
    const std::size_t expected_window =
        !windows.empty() && windows.back().first == head.layer ? windows.back().second : 0;
    if (window != expected_window) reader.refuse("role", role, "the window of the layer's other heads");
    if (role == to_string(head_role::retrieval))
      retrieval.push_back(head);
    else if (role != to_string(head_role::local) && window == 0)
      reader.refuse("role", role, "retrieval, local or windowed:<tokens>");
  }
  reader.expect_end();

  plan_file file{head_plan(shape, head_role::local, sinks), budget};
  for (const auto& [layer, window] : windows) file.plan.set_window(layer, window);
  for (const head_id head : retrieval) file.plan.set(head, head_role::retrieval);
  return file;
}

}  // namespace detail

/// Writes a plan as a whole or not at all. What could not be read back is refused: metadata that repeats a key.
inline void write_plan(const std::string& path, const plan_file& file, const metadata& more = {}) {
  const std::string text = detail::plan_text(file, more);
  detail::parse_plan(path, text, &file.plan.shape());
  write_text_file(path, text);
}

/// Reads what write_plan wrote; strict as read_profile is.
inline plan_file read_plan(const std::string& path, const model_shape* expected = nullptr) {
  return detail::parse_plan(path, read_text_file(path), expected);
}

}  // namespace headwise
