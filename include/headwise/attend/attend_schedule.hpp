// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "headwise/attend/softmax_merge.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/read_rows.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/store/run.hpp"

namespace headwise {

// What attend reads: a cache, or anything else that offers
//   | Expression                              | Returns       | Meaning                                               |
//   | cache.shape()                           | model_shape   |                                                       |
//   | cache.head(layer, kv_head)              | const Head&   |                                                       |
//   | head.length()                           | std::size_t   | tokens seen                                           |
//   | head.runs(), head.run_at(i)             | n, run        | the kept rows, in the order of position (store/run.hpp)|
//   | head.format()                           | a format      | of those rows                                         |
//   | head.folded()                           | std::size_t   | rows that a summary stands for                        |
//   | head.kept_from()                        | std::size_t   | rows at positions from here on are all kept           |
//   | head.evaluate(query, params, value_out) | summary_logit | the summary's row (policy/compensation.hpp)           |

/// The independent tasks of one attention call, and its scratch memory, which is kept for the next call: one schedule
/// per concurrent caller, and nothing is allocated once it has seen the largest call.
///
/// A task is a range of rows of one KV head, or its summary, against a block of queries of all query heads of the
/// group. Its borders depend on positions and on the shape of the call, never on the number of workers; whoever
/// finishes the last task of a block merges the parts in the order of position. So the bits are the same for 1 worker
/// and for 64.
class attend_schedule {
 public:
  /// Splits the attention of `q` [tokens, query_heads, head_dim] over a layer into tasks. The cache, q and out
  /// [tokens, query_heads, value_dim] must stay as they are until all tasks have run. Refuses wrong shapes, more
  /// queries than tokens, and queries at positions before rows that have been folded.
  template <class Cache>
  void prepare(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
               const attention_params& params = {});

  /// How many tasks there are, longest first.
  std::size_t tasks() const noexcept { return tasks_.size(); }

  /// Runs one task. Each must run once; any thread, any order.
  template <class Cache>
  void run(const Cache& cache, std::size_t i) noexcept;

 private:
  static constexpr std::size_t target_rows = 96;           // query rows (queries x group) of a task
  static constexpr std::size_t target_bytes = 256 * 1024;  // keys and values of a task, for a single block of queries
  static constexpr std::size_t most_workspaces = 64;

  struct query_rows {  // a block of queries of one KV head, and the parts its softmax comes in
    std::size_t kv_head;
    std::size_t first_query;
    std::size_t queries;
    std::size_t first_part;
    std::size_t parts;
    bool summary;  // the last part is the summary
  };
  struct task {
    std::size_t block;
    std::size_t part;
    std::size_t first_run;
    std::size_t last_run;  // == first_run: the summary, or no row
    std::size_t rows;
  };

  std::size_t rows_in(const query_rows& block) const noexcept { return block.queries * shape_.group(); }
  static std::size_t padded(std::size_t floats) noexcept { return (floats + 15) / 16 * 16; }
  std::size_t part_floats() const noexcept {
    return padded(block_queries_ * shape_.group() * (2 + shape_.value_size()));
  }
  std::size_t workspace_floats() const noexcept {
    const std::size_t rows = block_queries_ * shape_.group();
    return padded(rows * shape_.key_size() + kernel::scratch_floats(rows, shape_.key_size(), shape_.value_size()));
  }
  kernel::softmax_rows part(const query_rows& block, std::size_t index) noexcept {
    float* const start = partials_.data() + (block.first_part + index) * part_floats();
    return {start, start + rows_in(block), start + 2 * rows_in(block)};
  }

  /// A workspace that no other running task uses.
  std::size_t claim_workspace() noexcept {
    for (;;) {
      for (std::size_t i = 0; i < workspace_count_; ++i)
        if (!taken_[i].exchange(true, std::memory_order_acquire)) return i;
      std::this_thread::yield();
    }
  }

  template <class Cache>
  std::size_t checked_position(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
                               const attention_params& params) const;
  template <class Head>
  void add_block(const Head& head, query_rows block, std::size_t span);
  void make_room();
  void merge(const query_rows& block) noexcept;

