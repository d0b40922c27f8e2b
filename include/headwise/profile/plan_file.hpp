// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include "headwise/core/head_plan.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/profile/metadata.hpp"
#include "headwise/profile/table_reader.hpp"
#include "headwise/profile/text_file.hpp"

namespace headwise {

// A plan on disk, one row per KV head:
//   # headwise plan 1
//   # layers: 30            (query_heads, kv_heads, head_dim, value_dim likewise)
//   # sinks: 4
//   # min_recent: 4000
//   # divisor: 5            (then any other metadata)
//   layer	kv_head	role
//   0	0	local

/// A plan and the budget that goes with it.
struct plan_file {
  head_plan plan;
  razor_budget budget;
};

/// Writes a plan as a whole or not at all.
inline void write_plan(const std::string& path, const plan_file& file, const metadata& more = {}) {
  const model_shape& shape = file.plan.shape();
  std::string text = "# headwise plan 1\n" + detail::shape_lines(shape);
  text += detail::join("# sinks: ", file.plan.sinks(), "\n# min_recent: ", file.budget.min_recent,
                       "\n# divisor: ", file.budget.divisor, "\n");
  text += detail::metadata_lines(more) + "layer\tkv_head\trole\n";
  for (std::size_t layer = 0; layer < shape.layers; ++layer)
    for (std::size_t head = 0; head < shape.kv_heads; ++head)
      text += detail::join(layer, "\t", head, "\t", to_string(file.plan.role({layer, head})), "\n");
  write_text_file(path, text);
}

/// Reads what write_plan wrote; strict as read_profile is.
inline plan_file read_plan(const std::string& path, const model_shape* expected = nullptr) {
  detail::table_reader reader(path, read_text_file(path), "headwise plan 1");
  const model_shape shape = reader.shape(expected);
  plan_file file{head_plan(shape), {}};
  file.plan.set_sinks(reader.count("sinks"));
  file.budget.min_recent = reader.count("min_recent");
  file.budget.divisor = reader.count("divisor");
  const auto& columns = reader.columns();
  if (columns.size() != 3 || columns[0] != "layer" || columns[1] != "kv_head" || columns[2] != "role")
    reader.refuse("columns", columns[0], "layer, kv_head, role");
  for (std::size_t i = 0; i < shape.heads(); ++i) {
    const auto& fields = reader.next_row(i, shape.heads());
    const head_id head{i / shape.kv_heads, i % shape.kv_heads};
    reader.expect_count(0, head.layer);
    reader.expect_count(1, head.kv_head);
    if (fields[2] == to_string(head_role::retrieval))
      file.plan.set(head, head_role::retrieval);
    else if (fields[2] != to_string(head_role::local))
      reader.refuse("role", fields[2], "retrieval or local");
  }
  reader.expect_end();
  return file;
}

}  // namespace headwise
