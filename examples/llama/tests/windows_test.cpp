// SPDX-License-Identifier: MIT
// Models whose layers see only a window of the newest tokens, made here: a gemma-3 kind with random weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "engine.hpp"
#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/core/error.hpp"
#include "model.hpp"
#include "tiny_model.hpp"
#include "tool.hpp"

namespace {

using namespace headwise_llama;
using namespace headwise_llama::test;

std::vector<std::size_t> windows_in(const headwise::head_plan& plan) {
  std::vector<std::size_t> windows;
  for (std::size_t layer = 0; layer < plan.shape().layers; ++layer) windows.push_back(plan.window(layer));
  return windows;
}
std::vector<std::size_t> windows_in(const std::filesystem::path& model) {
  return windows_in(engine(model.string()).plan(headwise::head_role::local));
}

class windows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (model_path().empty()) GTEST_SKIP() << "HEADWISE_MODEL names no model";
  }
};

TEST_F(windows, AreThoseThatLlamaCppAttendsWith) {
  const std::size_t w = 48;
  tiny_model model;
  EXPECT_EQ(windows_in(model.write("gemma")), (std::vector<std::size_t>{w, w, 0, w, w, 0}));
  model.pattern = {};  // what the architecture has without a field: every sixth
  EXPECT_EQ(windows_in(model.write("gemma")), (std::vector<std::size_t>{w, w, w, w, w, 0}));
  model.pattern = {0, 1, 0, 0, 1, 1};
  model.window = 3;
  EXPECT_EQ(windows_in(model.write("gemma")), (std::vector<std::size_t>{0, 3, 0, 0, 3, 3}));
  model.window = 1000;
  EXPECT_EQ(windows_in(model.write("gemma")), (std::vector<std::size_t>{0, 1000, 0, 0, 1000, 1000}));
  // None: windows as long as the context, or no field.
  for (const std::uint32_t window : {2048U, 0U}) {
    model.window = window;
    EXPECT_EQ(windows_in(model.write("gemma")), std::vector<std::size_t>(6, 0));
  }
  model.window = w;
  model.pattern = {1, 1, 1, 1, 1, 1};
  EXPECT_EQ(windows_in(model.write("gemma")), std::vector<std::size_t>(6, w));
}

TEST_F(windows, OfOtherKindsAreRefused) {
  const auto refusal = [](const std::filesystem::path& path) -> std::string {
    try {
      const engine model(path.string());
    } catch (const headwise::error& refused) {
      EXPECT_EQ(std::string(refused.what()).find(path.string() + ": "), 0U);
      return refused.what();
    }
    return "accepted";
  };
  const auto expect = [](const std::string& found, const char* words) {
    EXPECT_NE(found.find(words), std::string::npos) << found;
  };
  tiny_model chunks;  // llama 4 attends within chunks of 8192 tokens
  chunks.architecture = "llama4";
  chunks.context = 16384;
  chunks.window = 0;
  chunks.pattern = {};
  chunks.fields = {{"expert_count", 2},
                   {"expert_used_count", 1},
                   {"expert_feed_forward_length", 96},
                   {"interleave_moe_layer_step", 100}};
  expect(refusal(chunks.write("chunks")), "layer 0: a token at position 8192 does not see the newest 8192");
  chunks.context = 8192;
  EXPECT_EQ(refusal(chunks.write("chunks")), "accepted");

  tiny_model model;
  model.window = 2;
  expect(refusal(model.write("narrow")), "windows of 2 tokens, expected at least 3");
  model.window = 48;
  model.pattern = {0, 0, 0, 0, 0, 0};
  expect(refusal(model.write("nowhere")), "sliding_window_pattern names no layer, with windows of 48 tokens");
  model.fields = {{"attention.key_length_swa", 16}};
  expect(refusal(model.write("sizes")), "gemma3.attention.key_length_swa is 16, and 32 in layers without a window");
}

/// The largest difference of logits at some positions, those within a window and those far beyond.
std::vector<float> differences(const logit_rows& a, const logit_rows& b) {
  std::vector<float> found;
  for (std::size_t position = 0; position < a.size(); ++position)
    found.push_back(largest_difference(a[position], b[position], a.vocabulary));
  return found;
}

