// SPDX-License-Identifier: MIT
#include "headwise/probe/head_scorer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/head_selection.hpp"
#include "reference/scores.hpp"
#include "support/pattern_head.hpp"
#include "support/random.hpp"
#include "support/refused.hpp"
#include "support/tensor.hpp"
#include "support/threads.hpp"

namespace {

using headwise::attention_params;
using headwise::element_type;
using headwise::head_scorer;
using headwise::head_scores;
using headwise::model_shape;
using headwise::repeated_tokens;
using headwise::test::order;
using headwise::test::tensor;

constexpr std::size_t whole = std::numeric_limits<std::size_t>::max();

repeated_tokens probe_of(std::size_t block, std::size_t repeats, bool prefix) {
  std::vector<std::int32_t> ids(block);
  for (std::size_t i = 0; i < block; ++i) ids[i] = static_cast<std::int32_t>(i);
  if (prefix) return repeated_tokens::from_block(ids, repeats, 1000);
  return repeated_tokens::from_block(ids, repeats);
}

/// The queries and keys of every layer of a model without a meaning.
struct prefill {
  model_shape shape;
  std::vector<tensor> q, k;

  prefill(const model_shape& of, std::size_t tokens, std::uint32_t seed, element_type type = element_type::f32,
          order layout = order::packed, float spread = 1.5F)
      : shape(of) {
    headwise::test::random_numbers random(seed);
    const auto made = [&](std::size_t heads) {
      return tensor(tokens, heads, of.head_dim, random.gaussians(tokens * heads * of.head_dim, spread), type, layout);
    };
    for (std::size_t layer = 0; layer < of.layers; ++layer) {
      q.push_back(made(of.query_heads));
      k.push_back(made(of.kv_heads));
    }
  }

  /// As an engine brings them: all layers of a chunk, then the next chunk.
  template <class Scorer, class Executor = headwise::serial>
  head_scores scored(Scorer scorer, std::size_t chunk = whole, const Executor& executor = {}) const {
    const std::size_t tokens = q[0].view().tokens;
    for (std::size_t first = 0; first < tokens;) {
      const std::size_t count = std::min(chunk, tokens - first);
      for (std::size_t layer = 0; layer < shape.layers; ++layer)
        scorer.observe(layer, q[layer].view(first, count), k[layer].view(first, count), executor);
      first += count;
    }
    return scorer.scores();
  }
};

void expect_scores_of_the_definition(const head_scores& found, const prefill& from, const repeated_tokens& probe,
                                     const attention_params& params = {}, double tolerance = 2e-6) {
  ASSERT_EQ(found.names(), (std::vector<std::string>{"echo", "induction"}));
  const model_shape& shape = from.shape;
  const reference::logit_rule rule{static_cast<double>(params.scale_for(shape.head_dim)),
                                   static_cast<double>(params.softcap)};
  for (std::size_t layer = 0; layer < shape.layers; ++layer)
    for (std::size_t head = 0; head < shape.query_heads; ++head) {
      reference::matrix q, k;
      for (std::size_t t = 0; t < probe.size(); ++t) {
        q.push_back(from.q[layer].row(t, head));
        k.push_back(from.k[layer].row(t, head / shape.group()));
      }
      const reference::matrix a = reference::attention_matrix(q, k, rule);
      for (const std::size_t shift : {0U, 1U}) {
        const double score = found.at(shift == 0 ? "echo" : "induction", layer, head);
        const double expected = reference::mean_mass(a, probe.prefix_length(), probe.block(), probe.repeats(), shift);
        EXPECT_NEAR(score, expected, tolerance) << "shift " << shift << ", head " << layer << "." << head;
        EXPECT_TRUE(score >= 0.0 && score <= 1.0) << score;
      }
    }
}

bool bit_equal(const head_scores& a, const head_scores& b) {
  for (std::size_t layer = 0; layer < a.shape().layers; ++layer)
    for (std::size_t head = 0; head < a.shape().query_heads; ++head)
      for (const std::string& name : a.names())
        if (!(a.at(name, layer, head) == b.at(name, layer, head))) return false;
  return a.names() == b.names();
}

TEST(head_scorer, gives_the_scores_of_the_definition_for_every_group_and_chunk_size) {
  for (const std::size_t group : {1U, 2U, 3U, 4U})
    for (const bool prefix : {false, true}) {
      const model_shape shape{3, 2 * group, 2, 16, 0};
      const repeated_tokens probe = probe_of(30, 3, prefix);
      const prefill model(shape, probe.size(), static_cast<std::uint32_t>(group));
      for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{31}, std::size_t{32}, std::size_t{33},
                                      std::size_t{64}, whole}) {
        SCOPED_TRACE(testing::Message() << "group " << group << ", prefix " << prefix << ", chunk " << chunk);
        expect_scores_of_the_definition(model.scored(head_scorer(shape, probe), chunk), model, probe);
      }
    }
}

