// SPDX-License-Identifier: MIT
// The first screen: find the retrieval heads once, then a KV cache like any other, only smaller.
#include <headwise/headwise.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

// Stands for your engine: something that computes q, k and v of a layer after RoPE and wants the attention output.
// Its heads differ on purpose: KV head 1 of each layer looks for earlier copies of a token, KV head 0 looks nowhere.
class toy_engine {
 public:
  explicit toy_engine(const headwise::model_shape& shape) : shape_(shape) {}

  /// Calls attend(layer, q, k, v, out) for each layer of a chunk of tokens.
  template <class Attend>
  void run(const std::vector<std::int32_t>& tokens, Attend&& attend) const {
    const std::size_t dim = shape_.head_dim;
    const std::size_t group = shape_.query_heads / shape_.kv_heads;
    std::vector<float> q(tokens.size() * shape_.query_heads * dim), k(tokens.size() * shape_.kv_heads * dim);
    std::vector<float> out(q.size());
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::size_t t = 0; t < tokens.size(); ++t)
        for (std::size_t i = 0; i < dim; ++i) {
          const float x = std::sin(static_cast<float>((tokens[t] + 7) * static_cast<std::int32_t>(i * i + layer + 1)));
          for (std::size_t h = 0; h < shape_.kv_heads; ++h) k[(t * shape_.kv_heads + h) * dim + i] = x;
          for (std::size_t h = 0; h < shape_.query_heads; ++h)
            q[(t * shape_.query_heads + h) * dim + i] = h / group == 1 ? 3 * x : 0;
        }
      const auto keys = headwise::packed_rows(k.data(), tokens.size(), shape_.kv_heads, dim);
      attend(layer, headwise::packed_rows(q.data(), tokens.size(), shape_.query_heads, dim), keys, keys,
             headwise::packed_output(out.data(), tokens.size(), shape_.query_heads, dim));
    }
  }

 private:
  headwise::model_shape shape_;
};

int main() {
  headwise::model_shape shape;
  shape.layers = 4, shape.query_heads = 8, shape.kv_heads = 2, shape.head_dim = 64;
  const toy_engine engine(shape);
  headwise::vocabulary vocabulary;
  for (std::int32_t id = 10; id < 1000; ++id) vocabulary.ordinary.push_back(id);

  // Once per model: which heads retrieve? A synthetic prompt answers; no data set, no training.
  const headwise::repeated_tokens probe(vocabulary, /*block*/ 100, /*repeats*/ 4, /*seed*/ 1);
  headwise::head_scorer scorer(shape, probe);  // echo and induction
  engine.run(probe.tokens(), [&](std::size_t layer, auto q, auto k, auto, auto) { scorer.observe(layer, q, k); });
  const auto plan = headwise::combined_heads(0.5).plan(scorer.scores());

  // Every request: a KV cache like any other.
  headwise::razor_budget budget;  // at least 4000 recent rows, or a fifth of the tokens
  budget.min_recent = 64;         // (fewer here, so that a toy prompt folds)
  auto cache = headwise::make_cache<headwise::float16>(plan, budget, headwise::mean_compensation{});
  headwise::attend_schedule schedule;  // scratch memory, kept from call to call
  const auto attend = [&](std::size_t layer, auto q, auto k, auto v, auto out) {
    cache.append(layer, k, v);
    headwise::attend(cache, layer, q, out, schedule);
  };
  engine.run(probe.tokens(), attend);  // the prompt
  cache.compress();                    // local heads shrink now, and from here on keep rolling
  engine.run({42}, attend);            // the next token

  const auto report = cache.report();
  std::printf("%zu tokens: %zu rows kept, %zu folded; %zu bytes held, a dense cache holds %zu\n", report.tokens,
              report.rows, report.folded, report.held_bytes(), report.dense_bytes);
  for (const headwise::head_id head : plan.retrieval_heads())
    std::printf("retrieval head: layer %zu, KV head %zu\n", head.layer, head.kv_head);
}
