// SPDX-License-Identifier: MIT
// The seam and the engine on a real model: HEADWISE_MODEL names a GGUF of plain grouped-query attention.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine.hpp"
#include "gguf.h"
#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/core/error.hpp"
#include "llama.h"
#include "model.hpp"
#include "seam.hpp"

namespace {

using namespace headwise_llama;
using namespace headwise_llama::test;
namespace fs = std::filesystem;

const engine& quantised_model() {
  static const engine model(model_path());
  return model;
}

const engine& f32_model() {
  static const engine model(f32_path());
  return model;
}

std::vector<token> random_tokens(const engine& model, std::size_t count) {
  const std::vector<token> ordinary = model.ordinary_tokens();
  std::mt19937 random(7);
  std::vector<token> tokens(count);
  for (token& id : tokens) id = ordinary[random() % ordinary.size()];
  return tokens;
}

/// Attention as the textbook has it, in double precision: every key and value kept as it came.
class textbook_attention {
 public:
  explicit textbook_attention(const headwise::model_shape& shape) : shape_(shape), layers_(shape.layers) {}

  void operator()(const attention_call& call) {
    layer& rows = layers_[call.layer];
    store(rows.keys, call.k);
    store(rows.values, call.v);
    const std::size_t key_row = shape_.kv_heads * shape_.key_size();
    const std::size_t value_row = shape_.kv_heads * shape_.value_size();
    const std::size_t before = rows.keys.size() / key_row - call.q.tokens;
    const double scale = call.params.scale_for(shape_.head_dim);
    std::vector<double> weights;
    for (std::size_t t = 0; t < call.q.tokens; ++t) {
      for (std::size_t h = 0; h < call.q.heads; ++h) {
        const float* q = static_cast<const float*>(call.q.data) + t * call.q.token_stride + h * call.q.head_stride;
        const std::size_t kv_head = h / shape_.group();
        weights.assign(before + t + 1, 0.0);
        for (std::size_t n = 0; n < weights.size(); ++n) {
          const float* k = rows.keys.data() + n * key_row + kv_head * shape_.key_size();
          for (std::size_t d = 0; d < shape_.key_size(); ++d) weights[n] += double{q[d]} * double{k[d]} * scale;
        }
        const double largest = *std::max_element(weights.begin(), weights.end());
        double sum = 0.0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        float* out = call.out.data + t * call.out.token_stride + h * call.out.head_stride;
        for (std::size_t d = 0; d < shape_.value_size(); ++d) {
          double value = 0.0;
          for (std::size_t n = 0; n < weights.size(); ++n)
            value += weights[n] * double{rows.values[n * value_row + kv_head * shape_.value_size() + d]};
          out[d] = static_cast<float>(value / sum);
        }
      }
    }
  }

 private:
  struct layer {
    std::vector<float> keys;
    std::vector<float> values;
  };

  static void store(std::vector<float>& rows, const headwise::token_view& view) {
    ASSERT_EQ(view.type, headwise::element_type::f32);
    for (std::size_t t = 0; t < view.tokens; ++t)
      for (std::size_t h = 0; h < view.heads; ++h) {
        const float* row = static_cast<const float*>(view.data) + t * view.token_stride + h * view.head_stride;
        rows.insert(rows.end(), row, row + view.dim);
      }
  }

