// SPDX-License-Identifier: MIT
// What does a decoded token cost, beside what the machine can do and beside other engines on the same bytes?
//   decode/<kind>/<format>/<geometry>/<tokens>/threads:<n>       a step is one layer of one token
//   full         every row, attention alone
//   compressed   append, fold, summary, attention: 15 % retrieval heads, a window of max(4000, tokens / 5)
//   local        the same of local heads alone, with a window of 1024: flat, whatever the context
//   runs<r>      as many rows as full, in runs of r rows with gaps between
//   batch8       8 sequences of mixed lengths, the longest of `tokens`
// Counters; a ratio is the median over the rounds, of times taken within one round:
//   rows, MiB    of a step (MiB: rows and summaries)
//   GB/s, GFMA   the limits of these rounds: best read, multiply-adds in registers
//   read, roof   share: time to read these bytes, max(that, time of the multiply-adds), over the time taken
//   flash, plain time of the other engine's attention with and without flash attention over ours; for compressed and
//                local, whose heads it cannot drop rows from, over the full cache
//   faster       the smaller of the two, round by round
//   full         time of our own full cache over this one; bytes: its bytes over these; full/bytes: what of that saving
//                time follows
//   apart        batch8: time of one call for each sequence over that of one for all
//   vs2048       time over that at 2048 tokens
//   error, orig  rms against float64 attention over the stored rows, and over the rows before rounding; flash_err: the
//                other engine's over the same stored rows
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "anchors/layers.hpp"
#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "roofline.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr std::size_t shortest = 2048;

struct config {
  geometry of;
  std::size_t tokens;
  std::size_t threads;
  int rounds;
};

/// All contenders of one benchmark, and the limits of every round.
class contest {
 public:
  explicit contest(const config& what) : what_(what), probe_(what.threads), turns_(what.threads) {
    turns_.add_probe([this] { limits_.push_back(probe_.measure()); });
  }

  rounds& turns() { return turns_; }

  /// The other engine over `cache`, in both ways.
  template <class Cache>
  void add_anchors(const Cache& cache, std::size_t layers, const std::vector<float>& q) {
    using format = std::decay_t<decltype(cache.head(0, 0).format())>;
    for (const auto how : {anchor::path::flash, anchor::path::plain})
      if (anchor::supports(how, element_of<format>()))
        anchors_[static_cast<std::size_t>(how)].push_back(
            std::make_unique<anchor_steps>(how, cache, layers, what_.of, q.data(), 1, what_.threads));
  }

  /// Runs the rounds and reports what they say about contender `ours`, whose step costs `cost`.
  void run(benchmark::State& state, std::size_t ours, const step_cost& cost) {
    std::size_t other[2] = {ours, ours};
    for (std::size_t path = 0; path < 2; ++path)
      if (!anchors_[path].empty())
        other[path] = turns_.add([this, path](std::size_t i) {
          for (auto& sequence : anchors_[path]) sequence->step(i);
        });
    for (auto _ : state) {
      for (int round = 0; round < what_.rounds; ++round) turns_.run_one();
      state.SetIterationTime(turns_.median_seconds(ours));
    }
    std::vector<double> read, fma;
    for (const roofline& limits : limits_) read.push_back(limits.read / giga), fma.push_back(limits.fma / giga);
    const auto inverse = [](double x) { return 1.0 / x; };
    state.counters["rows"] = cost.rows;
    state.counters["MiB"] = cost.bytes / static_cast<double>(mebibyte);
    state.counters["GB/s"] = median(read);
    state.counters["GFMA"] = median(fma);
    state.counters["read"] =
        inverse(turns_.median_of(ours, [&](std::size_t r) { return cost.bytes / limits_[r].read; }));
    state.counters["roof"] = inverse(turns_.median_of(ours, [&](std::size_t r) { return cost.seconds(limits_[r]); }));
    if (!anchors_[0].empty()) state.counters["flash"] = turns_.ratio(other[0], ours);
    if (!anchors_[1].empty()) state.counters["plain"] = turns_.ratio(other[1], ours);
    if (!anchors_[0].empty() && !anchors_[1].empty())
      state.counters["faster"] = 1.0 / turns_.median_of(ours, [&](std::size_t r) {
        return (std::min)(turns_.seconds(other[0])[r], turns_.seconds(other[1])[r]);
      });
  }

