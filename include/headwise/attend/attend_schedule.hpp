// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "headwise/attend/mask.hpp"
#include "headwise/attend/received_attention.hpp"
#include "headwise/attend/softmax_merge.hpp"
#include "headwise/config.hpp"
#include "headwise/core/aligned_memory.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/key_range.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/store/run.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

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

/// What attention may tell beside its output.
struct attention_extras {
  /// Log of the softmax's sum, per query token and query head: [tokens, query_heads], packed. A weight is
  /// e^(logit - log_sum_exp): in float64, since a float32 near a large logit would be too coarse for that. The lowest
  /// float32 for a query that sees nothing.
  double* log_sum_exp = nullptr;
  /// Collects what each row received. Costs a strip of weights per running task, [rows, queries of the task].
  received_attention* received = nullptr;
};

/// The independent tasks of one attention call, over one sequence or a batch of them, and its scratch memory, which is
/// kept for the next call: one schedule per concurrent caller, and nothing is allocated once it has seen the largest.
///
/// A task is a range of rows of one KV head, or its summary, against a block of queries of all query heads of the
/// group. Its borders depend on positions and on the shape of the call, never on the number of workers; whoever
/// finishes the last task of a block merges the parts in the order of position. So the bits are the same for 1 worker
/// and for 64.
class attend_schedule {
 public:
  /// The tasks of one sequence: the attention of `q` [tokens, query_heads, head_dim] over a layer, to `out`
  /// [tokens, query_heads, value_dim]. All of these must stay as they are until all tasks have run. Refuses wrong
  /// shapes, more queries than tokens, and queries at positions before rows that have left.
  template <class Cache, class Mask = causal>
  void prepare(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
               const attention_params& params = {}, const Mask& mask = {}, const attention_extras& extras = {}) {
    begin();
    add(cache, layer, q, out, params, mask, extras);
    ready();
  }

  /// A batch: begin(), add() for each sequence, of any lengths and types, ready(). After an error there is no task.
  void begin() noexcept {
    sequences_.clear();
    blocks_.clear();
    tasks_.clear();
    ranges_.clear();
    partial_floats_ = workspace_floats_ = ready_tasks_ = 0;
  }
  template <class Cache, class Mask = causal>
  void add(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
           const attention_params& params = {}, const Mask& mask = {}, const attention_extras& extras = {});
  void ready();

  /// How many tasks there are, longest first.
  std::size_t tasks() const noexcept { return ready_tasks_; }

  /// Fork and join: runs one task. Each must run once; any thread, any order.
  void run(std::size_t i) noexcept { sequences_[blocks_[tasks_[i].block].sequence].run(*this, tasks_[i]); }

  /// SPMD: called by each of `threads` threads, it returns when no task is left to take. Another thread may still be
  /// at its last one, so the output is complete when all have returned.
  void run(std::size_t /*thread*/, std::size_t /*threads*/) noexcept {
    for (std::size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < ready_tasks_;
         i = next_.fetch_add(1, std::memory_order_relaxed))
      run(i);
  }

 private:
  static constexpr std::size_t target_rows = 192;           // query rows (queries x group) of a task
  static constexpr std::size_t target_bytes = 1024 * 1024;  // keys and values of a task, for a single block of queries
  static constexpr std::size_t most_workspaces = 64;
  static constexpr std::size_t whole = (std::numeric_limits<std::size_t>::max)();  // a span without borders
  static constexpr std::size_t runs_at_once = 16;  // runs that a kernel gets in one call, to the end of a block

  /// Makes a vector's code this file's own: that of std::vector<key_range> could be the one of a file with other flags.
  template <class T>
  struct own_allocator : std::allocator<T> {
    template <class Other>
    struct rebind {
      using other = own_allocator<Other>;
    };
    own_allocator() = default;
    template <class Other>
    own_allocator(const own_allocator<Other>& /*other*/) noexcept {}
  };