TEST(head_scorer, layers_with_a_window_of_the_model_are_not_scored) {
  const model_shape shape{3, 4, 2, 16, 0};
  const repeated_tokens probe = probe_of(20, 3, true);
  const prefill model(shape, probe.size(), 8);
  const head_scores all = model.scored(head_scorer(shape, probe));
  head_scorer windowed(shape, probe);
  windowed.set_window(1, 7);
  const head_scores observed = model.scored(windowed);
  for (const std::size_t layer : {0U, 2U})
    windowed.observe(layer, model.q[layer].view(0, probe.size()), model.k[layer].view(0, probe.size()));
  const head_scores left_out = windowed.scores();
  for (const head_scores* scores : {&observed, &left_out})
    for (std::size_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(scores->window(layer), layer == 1 ? 7U : 0U);
      for (std::size_t head = 0; head < 4; ++head)
        EXPECT_EQ(scores->at("echo", layer, head), layer == 1 ? 0.0 : all.at("echo", layer, head));
    }
}

/// Scores that ride on headwise's own attention: every chunk is appended, attended to, then observed.
template <class Format, class Executor = headwise::serial>
head_scores scored_beside_attention(const prefill& model, const repeated_tokens& probe, std::size_t chunk,
                                    const attention_params& params = {}, const Executor& executor = {}) {
  auto cache = headwise::make_cache<Format>(headwise::head_plan(model.shape, headwise::head_role::retrieval));
  head_scorer scorer(model.shape, probe, params);
  headwise::attend_schedule schedule;
  for (std::size_t first = 0; first < probe.size(); first += chunk) {
    const std::size_t count = std::min(chunk, probe.size() - first);
    std::vector<float> out(count * model.shape.query_heads * model.shape.value_size());
    std::vector<double> log_sum(count * model.shape.query_heads);
    headwise::attention_extras extras;
    extras.log_sum_exp = log_sum.data();
    for (std::size_t layer = 0; layer < model.shape.layers; ++layer) {
      const auto q = model.q[layer].view(first, count);
      const auto k = model.k[layer].view(first, count);
      cache.append(layer, k, k);
      headwise::attend(cache, layer, q,
                       headwise::packed_output(out.data(), count, model.shape.query_heads, model.shape.value_size()),
                       schedule, executor, params, headwise::causal{}, extras);
      scorer.observe(layer, q, cache, log_sum.data(), executor);
    }
  }
  return scorer.scores();
}

TEST(head_scorer, rides_on_attention_with_the_same_scores) {
  for (const std::size_t group : {1U, 3U, 9U}) {
    const model_shape shape{2, 2 * group, 2, 24, 0};
    const repeated_tokens probe = probe_of(30, 3, true);
    const prefill model(shape, probe.size(), static_cast<std::uint32_t>(group));
    attention_params capped;
    capped.softcap = 3.0F;
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{33}, std::size_t{91}}) {
      SCOPED_TRACE(testing::Message() << "group " << group << ", chunk " << chunk);
      expect_scores_of_the_definition(scored_beside_attention<headwise::float32>(model, probe, chunk), model, probe);
      expect_scores_of_the_definition(scored_beside_attention<headwise::float32>(model, probe, chunk, capped), model,
                                      probe, capped);
      expect_scores_of_the_definition(scored_beside_attention<headwise::float16>(model, probe, chunk), model, probe, {},
                                      2e-3);  // of rounded keys
    }
    EXPECT_TRUE(
        bit_equal(scored_beside_attention<headwise::float16>(model, probe, 91),
                  scored_beside_attention<headwise::float16>(model, probe, 91, {}, headwise::test::threads{5})));
  }
}