  /// What flash attention wrote for the first layer of the first sequence, and head 0 on.
  const float* flash_out() {
    if (anchors_[0].empty()) return nullptr;
    anchors_[0].front()->step(0);
    return anchors_[0].front()->out();
  }

 private:
  config what_;
  roofline_probe probe_;
  rounds turns_;
  std::vector<roofline> limits_;
  std::vector<std::unique_ptr<anchor_steps>> anchors_[2];
};

template <class Head>
void report_error(benchmark::State& state, const Head& head, const config& what, const row_source& source,
                  const std::vector<float>& q, const float* out, contest& all) {
  const output_error error = error_of(head, 0, 0, what.of, source, q.data(), out);
  state.counters["error"] = error.stored;
  state.counters["orig"] = error.original;
  if (const float* const flash = all.flash_out())
    state.counters["flash_err"] = error_of(head, 0, 0, what.of, source, q.data(), flash).stored;
}

template <class Format>
void full(benchmark::State& state, const config& what) {
  const row_source source(what.of);
  const std::size_t layers = cold_layers(what.of, what.tokens, Format::bytes(1));
  const auto cache = full_cache<Format>(what.of, layers, what.tokens, source);
  const std::vector<float> q = random_floats(what.of.query_heads() * what.of.dim, 9);
  contest all(what);
  attend_steps<bench_cache<Format>> attention(cache, what.of, q, 1, what.threads);
  const std::size_t ours = all.turns().add([&](std::size_t i) { attention.step(i); });
  all.add_anchors(cache, layers, q);

  const bool longer = what.tokens > shortest;
  const auto short_cache = full_cache<Format>(what.of, longer ? cold_layers(what.of, shortest, Format::bytes(1)) : 1,
                                              longer ? shortest : 1, source);
  attend_steps<bench_cache<Format>> short_attention(short_cache, what.of, q, 1, what.threads);
  std::size_t at_shortest = ours;
  if (longer) at_shortest = all.turns().add([&](std::size_t i) { short_attention.step(i); });

  all.run(state, ours, decode_cost(cache, what.of));
  if (longer) state.counters["vs2048"] = all.turns().ratio(ours, at_shortest);
  attention.step(0);
  report_error(state, cache.head(0, 0), what, source, q, attention.out(), all);
}

template <class Format>
void runs(benchmark::State& state, const config& what, std::size_t run_rows) {
  const row_source source(what.of);
  const std::size_t layers = cold_layers(what.of, what.tokens, Format::bytes(1));
  const fragmented_layers<Format> cache(what.of, layers, what.tokens, run_rows, source);
  const std::vector<float> q = random_floats(what.of.query_heads() * what.of.dim, 9);
  contest all(what);
  attend_steps<fragmented_layers<Format>> attention(cache, what.of, q, 1, what.threads);
  const std::size_t ours = all.turns().add([&](std::size_t i) { attention.step(i); });
  all.add_anchors(cache, layers, q);
  all.run(state, ours, decode_cost(cache, what.of));
  attention.step(0);
  report_error(state, cache.head(0, 0), what, source, q, attention.out(), all);
}

/// One token of a layer with everything on: its row is appended, what exceeds the window is folded, and it attends.
template <class Format>
class decode_steps {
 public:
  decode_steps(bench_cache<Format>& cache, const geometry& of, const std::vector<float>& q, const row_source& source,
               std::size_t threads)
      : cache_(&cache), source_(&source), attention_(cache, of, q, 1, threads) {}

  void step(std::size_t i) {
    source_->append(*cache_, i % cache_->shape().layers, 1);
    attention_.step(i);
  }
  const float* out() const { return attention_.out(); }

 private:
  bench_cache<Format>* cache_;
  const row_source* source_;
  attend_steps<bench_cache<Format>> attention_;
};

template <class Format>
step_cost compressed_cost(const bench_cache<Format>& cache, const geometry& of) {
  step_cost cost = decode_cost(cache, of);
  cost.bytes += static_cast<double>(cache.report().summary_bytes) / static_cast<double>(cache.shape().layers);
  return cost;
}