  headwise::model_shape shape_;
  std::vector<layer> layers_;
};

attention_hook nothing() {
  return [](const attention_call&) {};
}

/// What an engine says when it refuses a file.
std::string refusal(const fs::path& path) {
  try {
    const engine model(path.string());
  } catch (const headwise::error& refused) {
    return refused.what();
  }
  return "accepted";
}

void expect_refused(const fs::path& path, const std::string& reason) {
  const std::string message = refusal(path);
  EXPECT_EQ(message.find(path.string() + ": "), 0U) << message;
  EXPECT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

/// Every test needs the model, for its weights or for its metadata.
class llama : public ::testing::Test {
 protected:
  void SetUp() override {
    if (model_path().empty()) GTEST_SKIP() << "HEADWISE_MODEL names no model";
  }
};

// --- the seam -------------------------------------------------------------------------------------------------------

TEST_F(llama, TextbookAttentionGivesStockLogitsOnTheF32Model) {
  const engine& model = f32_model();
  const std::vector<token> tokens = random_tokens(model, 301);
  stock_options stock_way;
  stock_way.context = 512;
  stock_way.flash_attention = false;
  stock_way.format = cache_format::f32;
  stock_session stock(model, stock_way);
  const logit_rows expected = stock.decode(tokens, logits_of::all);

  session ours(model, {/*chunk*/ 64, /*threads*/ 0});
  textbook_attention attention(model.shape());
  const logit_rows found = ours.decode(tokens, 0, std::ref(attention), logits_of::all);
  ASSERT_EQ(found.size(), tokens.size());
  for (const std::size_t position : {0U, 1U, 63U, 64U, 100U, 300U}) {
    const float difference = largest_difference(expected[position], found[position], found.vocabulary);
    std::printf("position %zu: largest logit difference %.2g\n", position, static_cast<double>(difference));
    EXPECT_LE(difference, 0.01F) << position;
  }
}

TEST_F(llama, ChunksDoNotMatterAndOneSessionServesManyCaches) {
  const engine& model = quantised_model();
  const std::vector<token> tokens = random_tokens(model, 40);
  session ours(model, {/*chunk*/ 16, /*threads*/ 0});
  textbook_attention first(model.shape());
  textbook_attention second(model.shape());
  const logit_rows whole = ours.decode(tokens, 0, std::ref(first), logits_of::last);
  logit_rows single;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    single = ours.decode({tokens[i]}, i, std::ref(second), logits_of::last);
    if (i % 16 == 0) ours.decode({tokens[0]}, 100 + i, nothing(), logits_of::none);  // somebody else's turn
  }
  ASSERT_EQ(single.size(), 1U);
  EXPECT_LE(largest_difference(whole[0], single[0], whole.vocabulary), 0.5F);  // quantised activations round by batch
  EXPECT_EQ(whole.best(0), single.best(0));
}

TEST_F(llama, EveryLayerIsSeenOnceInOrderWithTheModelsShape) {
  const engine& model = quantised_model();
  const headwise::model_shape& shape = model.shape();
  std::size_t calls = 0;
  session ours(model);
  const logit_rows rows = ours.decode(
      random_tokens(model, 300), 0,
      [&](const attention_call& call) {
        EXPECT_EQ(call.layer, calls % shape.layers);
        const std::size_t tokens = calls < shape.layers ? 256 : 44;
        EXPECT_EQ(call.q.tokens, tokens);
        EXPECT_EQ(call.k.tokens, tokens);
        EXPECT_EQ(call.v.tokens, tokens);
        EXPECT_EQ(call.q.heads, shape.query_heads);
        EXPECT_EQ(call.k.heads, shape.kv_heads);
        EXPECT_EQ(call.out.dim, shape.value_size());
        ++calls;
      },
      logits_of::none);
  EXPECT_EQ(calls, 2 * shape.layers);
  EXPECT_EQ(rows.size(), 0U);
}

TEST_F(llama, AnErrorInTheHookComesOutAndTheSessionGoesOn) {
  const engine& model = quantised_model();
  session ours(model);
  const std::vector<token> tokens = random_tokens(model, 10);
  std::size_t calls = 0;
  const auto failing = [&](const attention_call& call) {
    ++calls;
    if (call.layer == 3) throw headwise::error("no more memory");
  };
  try {
    ours.decode(tokens, 0, failing);
    FAIL() << "expected an error";
  } catch (const headwise::error& failed) {
    EXPECT_STREQ(failed.what(), "no more memory");
  }
  EXPECT_EQ(calls, 4U);  // nothing is called after the first error
  EXPECT_EQ(ours.decode(tokens, 0, nothing()).size(), 1U);
}

TEST_F(llama, PositionsBeyondTheTrainedContextAreRefusedBeforeAnythingRuns) {
  const engine& model = quantised_model();
  session ours(model);
  const std::size_t limit = model.context_length();
  std::size_t calls = 0;
  const attention_hook count = [&](const attention_call&) { ++calls; };
  EXPECT_THROW(ours.decode({1, 2}, limit - 1, count), headwise::error);
  EXPECT_THROW(ours.decode({1}, limit + 5, count), headwise::error);
  EXPECT_THROW(ours.decode({-1}, 0, count), headwise::error);
  EXPECT_THROW(ours.decode({static_cast<token>(model.vocabulary_size())}, 0, count), headwise::error);
  EXPECT_EQ(calls, 0U);
  EXPECT_NO_THROW(ours.decode({1}, limit - 1, count));
  EXPECT_EQ(ours.decode(std::vector<token>{}, 0, count).size(), 0U);
}

// --- the seam, fed with nodes made here: what only the graph tells ---------------------------------------------------

/// One layer's nodes as llama.cpp builds them, for a model of 2 query heads and 1 KV head of 32 elements.
class handmade_layer : public ::testing::Test {
 protected:
  static constexpr int dim = 32;
  static constexpr int tokens = 3;
  static constexpr int cells = 8;
  static constexpr int first_cell = 2;