TEST(head_scorer, rides_only_on_a_cache_of_all_the_rows_so_far) {
  const model_shape shape{1, 2, 1, 8, 0};
  const repeated_tokens probe = probe_of(20, 2, false);
  const prefill model(shape, probe.size(), 1);
  auto cache = headwise::make_cache<headwise::float16>(headwise::head_plan(shape), headwise::fixed_budget{8});
  const std::vector<double> log_sum(probe.size() * 2);
  head_scorer scorer(shape, probe);
  cache.append(0, model.k[0].view(0, 20), model.k[0].view(0, 20));
  EXPECT_REFUSED(scorer.observe(0, model.q[0].view(0, 19), cache, log_sum.data()), "20 tokens", "expected 19");
  EXPECT_REFUSED(scorer.observe(1, model.q[0].view(0, 20), cache, log_sum.data()), "no layer 1", "");
  const auto other = headwise::make_cache(headwise::head_plan(model_shape{2, 2, 1, 8, 0}));
  EXPECT_REFUSED(scorer.observe(0, model.q[0].view(0, 20), other, log_sum.data()), "2 layers", "expected 1 layer");
  cache.compress();
  EXPECT_REFUSED(scorer.observe(0, model.q[0].view(0, 20), cache, log_sum.data()), "KV head 0.0", "left");
}

TEST(head_scorer, reads_views_of_every_type_and_stride) {
  const model_shape shape{2, 4, 2, 20, 0};
  const repeated_tokens probe = probe_of(23, 3, true);
  for (const element_type type : {element_type::f32, element_type::f16, element_type::bf16})
    for (const order layout : {order::packed, order::heads_first, order::odd}) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", order " << static_cast<int>(layout));
      const prefill model(shape, probe.size(), 5, type, layout);
      expect_scores_of_the_definition(model.scored(head_scorer(shape, probe), 33), model, probe);
    }
}

TEST(head_scorer, short_blocks_many_repeats_and_odd_head_sizes) {
  const struct {
    std::size_t block, repeats, dim;
  } cases[] = {{1, 2, 4}, {1, 3, 4}, {1, 9, 1}, {2, 2, 3}, {2, 5, 7}, {3, 2, 64}, {64, 2, 5}, {65, 2, 33}, {5, 20, 12}};
  for (const auto& c : cases)
    for (const bool prefix : {false, true}) {
      SCOPED_TRACE(testing::Message() << c.block << " x " << c.repeats << ", size " << c.dim << ", prefix " << prefix);
      const model_shape shape{1, 3, 1, c.dim, 0};
      const repeated_tokens probe = probe_of(c.block, c.repeats, prefix);
      const prefill model(shape, probe.size(), 9);
      expect_scores_of_the_definition(model.scored(head_scorer(shape, probe)), model, probe);
      expect_scores_of_the_definition(model.scored(head_scorer(shape, probe), 1), model, probe);
    }
}

TEST(head_scorer, scale_and_softcap_are_the_models) {
  const model_shape shape{1, 4, 2, 16, 0};
  const repeated_tokens probe = probe_of(25, 3, true);
  const prefill model(shape, probe.size(), 3);
  head_scores plain = model.scored(head_scorer(shape, probe));
  const struct {
    float scale, softcap;
  } cases[] = {{1.0F, 0.0F}, {0.01F, 0.0F}, {-0.25F, 0.0F}, {0.0F, 2.0F}, {0.5F, 0.75F}, {2.0F, 50.0F}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << "scale " << c.scale << ", softcap " << c.softcap);
    attention_params params;
    params.scale = c.scale;
    params.softcap = c.softcap;
    for (const std::size_t chunk : {std::size_t{1}, whole}) {
      const head_scores found = model.scored(head_scorer(shape, probe, params), chunk);
      expect_scores_of_the_definition(found, model, probe, params, 5e-6);
      EXPECT_FALSE(bit_equal(found, plain));
    }
  }
  const float not_finite[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (const float bad : not_finite) {
    attention_params params;
    params.scale = bad;
    EXPECT_REFUSED(head_scorer(shape, probe, params), "scale");
    params = {};
    params.softcap = bad;
    EXPECT_REFUSED(head_scorer(shape, probe, params), "softcap");
  }
}

/// Runs tasks one after the other, in an order that no loop would take.
struct shuffled {
  std::uint32_t seed;
  template <class Task>
  void operator()(std::size_t count, Task&& task) const {
    std::vector<std::size_t> tasks(count);
    for (std::size_t i = 0; i < count; ++i) tasks[i] = i;
    headwise::test::random_numbers(seed).shuffle(tasks);
    for (const std::size_t i : tasks) task(i);
  }
};