  model_shape shape_;
  token_view q_;
  output_view out_;
  attention_params params_;
  std::size_t layer_ = 0;
  std::size_t block_queries_ = 1;
  std::vector<query_rows> blocks_;
  std::vector<task> tasks_;
  std::vector<float> partials_;
  std::vector<float> workspaces_;
  std::size_t workspace_count_ = 0;
  std::unique_ptr<std::atomic<bool>[]> taken_;
  std::unique_ptr<std::atomic<std::size_t>[]> unfinished_;  // parts of each block
  std::size_t unfinished_capacity_ = 0;
};

/// Refuses a call that makes no sense; returns the position of the first query.
template <class Cache>
std::size_t attend_schedule::checked_position(const Cache& cache, std::size_t layer, const token_view& q,
                                              const output_view& out, const attention_params& params) const {
  check(params);
  detail::check_view(q, "attend: queries", shape_.query_heads, shape_.key_size());
  detail::check_view(out, "attend: output", shape_.query_heads, shape_.value_size());
  if (q.tokens != out.tokens) detail::fail("attend: ", q.tokens, " queries and room for ", out.tokens, " outputs");
  const std::size_t length = cache.head(layer, 0).length();
  if (q.tokens > length)
    detail::fail("attend: ", q.tokens, " queries in layer ", layer, ", which has seen ", length, " tokens");
  const std::size_t first =
      params.first_position == attention_params::newest ? length - q.tokens : params.first_position;
  if (q.tokens != 0 && first > length - q.tokens)
    detail::fail("attend: queries at positions from ", first, " to ", first + q.tokens - 1, " in layer ", layer,
                 ", which has seen ", length, " tokens");
  for (std::size_t kv_head = 0; q.tokens != 0 && kv_head < shape_.kv_heads; ++kv_head)
    if (const std::size_t kept_from = cache.head(layer, kv_head).kept_from(); first + 1 < kept_from)
      detail::fail("attend: a query at position ", first, " of KV head ", layer, ".", kv_head, ", whose rows up to ",
                   kept_from - 1, " have left");
  return first;
}

template <class Cache>
void attend_schedule::prepare(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
                              const attention_params& params) {
  tasks_.clear();
  blocks_.clear();
  shape_ = cache.shape();
  params_ = params;
  params_.first_position = checked_position(cache, layer, q, out, params);
  params_.scale = params.scale_for(shape_.key_size());
  if (q.tokens == 0) return;
  q_ = q;
  out_ = out;
  layer_ = layer;
  block_queries_ = (std::min)(q.tokens, (std::max)(std::size_t{1}, target_rows / shape_.group()));
  const std::size_t query_blocks = (q.tokens + block_queries_ - 1) / block_queries_;

  for (std::size_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
    const auto& head = cache.head(layer, kv_head);
    // Many blocks of queries are parallel enough: longer ranges of rows then keep the parts to merge few.
    const std::size_t row_bytes = head.format().bytes(shape_.key_size()) + head.format().bytes(shape_.value_size());
    const std::size_t pages = (std::max)(std::size_t{1}, target_bytes / (row_bytes * kernel::block_rows));
    const std::size_t span = pages * kernel::block_rows * query_blocks;
    for (std::size_t first = 0; first < q.tokens; first += block_queries_) {
      const std::size_t first_part = blocks_.empty() ? 0 : blocks_.back().first_part + blocks_.back().parts;
      const std::size_t queries = (std::min)(block_queries_, q.tokens - first);
      add_block(head, {kv_head, first, queries, first_part, 0, head.folded() != 0}, span);
    }
  }
  std::sort(tasks_.begin(), tasks_.end(), [](const task& a, const task& b) {
    return a.rows != b.rows ? a.rows > b.rows : (a.block != b.block ? a.block < b.block : a.part < b.part);
  });
  make_room();
}

/// The tasks of one block of queries: a range of at most `span` positions each, from a multiple of span on.
template <class Head>
void attend_schedule::add_block(const Head& head, query_rows block, std::size_t span) {
  const std::size_t end = params_.first_position + block.first_query + block.queries;  // keys from here on are unseen
  const auto add = [&](std::size_t first_run, std::size_t last_run, std::size_t rows) {
    tasks_.push_back({blocks_.size(), block.parts++, first_run, last_run, rows});
  };
  std::size_t first = 0;
  std::size_t rows = 0;
  std::size_t i = 0;
  for (; i < head.runs(); ++i) {
    const headwise::run next = head.run_at(i);
    if (next.position >= end) break;
    if (rows != 0 && next.position / span != head.run_at(first).position / span) {
      add(first, i, rows);
      first = i;
      rows = 0;
    }
    rows += next.rows;
  }
  if (rows != 0) add(first, i, rows);
  if (block.summary || block.parts == 0) add(0, 0, 0);  // queries that see no row at all are a task too: it gives zeros
  blocks_.push_back(block);
}

/// Scratch memory and counters for the tasks at hand; nothing new where an earlier call needed as much.
inline void attend_schedule::make_room() {
  const std::size_t parts = blocks_.back().first_part + blocks_.back().parts;
  partials_.resize((std::max)(partials_.size(), parts * part_floats()));
  workspace_count_ = (std::min)(tasks_.size(), most_workspaces);
  workspaces_.resize((std::max)(workspaces_.size(), workspace_count_ * workspace_floats()));
  if (!taken_) taken_ = std::make_unique<std::atomic<bool>[]>(most_workspaces);
  if (unfinished_capacity_ < blocks_.size()) {
    unfinished_ = std::make_unique<std::atomic<std::size_t>[]>(blocks_.size());
    unfinished_capacity_ = blocks_.size();
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) unfinished_[b].store(blocks_[b].parts, std::memory_order_relaxed);
}

template <class Cache>
void attend_schedule::run(const Cache& cache, std::size_t i) noexcept {
  const task& mine = tasks_[i];
  const query_rows& block = blocks_[mine.block];
  const auto& head = cache.head(layer_, block.kv_head);
  const std::size_t workspace = claim_workspace();
  float* const rows = workspaces_.data() + workspace * workspace_floats();
  float* const scratch = rows + rows_in(block) * shape_.key_size();

  // Rows of the softmax: queries one after another, the query heads of the group side by side.
  const std::size_t group = shape_.group();
  for (std::size_t row = 0; row < rows_in(block); ++row) {
    float* const query = rows + row * shape_.key_size();
    detail::read_row(q_, block.first_query + row / group, block.kv_head * group + row % group, query);
    for (std::size_t j = 0; j < shape_.key_size(); ++j) query[j] *= params_.scale;
  }
  const kernel::query_block queries{rows,
                                    rows_in(block),
                                    group,
                                    shape_.key_size(),
                                    shape_.value_size(),
                                    &params_,
                                    params_.first_position + block.first_query};
  const kernel::softmax_rows state = part(block, mine.part);
  if (mine.first_run == mine.last_run && block.summary) {
    for (std::size_t row = 0; row < queries.count; ++row) {
      float* const value = state.out + row * shape_.value_size();
      const auto weight = head.evaluate(rows + row * shape_.key_size(), params_, value);
      // The mass goes into the sum, as that of kept rows does: added to a large logit it would be rounded away. Only
      // what the exponential could not hold stays with the logit.
      const float log_mass = (std::min)((std::max)(weight.log_mass, -60.0F), 60.0F);
      const float mass = std::exp(log_mass);
      state.maximum[row] = params_.capped(weight.mean_logit) + (weight.log_mass - log_mass);
      state.sum[row] = mass;
      for (std::size_t j = 0; j < shape_.value_size(); ++j) value[j] *= mass;
    }
  } else {
    state.clear(queries.count, queries.value_size);
    for (std::size_t r = mine.first_run; r < mine.last_run; ++r) {
      const headwise::run part = head.run_at(r);
      kernel::attend_block(head.format(), {part.keys, part.values, part.rows, part.position, part.bias}, queries,
                           scratch, state);
    }
  }
  taken_[workspace].store(false, std::memory_order_release);
  if (unfinished_[mine.block].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(block);
}

inline void attend_schedule::merge(const query_rows& block) noexcept {
  const std::size_t group = shape_.group();
  for (std::size_t row = 0; row < rows_in(block); ++row) {
    const auto part_at = [&](std::size_t i) {
      const kernel::softmax_rows state = part(block, i);
      return detail::partial_softmax{state.maximum[row], state.sum[row], state.out + row * shape_.value_size()};
    };
    const std::size_t token = block.first_query + row / group;
    const std::size_t query_head = block.kv_head * group + row % group;
    detail::merge_softmax(block.parts, part_at, block.summary,
                          out_.data + token * out_.token_stride + query_head * out_.head_stride, shape_.value_size());
  }
}

}  // namespace headwise