  handmade_layer() : context_(ggml_init({1 << 20, nullptr, /*no_alloc*/ true}), ggml_free) {
    key_cache = tensor(GGML_TYPE_F16, "cache_k_l0", dim, cells);
    value_cache = tensor(GGML_TYPE_F16, "cache_v_l0", dim, cells);
    keys = tensor(GGML_TYPE_F32, "any name", dim, tokens);
    values = tensor(GGML_TYPE_F32, "any other", dim, tokens);
    queries = tensor(GGML_TYPE_F32, "q", dim, tokens, 2);
  }

  ggml_tensor* tensor(ggml_type type, const char* name, int a, int b, int c = 1) {
    ggml_tensor* made = ggml_new_tensor_3d(context_.get(), type, a, b, c);
    ggml_set_name(made, name);
    return made;
  }

  /// Runs the nodes, changed by `change`, through a seam; what it says at the end.
  std::string run(const std::function<void()>& change = [] {}) {
    ggml_context* made = context_.get();
    indices = ggml_new_tensor_1d(made, GGML_TYPE_I64, tokens);
    const auto rows = [&](ggml_tensor* cache) { return ggml_view_3d(made, cache, dim, cells, 1, cache->nb[1], 0, 0); };
    std::vector<ggml_tensor*> nodes = {ggml_set_rows(made, key_cache, keys, indices),
                                       ggml_set_rows(made, value_cache, values, indices)};
    const auto attended = [&](ggml_tensor* cache) {  // llama.cpp converts f32 rows
      if (cache->type != GGML_TYPE_F32) return rows(cache);
      return nodes.emplace_back(ggml_cast(made, rows(cache), GGML_TYPE_F16));
    };
    ggml_tensor* const k = attended(key_cache);
    ggml_tensor* const v = attended(value_cache);
    attention = nodes.emplace_back(ggml_flash_attn_ext(made, queries, k, v, nullptr, 0.25F, 0.0F, 30.0F));
    const std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(made, ggml_backend_cpu_buffer_type()), ggml_backend_buffer_free);
    for (int i = 0; i < tokens; ++i) cell(i) = first_cell + i;
    change();

    headwise::model_shape shape;
    shape.layers = 1;
    shape.query_heads = 2;
    shape.kv_heads = 1;
    shape.head_dim = dim;
    seam bridge(shape);
    llama_context_params params = llama_context_default_params();
    bridge.install(params);
    const attention_hook hook = [&](const attention_call& call) { seen = call; };
    bridge.begin(hook);
    std::vector<ggml_op> operations;
    for (const ggml_tensor* node : nodes) operations.push_back(node->op);
    pauses = 0;
    for (ggml_tensor* node : nodes)
      if (params.cb_eval(node, /*ask*/ true, params.cb_eval_user_data)) {
        ++pauses;
        // Until the pause: keys and values are stored, and what only llama.cpp's own attention needs is not computed.
        for (std::size_t i = 2; i < nodes.size(); ++i) EXPECT_EQ(nodes[i]->op, GGML_OP_NONE) << i;
        for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(nodes[i]->op, GGML_OP_SET_ROWS) << i;
        EXPECT_TRUE(params.cb_eval(node, /*ask*/ false, params.cb_eval_user_data));
      }
    rows_at = static_cast<std::byte*>(key_cache->data) + first_cell * key_cache->nb[1];
    std::string said = "accepted";
    try {
      bridge.finish();
    } catch (const headwise::error& refused) {
      said = refused.what();
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) EXPECT_EQ(nodes[i]->op, operations[i]) << "as llama.cpp made it";
    return said;
  }

