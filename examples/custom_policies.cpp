// SPDX-License-Identifier: MIT
// One's own answer to each question that headwise leaves open. Every policy is an ordinary value.
#include <headwise/headwise.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

// A budget: deeper layers keep fewer recent rows. A lambda does as well.
struct pyramid_budget {
  std::size_t rows = 512;
  std::size_t operator()(headwise::head_id head, std::size_t) const { return rows / (head.layer + 1); }
  // What a saved cache calls it; not needed for anything else.
  static const char* name() { return "pyramid"; }
  std::array<std::size_t, 1> parameters() const { return {rows}; }
};

// A compensation: the newest folded row speaks for all of them, with their weight.
struct last_row_compensation {
  struct summary {
    std::vector<float> key, value;
    std::size_t count = 0;
  };
  summary make_summary(std::size_t keys, std::size_t values) const {
    return {std::vector<float>(keys), std::vector<float>(values), 0};
  }
  void fold(summary& s, const float* key, const float* value) const noexcept {
    s.key.assign(key, key + s.key.size()), s.value.assign(value, value + s.value.size()), ++s.count;
  }
  std::size_t folded(const summary& s) const noexcept { return s.count; }
  std::size_t bytes(const summary& s) const noexcept { return (s.key.size() + s.value.size()) * sizeof(float); }
  headwise::summary_logit evaluate(const summary& s, const float* query, const headwise::attention_params&,
                                   float* value_out) const noexcept {
    float logit = 0;
    for (std::size_t i = 0; i < s.key.size(); ++i) logit += query[i] * s.key[i];
    for (std::size_t i = 0; i < s.value.size(); ++i) value_out[i] = s.value[i];
    return {logit, std::log(static_cast<float>(s.count))};
  }
  // So that a cache with it can be saved.
  static const char* name() { return "last row"; }
  template <class Sink>
  static void save(const summary& s, Sink& sink) {
    sink.write(&s.count, sizeof s.count);
    for (const auto* row : {&s.key, &s.value}) sink.write(row->data(), row->size() * sizeof(float));
  }
  template <class Source>
  static void load(summary& s, Source& source) {
    source.read(&s.count, sizeof s.count);
    for (auto* row : {&s.key, &s.value}) source.read(row->data(), row->size() * sizeof(float));
  }
};

// A target rule: attention on the token just before. Names a column of the scores.
struct previous_token {
  static const char* name() { return "previous"; }
  template <class Target>
  void operator()(const headwise::repeated_tokens&, std::size_t row, Target&& target) const {
    if (row > 0) target(row - 1);
  }
};

// A head selection: heads that look at the token before are local heads, all others retrieve.
struct not_previous {
  double limit = 0.5;
  headwise::head_plan plan(const headwise::head_scores& scores) const {
    const headwise::model_shape& shape = scores.shape();
    headwise::head_plan result(shape, headwise::head_role::retrieval);
    for (std::size_t layer = 0; layer < shape.layers; ++layer)
      for (std::size_t head = 0; head < shape.query_heads; ++head)
        if (scores.at("previous", layer, head) > limit)
          result.set({layer, head / shape.group()}, headwise::head_role::local);
    return result;
  }
};

// An executor: yours. Here the tasks run backwards, and the result has the same bits.
const auto backwards = [](std::size_t count, auto&& task) {
  while (count > 0) task(--count);
};

int main() {
  headwise::model_shape shape;
  shape.layers = 2, shape.query_heads = 2, shape.kv_heads = 2, shape.head_dim = 32;

  // Head 0 of each layer looks at the token before: its query is that token's key. Keys are one position each.
  std::vector<std::int32_t> block;
  for (std::int32_t i = 0; i < 16; ++i) block.push_back(i);
  const auto probe = headwise::repeated_tokens::from_block(block, 2);
  const std::size_t tokens = probe.size();
  std::vector<float> q(tokens * 2 * 32), k(tokens * 2 * 32), out(tokens * 2 * 32), again(tokens * 2 * 32);
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t head = 0; head < 2; ++head) {
      k[(t * 2 + head) * 32 + t] = 1;
      if (t > 0 && head == 0) q[(t * 2 + head) * 32 + t - 1] = 100;
    }
  const auto queries = headwise::packed_rows(q.data(), tokens, 2, 32);
  const auto keys = headwise::packed_rows(k.data(), tokens, 2, 32);

  headwise::head_scorer scorer(shape, probe, {}, headwise::echo{}, headwise::induction{}, previous_token{});
  for (std::size_t layer = 0; layer < shape.layers; ++layer) scorer.observe(layer, queries, keys);
  const auto plan = not_previous{}.plan(scorer.scores());

  pyramid_budget budget;
  budget.rows = 8;
  auto cache = headwise::make_cache<headwise::bfloat16>(plan, budget, last_row_compensation{});
  headwise::attend_schedule schedule;
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    cache.append(layer, keys, keys);
    headwise::attend(cache, layer, queries, headwise::packed_output(out.data(), tokens, 2, 32), schedule);
    headwise::attend(cache, layer, queries, headwise::packed_output(again.data(), tokens, 2, 32), schedule, backwards);
    if (out != again) return EXIT_FAILURE;
  }
  cache.compress();
  for (const headwise::head_report& head : cache.report().heads)
    std::printf("layer %zu head %zu %-9s %2zu rows, %2zu folded\n", head.head.layer, head.head.kv_head,
                headwise::to_string(head.role), head.rows, head.folded);
  const bool as_planned = cache.head(0, 0).folded() == tokens - 4 - 8 && cache.head(1, 0).folded() == tokens - 4 - 4 &&
                          cache.head(0, 1).folded() == 0;
  if (!as_planned) return EXIT_FAILURE;

  // A pause: into memory here, `headwise::save(cache, "file")` does as well.
  headwise::memory_sink bytes;
  headwise::save(cache, bytes);
  auto resumed = headwise::make_cache<headwise::bfloat16>(plan, budget, last_row_compensation{});
  headwise::memory_source source(bytes.bytes().data(), bytes.bytes().size());
  headwise::load(resumed, source);
  const auto newest = headwise::packed_rows(q.data() + (tokens - 1) * 2 * 32, 1, 2, 32);
  headwise::attend(cache, 0, newest, headwise::packed_output(out.data(), 1, 2, 32), schedule);
  headwise::attend(resumed, 0, newest, headwise::packed_output(again.data(), 1, 2, 32), schedule);
  return out == again ? EXIT_SUCCESS : EXIT_FAILURE;
}
