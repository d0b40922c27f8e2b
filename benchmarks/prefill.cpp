// SPDX-License-Identifier: MIT
// How fast does a chunk of queries attend? One thread, one layer a step, the chunk's own rows among those it sees.
//   prefill/own/<format>/<geometry>/<queries>          a prompt from its first token on
//   prefill/context/...                                behind 16384 tokens of context
//   prefill/compressed/...                             the same context compressed: 15 % heads, a window of 4000
//   prefill/few/...                                    a few queries at once, rows that no cache holds: speculation
// Counters; a ratio is the median over the rounds, of times taken within one round:
//   Mpairs       10^6 (query head, key) pairs executed, the causal triangle alone
//   GFLOP/s      four per pair and element: two products, the softmax not counted
//   eigen        the same products' GFLOP/s through Eigen's gemm; gemm: our rate over that
//   flash, plain time of the other engine's attention over ours (plain: few queries only)
//   roof         share: max(read time, multiply-add time) over the time taken
//   received     time of attention that also tells what each row received, over ours
//   t1           few: time over that of one query; limit: over max(time of one query, gemm's time); each: t1 / queries
//   error        of the last query's group against float64 attention over the stored rows, rms, relative; flash_err:
//                the other engine's
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "anchors/gemm.hpp"
#include "anchors/layers.hpp"
#include "caches.hpp"
#include "headwise/headwise.hpp"
#include "program.hpp"
#include "roofline.hpp"
#include "rounds.hpp"
#include "rows.hpp"

namespace {

using namespace bench;  // NOLINT: the helpers of this folder

constexpr std::size_t context = 16384;

struct config {
  geometry of;
  std::size_t queries;
  int rounds;
};

/// Pairs that `queries` queries at the end of a layer execute, and the bytes that are read once.
template <class Cache>
step_cost prefill_cost(const Cache& cache, const geometry& of, std::size_t queries) {
  step_cost cost = decode_cost(cache, of);
  // The queries before the last see one row less each; all rows of the chunk itself are kept.
  const double pairs_of_one_query = cost.rows * static_cast<double>(of.group);
  const auto unseen = static_cast<double>(queries * (queries - 1) / 2 * of.query_heads());
  cost.fmas = (pairs_of_one_query * static_cast<double>(queries) - unseen) * 2.0 * static_cast<double>(of.dim);
  return cost;
}

class contest {
 public:
  contest(const config& what, std::size_t rows) : what_(what), gemm_(what.of.dim, what.queries * what.of.group, rows) {
    turns.add_probe([this] {
      limits.push_back(probe_.measure());
      gemm.push_back(gemm_.measure());
    });
  }

  void run(benchmark::State& state, std::size_t ours, const step_cost& cost) {
    std::size_t other[2] = {ours, ours};
    for (std::size_t path = 0; path < 2; ++path)
      if (anchors_[path]) other[path] = turns.add([this, path](std::size_t i) { anchors_[path]->step(i); });
    for (auto _ : state) {
      for (int round = 0; round < what_.rounds; ++round) turns.run_one();
      state.SetIterationTime(turns.median_seconds(ours));
    }
    const double flops = 2.0 * cost.fmas;
    state.counters["Mpairs"] = cost.fmas / (2.0 * static_cast<double>(what_.of.dim)) / 1e6;
    state.counters["GFLOP/s"] = flops / turns.median_seconds(ours) / giga;
    state.counters["roof"] = 1.0 / turns.median_of(ours, [&](std::size_t r) { return cost.seconds(limits[r]); });
    if (gemm_probe::exists()) {
      state.counters["eigen"] = median(gemm) / giga;
      state.counters["gemm"] = 1.0 / turns.median_of(ours, [&](std::size_t r) { return flops / gemm[r]; });
    }
    if (anchors_[0]) state.counters["flash"] = turns.ratio(other[0], ours);
    if (anchors_[1]) state.counters["plain"] = turns.ratio(other[1], ours);
  }

  /// The other engine, one way, over `layers` layers of `cache`.
  template <class Cache>
  void add_anchor(anchor::path how, const Cache& cache, std::size_t layers, const std::vector<float>& q) {
    using format = std::decay_t<decltype(cache.head(0, 0).format())>;
    if (anchor::supports(how, element_of<format>()))
      anchors_[static_cast<std::size_t>(how)] =
          std::make_unique<anchor_steps>(how, cache, layers, what_.of, q.data(), what_.queries, 1);
  }

  /// What flash attention wrote for the first layer.
  const float* flash_out() {
    if (!anchors_[0]) return nullptr;
    anchors_[0]->step(0);
    return anchors_[0]->out();
  }

  rounds turns;
  std::vector<roofline> limits;
  std::vector<double> gemm;