  std::int64_t& cell(int i) { return static_cast<std::int64_t*>(indices->data)[i]; }

  void expect_refusal(const std::string& message, const std::string& reason) {
    EXPECT_EQ(message.find("layer 0: "), 0U) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  }

  ggml_tensor* key_cache;
  ggml_tensor* value_cache;
  ggml_tensor* keys;
  ggml_tensor* values;
  ggml_tensor* queries;
  ggml_tensor* indices = nullptr;
  ggml_tensor* attention = nullptr;
  attention_call seen;
  int pauses = 0;
  const void* rows_at = nullptr;  // where the first of the chunk's keys is stored

 private:
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_;
};

TEST_F(handmade_layer, PlainAttentionIsTaken) {
  EXPECT_EQ(run(), "accepted");
  EXPECT_EQ(seen.q.tokens, 3U);
  EXPECT_EQ(seen.q.heads, 2U);
  EXPECT_EQ(seen.params.scale, 0.25F);
  EXPECT_EQ(seen.params.softcap, 30.0F);
}

TEST_F(handmade_layer, ALayerPausesOnceAndItsRowsAreReadWhereTheyAreStored) {
  EXPECT_EQ(run(), "accepted");
  EXPECT_EQ(pauses, 1);
  EXPECT_EQ(seen.k.data, rows_at);
  EXPECT_EQ(seen.k.type, headwise::element_type::f16);
  EXPECT_EQ(seen.k.token_stride, static_cast<std::size_t>(dim));
}

TEST_F(handmade_layer, RowsAreTakenInTheTypeTheyAreStoredIn) {
  key_cache = tensor(GGML_TYPE_F32, "cache_k_l0", dim, cells);
  EXPECT_EQ(run([&] { value_cache->type = GGML_TYPE_BF16; }), "accepted");
  EXPECT_EQ(seen.k.type, headwise::element_type::f32);
  EXPECT_EQ(seen.v.type, headwise::element_type::bf16);
}

TEST_F(handmade_layer, CopiesForTheAttentionThatIsLeftOutAreLeftOutToo) {
  key_cache = tensor(GGML_TYPE_F32, "cache_k_l0", dim, cells);
  value_cache = tensor(GGML_TYPE_F32, "cache_v_l0", dim, cells);
  EXPECT_EQ(run(), "accepted");
  EXPECT_EQ(pauses, 1);
  EXPECT_EQ(seen.k.data, rows_at);
}

TEST_F(handmade_layer, ScatteredCellsAreRefused) {
  expect_refusal(run([&] { cell(2) = 7; }), "keys go to cell 7 of 8, expected cell 4");
  expect_refusal(run([&] { cell(0) = cells; }), "keys go to cell 8 of 8");
  expect_refusal(run([&] { indices->op = GGML_OP_ADD; }), "cells that are computed");
}

TEST_F(handmade_layer, AlibiIsRefused) {
  const float max_bias = 8.0F;
  expect_refusal(run([&] { std::memcpy(&attention->op_params[1], &max_bias, sizeof max_bias); }), "ALiBi");
}

TEST_F(handmade_layer, AttentionSinksAreRefused) {
  expect_refusal(run([&] { attention->src[4] = queries; }), "attention sinks");
}

TEST_F(handmade_layer, TensorsElsewhereAreRefused) {
  expect_refusal(run([&] { key_cache->buffer = nullptr; }), "keys are not in host memory");
}

TEST_F(handmade_layer, QuantisedKeysAreRefused) {
  expect_refusal(run([&] { key_cache->type = GGML_TYPE_Q8_0; }), "keys are q8_0");
}