  struct task {
    std::size_t block;
    std::size_t part;
    std::size_t first_run;
    std::size_t last_run;  // == first_run: the summary alone, or no row
    std::size_t rows;
  };
  struct sequence {
    void (*run)(attend_schedule&, const task&) noexcept;
    const void* cache;
    const kernel::functions* kernels;
    model_shape shape;
    token_view q;
    output_view out;
    attention_params params;
    attention_extras extras;
    std::size_t layer;
    std::size_t first_range;  // what each query token sees, in ranges_
  };
  struct query_rows {  // a block of queries of one KV head, and the parts its softmax comes in
    std::size_t sequence;
    std::size_t kv_head;
    std::size_t first_query;
    std::size_t queries;
    std::size_t count;  // queries x group
    std::size_t parts;
    std::size_t partials;     // where they lie
    std::size_t part_floats;  // of each
    bool summary;             // the last part is the summary
  };

  static std::size_t padded(std::size_t floats) noexcept { return (floats + 15) / 16 * 16; }  // whole cache lines
  static float* floats_of(aligned_memory& memory) noexcept { return reinterpret_cast<float*>(memory.data()); }
  static void make_room(aligned_memory& memory, std::size_t floats) {
    if (memory.size() < floats * sizeof(float)) memory = aligned_memory(floats * sizeof(float));
  }