TEST_F(windows, GiveStockLogitsBeyondTheWindowAndHoldNoMoreRows) {
  const engine model(tiny_model{}.write("gemma").string());
  const std::vector<token> tokens = story(model, 400);
  stock_options stock_way;
  stock_way.context = 512;
  stock_way.flash_attention = false;
  stock_way.format = cache_format::f32;
  stock_session stock(model, stock_way);
  const logit_rows expected = stock.decode(tokens, logits_of::all);

  session ours(model, {/*chunk*/ 64, /*threads*/ 0});
  headwise::attend_schedule schedule;
  using cache_type = headwise::kv_cache<headwise::float32>;
  const auto decode = [&](cache_type& cache, token_span part) {
    const attention_hook hook = [&](const attention_call& call) {
      cache.append(call.layer, call.k, call.v);
      headwise::attend(cache, call.layer, call.q, call.out, schedule, headwise::serial{}, call.params);
    };
    return ours.decode(part, cache.length(), hook, logits_of::all);
  };
  cache_type cache(model.plan(headwise::head_role::retrieval));
  logit_rows found = decode(cache, token_span(tokens).part(0, 300));
  for (std::size_t i = 300; i < tokens.size(); ++i) {  // then one by one
    const logit_rows one = decode(cache, token_span(tokens).part(i, 1));
    found.values.insert(found.values.end(), one.values.begin(), one.values.end());
    for (const std::size_t layer : {0U, 1U, 3U, 4U}) ASSERT_EQ(cache.head(layer, 0).rows().kept(), 48U);
  }
  EXPECT_EQ(cache.head(2, 0).rows().kept(), 400U);
  const std::vector<float> with = differences(expected, found);
  const float largest = *std::max_element(with.begin(), with.end());

  cache_type whole(headwise::head_plan(model.shape(), headwise::head_role::retrieval));  // as if there were no windows
  const std::vector<float> without = differences(expected, decode(whole, tokens));
  std::printf("largest logit difference from stock: %.2g; without windows %.2g within 48 tokens, %.2g beyond\n",
              static_cast<double>(largest),
              static_cast<double>(*std::max_element(without.begin(), without.begin() + 48)),
              static_cast<double>(*std::max_element(without.begin() + 48, without.end())));
  EXPECT_LE(largest, 0.01F);
  EXPECT_LE(*std::max_element(without.begin(), without.begin() + 48), 0.01F);
  EXPECT_GT(*std::max_element(without.begin() + 48, without.end()), 100 * largest);
}

TEST_F(windows, StockHasFewerCellsInLayersWithOne) {
  const engine model(tiny_model{}.write("gemma").string());
  stock_options options;
  options.context = 2048;
  options.chunk = 128;
  options.format = cache_format::f32;
  const std::size_t row = 2 * 2 * 32 * sizeof(float);
  EXPECT_EQ(stock_session(model, options).cache_bytes(), (2 * 2048 + 4 * 256) * row);
  EXPECT_EQ(session(model, {/*chunk*/ 64, /*threads*/ 0}).cache_bytes(), 6 * 256 * row);
}

TEST_F(windows, AreNotScoredAndStayWhenHeadsAreCompressed) {
  common_options options;
  options.model = tiny_model{}.write("gemma").string();
  options.quiet = true;
  runner model(options);
  const headwise::vocabulary vocabulary{model.model().ordinary_tokens(), model.model().first_token()};
  const headwise::head_scores scores = model.score(headwise::repeated_tokens(vocabulary, 60, 3, 1));
  const headwise::head_plan plan = headwise::combined_heads(0.25).plan(scores);
  EXPECT_EQ(plan.retrieval_heads().size(), 1U);  // of the four heads in layers 2 and 5
  EXPECT_EQ(windows_in(plan), windows_in(model.model().plan(headwise::head_role::local)));

  const std::vector<token> tokens = story(model.model(), 300);
  any_cache full = model.full_cache();
  model.decode(full, tokens, logits_of::none);
  any_cache small = compressed_copy(full, {plan, headwise::razor_budget{40, 0}, headwise::mean_compensation{}});
  for (std::size_t i = 0; i < 60; ++i) model.decode(small, {tokens[i]});
  const headwise::cache_report report = small.report();
  for (const headwise::head_report& head : report.heads) {
    const bool windowed = plan.window(head.head.layer) != 0;
    EXPECT_EQ(head.dropped, windowed ? 360U - 48U : 0U);
    EXPECT_EQ(head.folded, head.role == headwise::head_role::local ? 360U - 44U : 0U);
  }
}

}  // namespace