 private:
  config what_;
  roofline_probe probe_;
  gemm_probe gemm_;
  std::unique_ptr<anchor_steps> anchors_[2];
};

template <class Cache>
void report_error(benchmark::State& state, const Cache& cache, const config& what, const row_source& source,
                  const std::vector<float>& q, const float* out, const float* flash_out) {
  const std::size_t last = (what.queries - 1) * what.of.query_heads() * what.of.dim;
  const auto error = [&](const float* found) {
    return error_of(cache.head(0, 0), 0, 0, what.of, source, q.data() + last, found + last).stored;
  };
  state.counters["error"] = error(out);
  if (flash_out != nullptr) state.counters["flash_err"] = error(flash_out);
}

enum class before { nothing, full, compressed };

template <class Format>
void chunk(benchmark::State& state, const config& what, before how) {
  const row_source source(what.of);
  const std::vector<float> q = random_floats(what.queries * what.of.query_heads() * what.of.dim, 9);
  const headwise::head_plan all_rows(what.of.shape(1), headwise::head_role::retrieval);
  auto cache = how == before::compressed
                   ? filled_cache<Format>(retrieval_15_percent(what.of.shape(1)), {}, context, source)
                   : filled_cache<Format>(all_rows, {}, how == before::full ? context : 0, source);
  source.append(cache, 0, what.queries);
  contest all(what, cache.length());
  attend_steps<bench_cache<Format>> attention(cache, what.of, q, what.queries, 1);
  const std::size_t ours = all.turns.add([&](std::size_t i) { attention.step(i); });

  // The same, and what each row received beside it.
  headwise::received_attention received(what.of.kv_heads, cache.length());
  headwise::attention_extras extras;
  extras.received = &received;
  std::vector<float> out(q.size());
  headwise::attend_schedule schedule;
  const std::size_t telling = all.turns.add([&](std::size_t) {
    headwise::attend(cache, 0, headwise::packed_rows(q.data(), what.queries, what.of.query_heads(), what.of.dim),
                     headwise::packed_output(out.data(), what.queries, what.of.query_heads(), what.of.dim), schedule,
                     headwise::serial{}, {}, headwise::causal{}, extras);
  });
  if (how != before::compressed) all.add_anchor(anchor::path::flash, cache, 1, q);
  all.run(state, ours, prefill_cost(cache, what.of, what.queries));
  state.counters["received"] = all.turns.ratio(telling, ours);
  report_error(state, cache, what, source, q, attention.out(), all.flash_out());
}

template <class Format>
void few(benchmark::State& state, const config& what) {
  const row_source source(what.of);
  const std::vector<float> q = random_floats(what.queries * what.of.query_heads() * what.of.dim, 9);
  const std::vector<float> one(q.begin(), q.begin() + static_cast<std::ptrdiff_t>(what.of.query_heads() * what.of.dim));
  const std::size_t layers = cold_layers(what.of, context, Format::bytes(1));
  const auto cache = full_cache<Format>(what.of, layers, context, source);
  contest all(what, context);
  attend_steps<bench_cache<Format>> attention(cache, what.of, q, what.queries, 1);
  attend_steps<bench_cache<Format>> single(cache, what.of, one, 1, 1);
  const std::size_t ours = all.turns.add([&](std::size_t i) { attention.step(i); });
  const std::size_t one_query = all.turns.add([&](std::size_t i) { single.step(i); });
  all.add_anchor(anchor::path::flash, cache, layers, q);
  all.add_anchor(anchor::path::plain, cache, layers, q);
  const step_cost cost = prefill_cost(cache, what.of, what.queries);
  all.run(state, ours, cost);
  const double times = all.turns.ratio(ours, one_query);
  state.counters["t1"] = times;
  state.counters["each"] = times / static_cast<double>(what.queries);
  if (gemm_probe::exists())
    state.counters["limit"] = all.turns.median_of(ours, [&](std::size_t r) {
      return (std::max)(all.turns.seconds(one_query)[r], 2.0 * cost.fmas / all.gemm[r]);
    });
  attention.step(0);
  report_error(state, cache, what, source, q, attention.out(), all.flash_out());
}

template <class Format>
void add_format(const options& chosen, const geometry& of) {
  const bool usual = of.name() == "d128g4" && std::string(Format::name()) == "f16";
  const auto add_kind = [&](const std::string& kind, std::size_t queries, bool quick, auto&& run) {
    if (!chosen.everything && !(usual && quick)) return;
    const config what{of, queries, chosen.rounds};
    add("prefill/" + kind + "/" + Format::name() + "/" + of.name() + "/" + std::to_string(queries),
        [=](benchmark::State& state) { run(state, what); });
  };
  for (std::size_t queries = 1; queries <= 32; queries *= 2)
    add_kind("few", queries, queries == 4 || queries == 16, few<Format>);
  for (std::size_t queries = 2; queries <= 8192; queries *= 2) {
    add_kind("own", queries, queries == 512,
             [](benchmark::State& state, const config& what) { chunk<Format>(state, what, before::nothing); });
    add_kind("context", queries, queries == 128,
             [](benchmark::State& state, const config& what) { chunk<Format>(state, what, before::full); });
    add_kind("compressed", queries, queries == 128,
             [](benchmark::State& state, const config& what) { chunk<Format>(state, what, before::compressed); });
  }
}

void register_all(const options& chosen) {
  for (const geometry& of : geometries) {
    add_format<headwise::float16>(chosen, of);
    add_format<headwise::bfloat16>(chosen, of);
    add_format<headwise::float32>(chosen, of);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("anchor", anchor::name().empty() ? "none: no llama.cpp was found" : anchor::name());
  if (!anchor::name().empty()) benchmark::AddCustomContext("anchor's CPU flags", anchor::flags());
  benchmark::AddCustomContext("Eigen", gemm_probe::exists() ? "gemm, one thread" : "none: it was not found");
  return run_program(argc, argv, register_all);
}