TEST(head_scorer, one_worker_and_many_in_any_order_give_the_same_bits) {
  const model_shape shape{1, 9, 3, 8, 0};
  const repeated_tokens probe = probe_of(350, 2, true);  // 22 blocks of queries x 3 KV heads: 66 tasks
  const prefill model(shape, probe.size(), 4);
  for (const std::size_t chunk : {std::size_t{200}, whole}) {
    const head_scores one = model.scored(head_scorer(shape, probe), chunk);
    for (const std::size_t count : {2U, 3U, 8U})
      EXPECT_TRUE(bit_equal(one, model.scored(head_scorer(shape, probe), chunk, headwise::test::threads{count})));
    for (std::uint32_t seed = 0; seed < 5; ++seed)
      EXPECT_TRUE(bit_equal(one, model.scored(head_scorer(shape, probe), chunk, shuffled{seed})));
#if defined(_OPENMP)
    EXPECT_TRUE(bit_equal(one, model.scored(head_scorer(shape, probe), chunk, headwise::openmp{4})));
#endif
  }
}

TEST(head_scorer, layers_come_in_any_order_and_at_any_pace) {
  const model_shape shape{3, 2, 1, 8, 0};
  const repeated_tokens probe = probe_of(20, 2, false);
  const prefill model(shape, probe.size(), 6);
  head_scorer scorer(shape, probe);
  scorer.observe(2, model.q[2].view(0, 13), model.k[2].view(0, 13));
  scorer.observe(0, model.q[0].view(), model.k[0].view());
  scorer.observe(1, model.q[1].view(0, 0), model.k[1].view(0, 0));  // an empty chunk is one
  scorer.observe(2, model.q[2].view(13, 27), model.k[2].view(13, 27));
  const head_scorer fork = scorer;  // a value: the copy goes its own way
  scorer.observe(1, model.q[1].view(), model.k[1].view());
  expect_scores_of_the_definition(scorer.scores(), model, probe);
  EXPECT_REFUSED(fork.scores(), "layer 1", "0 of", "40");
}

struct previous_token {
  static const char* name() noexcept { return "previous"; }
  template <class Target>
  void operator()(const repeated_tokens&, std::size_t row, Target&& target) const {
    if (row > 0) target(row - 1);
  }
};
struct row_before {  // a rule with a setting
  std::size_t distance;
  const char* name() const noexcept { return distance == 0 ? "self" : "far"; }
  template <class Target>
  void operator()(const repeated_tokens&, std::size_t row, Target&& target) const {
    if (row >= distance) target(row - distance);
  }
};

TEST(head_scorer, a_users_rule_makes_a_column_whose_mean_is_over_the_rows_with_a_target) {
  const model_shape shape{1, 2, 1, 8, 0};
  const repeated_tokens probe = probe_of(12, 2, true);
  const prefill model(shape, probe.size(), 8);
  using scorer = head_scorer<previous_token, headwise::echo, row_before>;
  const head_scores found = model.scored(scorer(shape, probe, {}, {}, {}, row_before{0}), 5);
  EXPECT_EQ(found.names(), (std::vector<std::string>{"previous", "echo", "self"}));
  for (std::size_t head = 0; head < 2; ++head) {
    reference::matrix q, k;
    for (std::size_t t = 0; t < probe.size(); ++t) {
      q.push_back(model.q[0].row(t, head));
      k.push_back(model.k[0].row(t, 0));
    }
    const reference::matrix a = reference::attention_matrix(q, k, {1.0 / std::sqrt(8.0), 0.0});
    double previous = 0.0, self = 0.0;
    for (std::size_t i = 0; i < 24; ++i) {
      self += a[1 + i][1 + i] / 24.0;
      if (i > 0) previous += a[1 + i][i] / 23.0;  // row 0 has no token before it but the prefix
    }
    EXPECT_NEAR(found.at("previous", 0, head), previous, 2e-6);
    EXPECT_NEAR(found.at("self", 0, head), self, 2e-6);
    EXPECT_NEAR(found.at("echo", 0, head), reference::mean_mass(a, 1, 12, 2, 0), 2e-6);
  }
  using far = head_scorer<row_before>;
  EXPECT_REFUSED(model.scored(far(shape, probe, {}, row_before{24})), "'far'", "no target");
  EXPECT_NO_THROW(model.scored(far(shape, probe, {}, row_before{23})));
  using twice = head_scorer<headwise::echo, headwise::echo>;
  EXPECT_REFUSED(model.scored(twice(shape, probe)), "'echo'");
}