/// Errors of head 0, and of the first head that keeps every row, whichever are worse.
template <class Format>
void report_error(benchmark::State& state, const bench_cache<Format>& cache, const config& what,
                  const row_source& source, const std::vector<float>& q, const float* out) {
  output_error error = error_of(cache.head(0, 0), 0, 0, what.of, source, q.data(), out);
  for (std::size_t head = 1; head < what.of.kv_heads; ++head)
    if (cache.head(0, head).folded() == 0) {
      const std::size_t first = head * what.of.group * what.of.dim;
      error = error.worse(error_of(cache.head(0, head), 0, head, what.of, source, q.data() + first, out + first));
      break;
    }
  state.counters["error"] = error.stored;
  state.counters["orig"] = error.original;
}

template <class Format>
void compressed(benchmark::State& state, const config& what) {
  const row_source source(what.of);
  const std::vector<float> q = random_floats(what.of.query_heads() * what.of.dim, 9);
  const std::size_t full_layers = cold_layers(what.of, what.tokens, Format::bytes(1));
  const auto own_full = full_cache<Format>(what.of, full_layers, what.tokens, source);

  const headwise::razor_budget budget;  // max(4000, tokens / 5)
  const std::size_t unit = layers_of_20_heads(what.of);
  const std::size_t kept = what.tokens * 3 / 20 + (std::min)(what.tokens, budget({}, what.tokens)) * 17 / 20 + 1;
  const std::size_t layers = (cold_layers(what.of, kept, Format::bytes(1)) + unit - 1) / unit * unit;
  auto cache = filled_cache<Format>(retrieval_15_percent(what.of.shape(layers)), budget, what.tokens, source);

  contest all(what);
  decode_steps<Format> decoding(cache, what.of, q, source, what.threads);
  attend_steps<bench_cache<Format>> full_attention(own_full, what.of, q, 1, what.threads);
  const step_cost cost = compressed_cost(cache, what.of);
  const step_cost full_cost = decode_cost(own_full, what.of);
  const std::size_t ours = all.turns().add([&](std::size_t i) { decoding.step(i); }, layers);  // layers are unequal
  const std::size_t with_all = all.turns().add([&](std::size_t i) { full_attention.step(i); });
  all.add_anchors(own_full, full_layers, q);
  all.run(state, ours, cost);
  const double faster = all.turns().ratio(with_all, ours);
  state.counters["full"] = faster;
  state.counters["bytes"] = full_cost.bytes / cost.bytes;
  state.counters["full/bytes"] = faster * cost.bytes / full_cost.bytes;

  decoding.step(0);
  report_error(state, cache, what, source, q, decoding.out());
}

template <class Format>
void local(benchmark::State& state, const config& what) {
  const row_source source(what.of);
  const std::vector<float> q = random_floats(what.of.query_heads() * what.of.dim, 9);
  const headwise::razor_budget budget = fixed_window(1024);
  const std::size_t layers = cold_layers(what.of, 1024, Format::bytes(1));
  const auto make = [&](std::size_t tokens) {
    return filled_cache<Format>(headwise::head_plan(what.of.shape(layers)), budget, tokens, source);
  };
  auto cache = make(what.tokens);
  auto short_cache = make(shortest);
  contest all(what);
  decode_steps<Format> decoding(cache, what.of, q, source, what.threads);
  decode_steps<Format> short_decoding(short_cache, what.of, q, source, what.threads);
  const step_cost cost = compressed_cost(cache, what.of);
  const std::size_t ours = all.turns().add([&](std::size_t i) { decoding.step(i); });
  const std::size_t at_shortest = all.turns().add([&](std::size_t i) { short_decoding.step(i); });
  const std::size_t full_layers = cold_layers(what.of, what.tokens, Format::bytes(1));
  all.add_anchors(full_cache<Format>(what.of, full_layers, what.tokens, source), full_layers, q);
  all.run(state, ours, cost);
  state.counters["vs2048"] = all.turns().ratio(ours, at_shortest);
  const auto dense = static_cast<double>(what.tokens * what.of.kv_heads * 2 * Format::bytes(what.of.dim));
  state.counters["bytes"] = dense / cost.bytes;
  decoding.step(0);
  report_error(state, cache, what, source, q, decoding.out());
}

