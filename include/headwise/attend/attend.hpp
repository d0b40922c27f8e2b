// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "headwise/attend/attend_schedule.hpp"
#include "headwise/attend/mask.hpp"
#include "headwise/config.hpp"
#include "headwise/core/executor.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Causal attention of a chunk of queries over what a layer of a cache holds, the chunk's own rows included: append
/// first, then attend. q is [tokens, query_heads, head_dim] after RoPE, out [tokens, query_heads, value_dim], any
/// strides; query head h reads KV head h / group. By default the queries are those of the last rows appended.
/// `schedule` keeps the scratch memory from call to call. With nothing folded this is exact attention over the stored
/// rows; else each local head's summary takes part as one more row.
/// Refuses wrong shapes, more queries than tokens, and queries from before the rows that have left.
template <class Cache, class Executor = serial, class Mask = causal>
void attend(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
            attend_schedule& schedule, const Executor& executor = {}, const attention_params& params = {},
            const Mask& mask = {}, const attention_extras& extras = {}) {
  schedule.prepare(cache, layer, q, out, params, mask, extras);
  executor(schedule.tasks(), [&](std::size_t i) { schedule.run(i); });
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