TEST(head_scorer, what_does_not_fit_is_refused_and_changes_nothing) {
  const model_shape shape{2, 4, 2, 8, 0};
  const repeated_tokens probe = probe_of(10, 2, true);
  const prefill model(shape, 22, 2);  // one token more than the probe
  const auto q = [&](std::size_t first, std::size_t n) { return model.q[0].view(first, n); };
  const auto k = [&](std::size_t first, std::size_t n) { return model.k[0].view(first, n); };
  head_scorer scorer(shape, probe);
  EXPECT_REFUSED(scorer.scores(), "layer 0", "0 of", "21");
  EXPECT_REFUSED(scorer.observe(2, q(0, 1), k(0, 1)), "layer 2", "2 layers");
  EXPECT_REFUSED(scorer.observe(whole, q(0, 1), k(0, 1)), "layer");
  EXPECT_REFUSED(scorer.observe(0, q(0, 22), k(0, 22)), "layer 0", "22", "21");
  EXPECT_REFUSED(scorer.observe(0, q(0, 5), k(0, 4)), "5 queries", "4 keys");
  EXPECT_REFUSED(scorer.observe(0, k(0, 5), k(0, 5)), "queries", "2 heads", "expected 4");
  EXPECT_REFUSED(scorer.observe(0, q(0, 5), q(0, 5)), "keys", "4 heads", "expected 2");

  const struct {
    const char* what;
    void (*spoil)(headwise::token_view&);
    const char* word;
  } spoils[] = {
      {"dim", [](headwise::token_view& v) { v.dim = 7; }, "7 elements"},
      {"null", [](headwise::token_view& v) { v.data = nullptr; }, "null"},
      {"head stride", [](headwise::token_view& v) { v.head_stride = 7; }, "head stride 7"},
      {"token stride", [](headwise::token_view& v) { v.token_stride = 7; }, "token stride 7"},
      {"extent", [](headwise::token_view& v) { --v.extent; }, "reaches"},
      {"negative", [](headwise::token_view& v) { v.tokens = whole; }, "tokens"},
  };
  for (const auto& c : spoils) {
    SCOPED_TRACE(c.what);
    // The last tokens of the tensor, whose extent is exact.
    headwise::token_view bad_q = q(17, 5), bad_k = k(17, 5);
    c.spoil(bad_q);
    c.spoil(bad_k);
    EXPECT_REFUSED(scorer.observe(0, bad_q, k(17, 5)), c.word);
    EXPECT_REFUSED(scorer.observe(0, q(17, 5), bad_k), c.word);
  }
  // Refusals in the middle of a layer leave no trace.
  for (std::size_t layer = 0; layer < 2; ++layer) {
    scorer.observe(layer, model.q[layer].view(0, 11), model.k[layer].view(0, 11));
    EXPECT_REFUSED(scorer.observe(layer, q(0, 11), k(0, 11)), "has seen 11", "11 more", "21");
    EXPECT_REFUSED(scorer.scores(), "of the probe's 21");
    EXPECT_REFUSED(scorer.observe(layer, q(0, 3), k(0, 2)), "3 queries");
    scorer.observe(layer, model.q[layer].view(11, 10), model.k[layer].view(11, 10));
    EXPECT_REFUSED(scorer.observe(layer, q(0, 1), k(0, 1)), "has seen 21", "1 more");
  }
  expect_scores_of_the_definition(scorer.scores(), model, probe);

  EXPECT_REFUSED(head_scorer(model_shape{}, probe), "model shape");
  EXPECT_REFUSED(head_scorer(model_shape{1, 3, 2, 8, 0}, probe), "multiple");
}

TEST(head_scorer, a_head_that_looks_at_nothing_but_earlier_copies_scores_1_however_it_splits) {
  const auto copies = [](std::size_t shift, std::size_t stride) {
    return [=](std::size_t i) {
      std::vector<std::size_t> rows;
      for (std::size_t back = 10; back <= i; back += stride) rows.push_back(i - back + shift);
      return rows;
    };
  };
  for (const bool prefix : {false, true})
    for (const std::size_t repeats : {2U, 4U}) {
      const repeated_tokens probe = probe_of(10, repeats, prefix);
      for (const std::size_t stride : {10U, 1000U}) {  // all copies, or the last one alone
        const head_scores echo = headwise::test::pattern_scores(probe, copies(0, stride));
        EXPECT_NEAR(echo.at("echo", 0, 0), 1.0, 1e-6);
        EXPECT_NEAR(echo.at("induction", 0, 0), 0.0, 1e-6);
        const head_scores induction = headwise::test::pattern_scores(probe, copies(1, stride));
        EXPECT_NEAR(induction.at("echo", 0, 0), 0.0, 1e-6);
        EXPECT_NEAR(induction.at("induction", 0, 0), 1.0, 1e-6);
      }
    }
}