template <class Format>
void batch(benchmark::State& state, const config& what) {
  constexpr std::size_t eighths[] = {8, 1, 4, 2, 7, 1, 3, 6};
  const row_source source(what.of);
  const std::vector<float> q = random_floats(what.of.query_heads() * what.of.dim, 9);
  std::size_t sum = 0;
  for (const std::size_t eighth : eighths) sum += what.tokens * eighth / 8;
  const std::size_t layers = cold_layers(what.of, sum, Format::bytes(1));
  std::vector<std::unique_ptr<bench_cache<Format>>> caches;
  std::vector<std::unique_ptr<attend_steps<bench_cache<Format>>>> attentions;
  contest all(what);
  step_cost cost;
  for (const std::size_t eighth : eighths) {
    caches.push_back(
        std::make_unique<bench_cache<Format>>(full_cache<Format>(what.of, layers, what.tokens * eighth / 8, source)));
    attentions.push_back(
        std::make_unique<attend_steps<bench_cache<Format>>>(*caches.back(), what.of, q, 1, what.threads));
    all.add_anchors(*caches.back(), layers, q);
    cost += decode_cost(*caches.back(), what.of);
  }
  // All sequences in one schedule.
  std::vector<float> out(std::size(eighths) * q.size());
  headwise::attend_schedule schedule;
  const workers executor{what.threads};
  const auto step = [&](std::size_t i) {
    schedule.begin();
    for (std::size_t sequence = 0; sequence < caches.size(); ++sequence)
      schedule.add(*caches[sequence], i % layers,
                   headwise::packed_rows(q.data(), 1, what.of.query_heads(), what.of.dim),
                   headwise::packed_output(out.data() + sequence * q.size(), 1, what.of.query_heads(), what.of.dim));
    schedule.ready();
    executor(schedule.tasks(), [&](std::size_t task) { schedule.run(task); });
  };
  const std::size_t ours = all.turns().add(step);
  const std::size_t apart = all.turns().add([&](std::size_t i) {
    for (auto& sequence : attentions) sequence->step(i);
  });
  all.run(state, ours, cost);
  state.counters["apart"] = all.turns().ratio(apart, ours);
  step(0);
  report_error(state, caches.front()->head(0, 0), what, source, q, out.data(), all);
}

template <class Format>
void add_format(const options& chosen, const geometry& of, std::size_t tokens, std::size_t threads) {
  const auto add_kind = [&](const std::string& kind, bool quick, auto&& run) {
    if (!chosen.everything && !quick) return;
    const std::string name = "decode/" + kind + "/" + Format::name() + "/" + of.name() + "/" + std::to_string(tokens) +
                             "/threads:" + std::to_string(threads);
    const config what{of, tokens, threads, chosen.rounds};
    add(name, [=](benchmark::State& state) { run(state, what); });
  };
  const bool usual = std::string(Format::name()) == "f16" && of.name() == "d128g4" && threads == 1;
  const bool other = (of.name() == "d128g4" || of.name() == "d64g3") && threads == 1;
  add_kind("full", tokens == 16384 ? other : usual && (tokens == 64 || tokens == 65536), full<Format>);
  if (tokens < 1024) return;
  add_kind("compressed", usual && (tokens == 16384 || tokens == 65536), compressed<Format>);
  add_kind("local", usual && tokens == 16384, local<Format>);
  for (const std::size_t rows : {std::size_t{1}, std::size_t{2}, std::size_t{8}, std::size_t{64}})
    add_kind("runs" + std::to_string(rows), usual && tokens == 16384 && rows == 8,
             [rows](benchmark::State& state, const config& what) { runs<Format>(state, what, rows); });
  add_kind("batch8", usual && tokens == 16384, batch<Format>);
}

void register_all(const options& chosen) {
  for (const geometry& of : geometries)
    for (std::size_t threads = 1; threads <= most_threads; ++threads)
      for (std::size_t tokens = 1; tokens <= 131072; tokens *= 2) {
        add_format<headwise::float16>(chosen, of, tokens, threads);
        add_format<headwise::bfloat16>(chosen, of, tokens, threads);
        add_format<headwise::float32>(chosen, of, tokens, threads);
      }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("anchor", anchor::name().empty() ? "none: no llama.cpp was found" : anchor::name());
  if (!anchor::name().empty()) benchmark::AddCustomContext("anchor's CPU flags", anchor::flags());
  return run_program(argc, argv, register_all);
}