  kernel::softmax_rows part(const query_rows& block, std::size_t index) noexcept {
    float* const start = floats_of(partials_) + block.partials + index * block.part_floats;
    return {start, start + padded(block.count), start + 2 * padded(block.count)};
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
  static std::size_t checked_position(const Cache& cache, std::size_t layer, const token_view& q,
                                      const output_view& out, const attention_params& params);
  template <class Head>
  void add_block(const Head& head, query_rows block, const key_range& sees, std::size_t span);
  template <class Cache>
  void run_task(const task& mine) noexcept;
  template <class Head>
  void evaluate_summary(const Head& head, const sequence& of, const kernel::query_block& queries,
                        const kernel::softmax_rows& state) const noexcept;
  template <class Head>
  void hand_out(const Head& head, const task& mine, const kernel::query_block& queries, std::size_t kv_head,
                const float* strip, float* scratch, const kernel::softmax_rows& state) const noexcept;
  void merge(const query_rows& block) noexcept;

  std::vector<sequence> sequences_;
  std::vector<query_rows> blocks_;
  std::vector<task> tasks_;
  std::vector<key_range, own_allocator<key_range>> ranges_;
  aligned_memory partials_;
  aligned_memory workspaces_;
  std::size_t partial_floats_ = 0;
  std::size_t workspace_floats_ = 0;
  std::size_t workspace_count_ = 0;
  std::size_t ready_tasks_ = 0;
  std::unique_ptr<std::atomic<bool>[]> taken_;
  std::unique_ptr<std::atomic<std::size_t>[]> unfinished_;  // per block: parts that are still to be computed
  std::size_t unfinished_capacity_ = 0;
  std::atomic<std::size_t> next_{0};
};

/// Refuses a call that cannot be answered; else the position of its first query.
template <class Cache>
std::size_t attend_schedule::checked_position(const Cache& cache, std::size_t layer, const token_view& q,
                                              const output_view& out, const attention_params& params) {
  const model_shape shape = cache.shape();
  check(params);
  if (layer >= shape.layers) detail::fail("attend: no layer ", layer, " in a model of ", to_string(shape));
  detail::check_view(q, "attend: queries", shape.query_heads, shape.key_size());
  detail::check_view(out, "attend: output", shape.query_heads, shape.value_size());
  if (q.tokens != out.tokens) detail::fail("attend: ", q.tokens, " queries and room for ", out.tokens, " outputs");
  const std::size_t length = cache.head(layer, 0).length();
  if (q.tokens > length) detail::fail("attend: ", q.tokens, " queries, the layer has ", length, " tokens");
  const std::size_t first =
      params.first_position == attention_params::newest ? length - q.tokens : params.first_position;
  if (first > length - q.tokens)
    detail::fail("attend: queries at positions ", first, " to ", first + q.tokens - 1, ", the layer has ", length,
                 " tokens");
  return first;
}

template <class Cache, class Mask>
void attend_schedule::add(const Cache& cache, std::size_t layer, const token_view& q, const output_view& out,
                          const attention_params& params, const Mask& mask, const attention_extras& extras) {
  detail::require_mask<Mask>();
  sequence of{};
  of.params = params;
  of.params.first_position = checked_position(cache, layer, q, out, params);
  of.shape = cache.shape();
  of.params.scale = params.scale_for(of.shape.key_size());
  if (q.tokens == 0) return;
  of.run = [](attend_schedule& schedule, const task& mine) noexcept { schedule.run_task<Cache>(mine); };
  of.cache = &cache;
  of.kernels = &kernel::for_sizes(of.shape.key_size(), of.shape.value_size());
  of.q = q;
  of.out = out;
  of.extras = extras;
  of.layer = layer;
  of.first_range = ranges_.size();
  for (std::size_t token = 0; token < q.tokens; ++token) {
    const key_range sees = mask(of.params.first_position + token);
    if (token != 0 && (sees.begin < ranges_.back().begin || sees.end < ranges_.back().end))
      detail::fail("attend: the query at position ", of.params.first_position + token, " sees keys from ", sees.begin,
                   " to ", sees.end, ", the one before from ", ranges_.back().begin, " to ", ranges_.back().end,
                   ": a mask must not go back");
    ranges_.push_back(sees);
  }

  const std::size_t key_size = of.shape.key_size();
  const std::size_t value_size = of.shape.value_size();
  const std::size_t group = of.shape.group();
  const std::size_t block_queries = (std::min)(q.tokens, (std::max)(std::size_t{1}, target_rows / group));
  const std::size_t query_blocks = (q.tokens + block_queries - 1) / block_queries;
  for (std::size_t kv_head = 0; kv_head < of.shape.kv_heads; ++kv_head) {
    const auto& head = cache.head(layer, kv_head);
    if (extras.received != nullptr && extras.received->length() < head.length())
      detail::fail("attend: room for the attention received by ", extras.received->length(), " rows, the layer has ",
                   head.length(), " tokens");
    // Many blocks of queries are parallel enough: longer ranges of rows then keep the parts to merge few.
    const std::size_t row_bytes = head.format().bytes(key_size) + head.format().bytes(value_size);
    const std::size_t pages = (std::max)(std::size_t{1}, target_bytes / (row_bytes * kernel::block_rows));
    const std::size_t span = extras.received != nullptr ? whole : pages * kernel::block_rows * query_blocks;
    for (std::size_t first = 0; first < q.tokens; first += block_queries) {
      const key_range& earliest = ranges_[of.first_range + first];
      const std::size_t queries = (std::min)(block_queries, q.tokens - first);
      const key_range sees{earliest.begin, ranges_[of.first_range + first + queries - 1].end};
      for (std::size_t token = first; token < first + queries; ++token) {
        const key_range& own = ranges_[of.first_range + token];
        if (own.begin < head.kept_from() && (own.begin != 0 || own.end < head.kept_from()))
          detail::fail("attend: a query at position ", of.params.first_position + token, " of KV head ", layer, ".",
                       kv_head, " sees positions ", own.begin, " to ", own.end - 1, ", of which rows up to ",
                       head.kept_from() - 1, " have left");
      }
      query_rows block{};
      block.sequence = sequences_.size();
      block.kv_head = kv_head;
      block.first_query = first;
      block.queries = queries;
      block.count = queries * group;
      block.part_floats = 2 * padded(block.count) + padded(block.count * value_size);
      block.summary = head.folded() != 0 && sees.begin == 0;
      add_block(head, block, sees, span);
    }
  }
  const std::size_t rows = block_queries * group;
  std::size_t floats = padded(rows * key_size) + kernel::scratch_floats(*of.kernels, rows, key_size, value_size);
  if (extras.received != nullptr) {
    std::size_t most = 0;
    for (const task& each : tasks_) most = (std::max)(most, each.last_run - each.first_run);
    floats = padded(floats) + most * of.kernels->strip_floats(rows);
  }
  workspace_floats_ = (std::max)(workspace_floats_, padded(floats));
  sequences_.push_back(of);
  if (extras.received != nullptr)
    for (std::size_t token = 0; token < q.tokens; ++token) extras.received->count(ranges_[of.first_range + token]);
}

/// The tasks of one block of queries: a range of at most `span` positions each, from a multiple of span on.
template <class Head>
void attend_schedule::add_block(const Head& head, query_rows block, const key_range& sees, std::size_t span) {
  const auto add = [&](std::size_t first_run, std::size_t last_run, std::size_t rows) {
    tasks_.push_back({blocks_.size(), block.parts++, first_run, last_run, rows});
  };
  std::size_t first = 0;
  std::size_t rows = 0;
  std::size_t i = 0;
  for (; i < head.runs(); ++i) {
    const headwise::run next = head.run_at(i);
    if (next.position >= sees.end) break;
    if (next.position + next.rows <= sees.begin) {
      first = i + 1;
      continue;
    }
    if (rows != 0 && next.position / span != head.run_at(first).position / span) {
      add(first, i, rows);
      first = i;
      rows = 0;
    }
    rows += next.rows;
  }
  if (rows != 0) add(first, i, rows);
  const bool together = span == whole && block.parts != 0;  // rows and summary in one task
  if ((block.summary && !together) || block.parts == 0)
    add(0, 0, 0);  // queries that see no row at all are a task too: it gives zeros
  block.partials = partial_floats_;
  partial_floats_ += block.parts * block.part_floats;
  blocks_.push_back(block);
}

/// Order of the tasks, scratch memory and counters; nothing new where an earlier call needed as much.
inline void attend_schedule::ready() {
  next_.store(0, std::memory_order_relaxed);
  if (tasks_.empty()) return;
  std::sort(tasks_.begin(), tasks_.end(), [](const task& a, const task& b) {
    return a.rows != b.rows ? a.rows > b.rows : (a.block != b.block ? a.block < b.block : a.part < b.part);
  });
  workspace_count_ = (std::min)(tasks_.size(), most_workspaces);
  make_room(partials_, partial_floats_);
  make_room(workspaces_, workspace_count_ * workspace_floats_);
  if (!taken_) taken_ = std::make_unique<std::atomic<bool>[]>(most_workspaces);
  if (unfinished_capacity_ < blocks_.size()) {
    unfinished_ = std::make_unique<std::atomic<std::size_t>[]>(blocks_.size());
    unfinished_capacity_ = blocks_.size();
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) unfinished_[b].store(blocks_[b].parts, std::memory_order_relaxed);
  ready_tasks_ = tasks_.size();
}

template <class Cache>
void attend_schedule::run_task(const task& mine) noexcept {
  const query_rows& block = blocks_[mine.block];
  const sequence& of = sequences_[block.sequence];
  const auto& head = static_cast<const Cache*>(of.cache)->head(of.layer, block.kv_head);
  const std::size_t workspace = claim_workspace();
  float* const rows = floats_of(workspaces_) + workspace * workspace_floats_;
  float* const scratch = rows + padded(block.count * of.shape.key_size());

  // Rows of the softmax: queries one after another, the query heads of the group side by side.
  const std::size_t group = of.shape.group();
  for (std::size_t row = 0; row < block.count; ++row) {
    float* const query = rows + row * of.shape.key_size();
    kernel::read_row(*of.kernels, of.q, block.first_query + row / group, block.kv_head * group + row % group, query);
    for (std::size_t j = 0; j < of.shape.key_size(); ++j) query[j] *= of.params.scale;
  }
  const kernel::query_block queries{rows,
                                    block.count,
                                    group,
                                    of.shape.key_size(),
                                    of.shape.value_size(),
                                    &of.params,
                                    ranges_.data() + of.first_range + block.first_query};
  const kernel::softmax_rows state = part(block, mine.part);
  const bool alone = block.parts == 1;
  if (block.summary && (alone || mine.first_run == mine.last_run))
    evaluate_summary(head, of, queries, state);
  else
    kernel::clear(state, block.count, queries.value_size);

  float* const strip_data =
      scratch + padded(kernel::scratch_floats(*of.kernels, block.count, queries.key_size, queries.value_size));
  kernel::weight_strip strip{strip_data, 0};
  // Where the pages are is read for a handful of runs at a time: page tables are cold, and their misses then overlap;
  // many more, and what was read has left the cache again before it is used.
  kernel::row_block runs[2 * kernel::block_rows];
  for (std::size_t r = mine.first_run; r < mine.last_run;) {
    std::size_t count = 0;
    std::size_t ahead = 0;
    for (; ahead == 0 && r + count < mine.last_run; ++count) {
      const headwise::run next = head.run_at(r + count);
      runs[count] = {next.keys, next.values, next.rows, next.position, next.bias};
      if (count >= runs_at_once && next.position / kernel::block_rows != runs[count - 1].position / kernel::block_rows)
        ahead = 1;  // blocks stay whole
    }
    count -= ahead;
    r += count;
    kernel::attend_runs(*of.kernels, head.format(), runs, count, ahead, queries, scratch, state,
                        of.extras.received != nullptr ? &strip : nullptr);
  }
  if (of.extras.received != nullptr && strip.blocks != 0)
    hand_out(head, mine, queries, block.kv_head, strip_data, scratch, state);
  taken_[workspace].store(false, std::memory_order_release);
  if (unfinished_[mine.block].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(block);
}

/// The summary as an unfinished softmax of one row, for the queries whose range begins at 0.
template <class Head>
void attend_schedule::evaluate_summary(const Head& head, const sequence& of, const kernel::query_block& queries,
                                       const kernel::softmax_rows& state) const noexcept {
  const std::size_t value_size = queries.value_size;
  kernel::clear(state, queries.count, value_size);
  for (std::size_t row = 0; row < queries.count && queries.sees[row / queries.group].begin == 0; ++row) {
    float* const value = state.out + row * value_size;
    const auto weight = head.evaluate(queries.rows + row * queries.key_size, of.params, value);
    // The mass goes into the sum, as that of kept rows does: added to a large logit it would be rounded away. Only
    // what the exponential could not hold stays with the logit.
    const float log_mass = (std::min)((std::max)(weight.log_mass, -60.0F), 60.0F);
    const float mass = std::exp(log_mass);
    state.maximum[row] = of.params.capped(weight.mean_logit) + (weight.log_mass - log_mass);
    state.sum[row] = mass;
    for (std::size_t j = 0; j < value_size; ++j) value[j] *= mass;
  }
}

/// What the rows of a task received, once its queries have seen all of theirs.
template <class Head>
void attend_schedule::hand_out(const Head& head, const task& mine, const kernel::query_block& queries,
                               std::size_t kv_head, const float* strip, float* scratch,
                               const kernel::softmax_rows& state) const noexcept {
  const sequence& of = sequences_[blocks_[mine.block].sequence];
  const key_range any{queries.sees[0].begin, queries.sees[queries.count / queries.group - 1].end};
  const std::size_t entry_floats = of.kernels->strip_floats(queries.count);
  for (std::size_t r = mine.first_run; r < mine.last_run; ++r) {
    const headwise::run run = head.run_at(r);
    const key_range seen = any.within(run.position, run.rows);
    if (seen.begin >= seen.end) continue;
    of.kernels->received(strip, queries.count, state, scratch);
    strip += entry_floats;
    for (std::size_t i = seen.begin; i < seen.end; ++i)
      of.extras.received->add(kv_head, run.position + i, scratch[i - seen.begin]);
  }
}

inline void attend_schedule::merge(const query_rows& block) noexcept {
  const sequence& of = sequences_[block.sequence];
  const std::size_t group = of.shape.group();
  const std::size_t value_size = of.shape.value_size();
  for (std::size_t row = 0; row < block.count; ++row) {
    const auto part_at = [&](std::size_t i) {
      const kernel::softmax_rows state = part(block, i);
      return kernel::partial_softmax{state.maximum[row], state.sum[row], state.out + row * value_size};
    };
    const std::size_t token = block.first_query + row / group;
    const std::size_t query_head = block.kv_head * group + row % group;
    const double log_sum =
        kernel::merge_softmax(block.parts, part_at, block.summary,
                              of.out.data + token * of.out.token_stride + query_head * of.out.head_stride, value_size);
    if (of.extras.log_sum_exp != nullptr) of.extras.log_sum_exp[token * of.shape.query_heads + query_head] = log_sum;
  }
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