TEST_F(handmade_layer, AnotherShapeIsRefused) {
  queries = tensor(GGML_TYPE_F32, "q", dim, tokens, 3);
  expect_refusal(run(), "queries are 3 heads of 32 elements, expected 2 heads of 32");
}

TEST_F(handmade_layer, ACacheOfKeysAloneIsRefused) {
  value_cache = key_cache;
  expect_refusal(run(), "K-only");
}

TEST_F(handmade_layer, AGraphWithoutItsCacheIsRefused) {
  ggml_set_name(key_cache, "cache_r_l0");
  ggml_set_name(value_cache, "cache_s_l0");
  expect_refusal(run(), "expected its own KV cache");
}

// --- the library's cache against llama.cpp's own --------------------------------------------------------------------

#if defined(_OPENMP)
using executor = headwise::openmp;
#else
using executor = headwise::serial;
#endif

constexpr std::size_t checkpoints[] = {100, 1000, 4000};
constexpr std::size_t rows_each = 16;  // the tokens up to a checkpoint that are compared

/// What a way of decoding says up to the checkpoints, and the text it goes on with.
struct trace {
  std::vector<logit_rows> at;
  std::vector<token> text;
};

/// `decode(tokens, position, wanted)` continues a sequence.
template <class Decode>
trace follow(const engine& model, std::size_t text_length, const Decode& decode) {
  const std::vector<token> tokens = story(model, checkpoints[2] + 1);
  trace found;
  std::size_t position = 0;
  for (const std::size_t checkpoint : checkpoints) {
    const std::size_t unseen = checkpoint + 1 - rows_each - position;
    decode(token_span(tokens).part(position, unseen), position, logits_of::none);
    position += unseen;
    found.at.push_back(decode(token_span(tokens).part(position, rows_each), position, logits_of::all));
    position += rows_each;
  }
  token next = found.at.back().best(rows_each - 1);
  while (found.text.size() < text_length) {
    found.text.push_back(next);
    next = decode(token_span(&next, 1), position++, logits_of::last).best(0);
  }
  return found;
}

trace stock_trace(const engine& model, std::size_t text_length, bool flash_attention, cache_format format) {
  stock_options options;
  options.context = checkpoints[2] + 128;
  options.flash_attention = flash_attention;
  options.format = format;
  stock_session stock(model, options);
  return follow(model, text_length,
                [&](token_span tokens, std::size_t, logits_of wanted) { return stock.decode(tokens, wanted); });
}

template <class Format>
trace full_cache_trace(const engine& model, std::size_t text_length) {
  headwise::kv_cache<Format> cache(headwise::head_plan(model.shape(), headwise::head_role::retrieval));
  headwise::attend_schedule schedule;
  const attention_hook hook = [&](const attention_call& call) {
    cache.append(call.layer, call.k, call.v);
    headwise::attend(cache, call.layer, call.q, call.out, schedule, executor{}, call.params);
  };
  session ours(model);
  return follow(model, text_length, [&](token_span tokens, std::size_t position, logits_of wanted) {
    return ours.decode(tokens, position, hook, wanted);
  });
}

/// The largest logit difference of every row, checkpoint by checkpoint.
std::vector<float> differences(const trace& a, const trace& b) {
  std::vector<float> found;
  for (std::size_t i = 0; i < a.at.size(); ++i)
    for (std::size_t row = 0; row < rows_each; ++row)
      found.push_back(largest_difference(a.at[i][row], b.at[i][row], a.at[i].vocabulary));
  return found;
}

float mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0F) / static_cast<float>(values.size());
}

void print(const char* what, const std::vector<float>& differences) {
  std::printf("  %-28s", what);
  for (auto row = differences.begin(); row != differences.end(); row += rows_each)
    std::printf(" %9.2g", static_cast<double>(*std::max_element(row, row + rows_each)));
  std::printf("   mean of rows %.3g\n", static_cast<double>(mean(differences)));
}