TEST(head_scorer, scores_stay_in_0_to_1_and_near_the_definition_at_extreme_logits) {
  const model_shape shape{1, 4, 2, 64, 0};
  const repeated_tokens probe = probe_of(33, 4, true);
  // The logits' spread is scale * 8: from all weights equal to one weight that is everything. A float32 logit of 1e4
  // is known to about 1e-3, so that is as near as a score can come.
  for (const float scale : {1e-30F, 1e-4F, 1.0F, 30.0F, 1e3F, 1e6F, -1e6F}) {
    attention_params params;
    params.scale = scale;
    const prefill model(shape, probe.size(), 11, element_type::f32, order::packed, 1.0F);
    for (const std::size_t chunk : {std::size_t{1}, whole}) {
      SCOPED_TRACE(testing::Message() << "scale " << scale << ", chunk " << chunk);
      const head_scores found = model.scored(head_scorer(shape, probe, params), chunk);
      if (std::fabs(scale) < 1e4F) expect_scores_of_the_definition(found, model, probe, params, 1e-3);
      for (std::size_t head = 0; head < shape.query_heads; ++head)
        for (const char* name : {"echo", "induction"}) {
          EXPECT_GE(found.at(name, 0, head), 0.0);
          EXPECT_LE(found.at(name, 0, head), 1.0);
        }
    }
  }
  // A query that equals the key of its target. Logits that were summed in two different orders would differ by some
  // units of the last place, which at 1e4 is a thousandth, and the score would leave 0..1 or lose that much.
  const repeated_tokens twice = probe_of(33, 2, false);
  for (const float strength : {100.0F, 1e4F, 1e6F})
    for (const std::size_t chunk : {std::size_t{1}, whole}) {
      const std::vector<float> keys = headwise::test::random_numbers(2).gaussians(66 * 64);
      std::vector<float> queries(66 * 64);
      for (std::size_t i = 33 * 64; i < queries.size(); ++i) queries[i] = keys[i - 33 * 64] * strength / 64.0F;
      prefill model(model_shape{1, 1, 1, 64, 0}, 0, 1);
      model.q[0] = tensor(66, 1, 64, queries);
      model.k[0] = tensor(66, 1, 64, keys);
      attention_params params;
      params.scale = 1.0F;
      const head_scores found = model.scored(head_scorer(model.shape, twice, params), chunk);
      EXPECT_NEAR(found.at("echo", 0, 0), 1.0, 1e-6) << strength;
      EXPECT_LE(found.at("echo", 0, 0), 1.0);
    }
  // A head that sees only its targets, by logits of 1e4, is no less sure of them than by logits of 100.
  for (const float strength : {100.0F, 1e4F, 3e7F}) {
    const auto found = headwise::test::pattern_scores(
        probe, [](std::size_t i) { return i < 33 ? std::vector<std::size_t>{} : std::vector<std::size_t>{i - 33}; },
        strength);
    EXPECT_NEAR(found.at("echo", 0, 0), 1.0, 1e-6);
    EXPECT_LE(found.at("echo", 0, 0), 1.0);
  }
}

TEST(head_scorer, a_nan_among_the_keys_is_a_nan_score_that_no_selection_takes) {
  const model_shape shape{1, 2, 1, 4, 0};
  const repeated_tokens probe = probe_of(6, 2, false);
  headwise::test::random_numbers random(1);
  const tensor q(12, 2, 4, random.gaussians(96));
  std::vector<float> keys = random.gaussians(48);
  keys[9] = std::numeric_limits<float>::quiet_NaN();
  const tensor k(12, 1, 4, keys);
  head_scorer scorer(shape, probe);
  scorer.observe(0, q.view(), k.view());
  const head_scores found = scorer.scores();
  EXPECT_FALSE(found.at("echo", 0, 0) <= 1.0);
  EXPECT_REFUSED(headwise::combined_heads(0.5).plan(found), "0.0", "nan");
}

}  // namespace