TEST_F(llama, AFullCacheAgreesWithStockOnTheF32Model) {
  const engine& model = f32_model();
  const trace stock = stock_trace(model, 64, /*flash_attention*/ false, cache_format::f32);
  const trace float32 = full_cache_trace<headwise::float32>(model, 64);
  const trace float16 = full_cache_trace<headwise::float16>(model, 0);
  std::printf("largest logit difference from stock (no flash attention, F32 cache) at 100, 1000, 4000:\n");
  print("float32 rows", differences(stock, float32));
  print("float16 rows", differences(stock, float16));
  for (const float difference : differences(stock, float32)) EXPECT_LE(difference, 0.01F);
  for (const float difference : differences(stock, float16)) EXPECT_LE(difference, 0.03F);
  EXPECT_EQ(stock.text, float32.text);
}

// With quantised weights llama.cpp rounds activations to 8 bits, and any change of a last bit grows to the same noise:
// stock differs from itself as much when only its cache changes from F32 to F16. So single differences are a matter of
// chance; ours must not be larger on average, which 48 paired rows can tell to within a few percent.
TEST_F(llama, AFullCacheIsAsCloseToStockAsStockToItselfOnTheQuantisedModel) {
  const engine& model = quantised_model();
  const trace stock = stock_trace(model, 0, /*flash_attention*/ false, cache_format::f16);
  const std::vector<float> flash = differences(stock, stock_trace(model, 0, true, cache_format::f16));
  const std::vector<float> ours = differences(stock, full_cache_trace<headwise::float16>(model, 0));
  std::printf("largest logit difference from stock without flash attention at 100, 1000, 4000:\n");
  print("stock with flash attention", flash);
  print("float16 rows", ours);

  std::vector<float> excess(ours.size());
  std::transform(ours.begin(), ours.end(), flash.begin(), excess.begin(), std::minus<>());
  float variance = 0.0F;
  for (const float e : excess)
    variance += (e - mean(excess)) * (e - mean(excess)) / static_cast<float>(excess.size() - 1);
  EXPECT_LE(mean(excess), 2.0F * std::sqrt(variance / static_cast<float>(excess.size())));
}

// --- the engine -----------------------------------------------------------------------------------------------------

TEST_F(llama, TextGoesThroughTheTokenizerAndBack) {
  const engine& model = quantised_model();
  const std::string text = "The key of Gaza is 48213.\n\xC3\xA9";
  std::string back;
  for (const token id : model.tokenize(text, false, false)) back += model.piece(id);
  EXPECT_EQ(back, text);
  EXPECT_TRUE(model.tokenize("", false, false).empty());
  const engine::chat_frame frame = model.chat();
  EXPECT_NE(frame.before.find("user"), std::string::npos);
  EXPECT_NE(frame.after.find("assistant"), std::string::npos);
}

TEST_F(llama, OrdinaryTokensAreNotControlTokens) {
  const engine& model = quantised_model();
  const std::vector<token> ids = model.ordinary_tokens();
  EXPECT_GT(ids.size(), model.vocabulary_size() / 2);
  for (const token id : ids) EXPECT_FALSE(model.ends_generation(id));
  if (const auto first = model.first_token()) {
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *first), 0);
  }
}

// --- refusals: real damaged files -----------------------------------------------------------------------------------

TEST_F(llama, FilesThatAreNoModelAreRefused) {
  const fs::path folder = scratch();
  const auto write = [&](const char* name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return folder / name;
  };
  expect_refused(folder / "missing.gguf", "No such file");
  expect_refused(folder, "a directory");
  expect_refused(write("empty.gguf", ""), "empty");
  expect_refused(write("short.gguf", "GG"), "not a GGUF file");
  expect_refused(write("text.gguf", "once upon a time"), "not a GGUF file");
  expect_refused(write("magic_only.gguf", "GGUF"), "damaged or truncated GGUF header");
  expect_refused(write("noise.gguf", "GGUF\x03" + std::string(3, '\0') + std::string(64, '\x7f')),
                 "damaged or truncated GGUF header");
}

TEST_F(llama, TruncatedModelsAreRefused) {
  const std::uintmax_t size = fs::file_size(model_path());
  const fs::path cut = scratch() / "truncated.gguf";
  for (const std::uintmax_t length : {std::uintmax_t{24}, std::uintmax_t{1000}, size / 1000, size / 2, size - 1}) {
    std::vector<char> bytes(length);
    std::ifstream(model_path(), std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(length));
    std::ofstream(cut, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(length));
    expect_refused(cut, "truncated");
  }
}

/// The metadata of the real model, changed, without tensors.
class changed_model {
 public:
  explicit changed_model(const char* name) : path_(scratch() / (std::string(name) + ".gguf")) {
    file_.reset(gguf_init_empty());
    const gguf_init_params params = {/*no_alloc*/ true, /*ctx*/ nullptr};
    const std::unique_ptr<gguf_context, decltype(&gguf_free)> original(
        gguf_init_from_file(model_path().c_str(), params), gguf_free);
    gguf_set_kv(file_.get(), original.get());
    architecture_ = gguf_get_val_str(file_.get(), gguf_find_key(file_.get(), "general.architecture"));
  }

  gguf_context* file() { return file_.get(); }
  std::string field(const char* name) const { return architecture_ + "." + name; }
  changed_model& set(const char* name, std::uint32_t number) {
    gguf_set_val_u32(file(), field(name).c_str(), number);
    return *this;
  }
  changed_model& set(const char* name, const std::vector<std::uint32_t>& numbers) {
    gguf_set_arr_data(file(), field(name).c_str(), GGUF_TYPE_UINT32, numbers.data(), numbers.size());
    return *this;
  }
  changed_model& add_tensor(const char* name) {
    std::vector<char> memory(4096);
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
        ggml_init({memory.size(), memory.data(), /*no_alloc*/ false}), ggml_free);
    ggml_tensor* tensor = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 32);
    ggml_set_name(tensor, name);
    std::memset(tensor->data, 0, ggml_nbytes(tensor));
    gguf_add_tensor(file(), tensor);
    return write(), *this;  // while the tensor's data lives
  }
  fs::path write() {
    EXPECT_TRUE(gguf_write_to_file(file(), path_.string().c_str(), /*only_meta*/ false));
    return path_;
  }
  fs::path path() const { return path_; }

 private:
  struct freed {
    void operator()(gguf_context* file) const { gguf_free(file); }
  };
  fs::path path_;
  std::unique_ptr<gguf_context, freed> file_;
  std::string architecture_;
};

TEST_F(llama, ModelsOfOtherKindsAreRefusedByTheirFields) {
  changed_model other("other_kind");
  gguf_set_val_str(other.file(), "general.architecture", "abacus");
  expect_refused(other.write(), "architecture 'abacus' with abacus.block_count missing");

  changed_model unnamed("unnamed");
  gguf_remove_key(unnamed.file(), "general.architecture");
  expect_refused(unnamed.write(), "general.architecture");

  expect_refused(changed_model("alibi").set("attention.max_alibi_bias", 8).write(), "max_alibi_bias is 8");
  expect_refused(changed_model("latent").set("attention.kv_lora_rank", 512).write(), "kv_lora_rank is 512");
  expect_refused(changed_model("recurrent").set("ssm.state_size", 16).write(), "ssm.state_size is 16");
  expect_refused(changed_model("shared").set("attention.shared_kv_layers", 10).write(), "shared_kv_layers is 10");
  expect_refused(changed_model("no_heads").set("attention.head_count", 0).write(), "attention.head_count missing or 0");
  expect_refused(changed_model("encoder").set("attention.causal", 0).write(), "attention.causal");

  expect_refused(changed_model("tower").set("block_count", 100000).write(), "block_count is 100000");

  std::vector<std::uint32_t> heads(quantised_model().shape().layers, 3);
  heads[7] = 1;
  expect_refused(changed_model("ragged").set("attention.head_count_kv", heads).write(),
                 "head_count_kv differs by layer: 3 in layer 0, 1 in layer 7");

  changed_model text("text_number");
  gguf_set_val_str(text.file(), text.field("block_count").c_str(), "thirty");
  expect_refused(text.write(), "block_count is a str");

  expect_refused(changed_model("sinks").add_tensor("blk.0.attn_sinks.weight").path(), "attention sinks");
  expect_refused(changed_model("longrope").add_tensor("rope_factors_long.weight").path(), "depend on the context size");
}

}  // namespace
