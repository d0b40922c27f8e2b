// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headwise/core/head_plan.hpp"
#include "headwise/core/model_shape.hpp"
#include "seam.hpp"

struct llama_context;
struct llama_model;
struct llama_vocab;

namespace headwise_llama {

using token = std::int32_t;

/// Tokens somebody else owns.
class token_span {
 public:
  token_span(const token* data, std::size_t size) : data_(data), size_(size) {}
  token_span(const std::vector<token>& tokens) : token_span(tokens.data(), tokens.size()) {}
  token_span(std::initializer_list<token> tokens) : token_span(tokens.begin(), tokens.size()) {}  // for one call

  const token* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  token_span part(std::size_t first, std::size_t count) const noexcept { return {data_ + first, count}; }

 private:
  const token* data_;
  std::size_t size_;
};

/// Which tokens of a decode() give logits. `all` of a long text is large: size() x vocabulary x 4 bytes.
enum class logits_of { none, last, all };

/// One row of logits per token asked for, in their order.
struct logit_rows {
  std::size_t vocabulary = 0;
  std::vector<float> values;

  std::size_t size() const noexcept { return vocabulary == 0 ? 0 : values.size() / vocabulary; }
  const float* operator[](std::size_t row) const noexcept { return values.data() + row * vocabulary; }
  /// The most likely token of a row.
  token best(std::size_t row) const;
};

/// Called after every chunk of a decode(): tokens done, tokens in all.
using progress = std::function<void(std::size_t done, std::size_t total)>;

struct engine_options {
  bool verbose = false;  ///< let llama.cpp print its log on stderr
  /// Let llama.cpp repack weights for special instructions. Faster prompts for some formats, but the weights are
  /// then copied instead of mapped, and virtual machines that announce AMX without having it crash.
  bool repack = false;
};

/// A GGUF model whose attention headwise can take over, loaded by llama.cpp into host memory: weights, tokenizer,
/// chat template. Refuses everything else with one line that names the file and the reason (headwise::error).
class engine {
 public:
  explicit engine(const std::string& path, const engine_options& options = {});

  const std::string& path() const noexcept { return path_; }
  const headwise::model_shape& shape() const noexcept { return shape_; }
  /// A plan with the model's own windows, and all other heads in one role.
  headwise::head_plan plan(headwise::head_role role) const;
  std::string description() const;     ///< the name in the file, else kind, size and weight format
  std::string fingerprint() const;     ///< tells it from other models, wherever the file lies
  std::size_t context_length() const;  ///< tokens the model was trained for
  std::size_t vocabulary_size() const;

  /// `add_special`: the tokens a text begins or ends with in this model; `parse_special`: read "<|im_end|>" and the
  /// like as the tokens they name, not as text.
  std::vector<token> tokenize(const std::string& text, bool add_special, bool parse_special) const;
  std::string piece(token id) const;  ///< its bytes, maybe a part of a character; empty for control tokens
  bool ends_generation(token id) const;

  /// What the chat template puts around a user's message; `after` opens the assistant's turn. Both are empty where
  /// the model has no template that llama.cpp knows. To be tokenized with parse_special.
  struct chat_frame {
    std::string before;
    std::string after;
  };
  chat_frame chat() const;

  /// For the probe: ids that stand for ordinary text, and the token a sequence begins with, if the model has one.
  std::vector<token> ordinary_tokens() const;
  std::optional<token> first_token() const;

  llama_model* handle() const noexcept { return model_.get(); }

 private:
  struct free_model {
    void operator()(llama_model* model) const;
  };

  const llama_vocab* vocabulary() const;

  std::string path_;
  headwise::model_shape shape_;
  std::vector<std::size_t> windows_;  // of each layer, 0: it sees everything
  std::unique_ptr<llama_model, free_model> model_;
};

namespace detail {
struct free_context {
  void operator()(llama_context* context) const;
};
using context_handle = std::unique_ptr<llama_context, free_context>;
}  // namespace detail

enum class cache_format { f32, f16 };

struct session_options {
  std::size_t chunk = 256;  ///< tokens per graph, and cells of llama.cpp's own cache, which never holds more
  int threads = 0;          ///< 0: all of the machine
  cache_format rows = cache_format::f32;  ///< what the hook gets: f32 is exact, f16 takes half the bytes
};

/// Runs a model with somebody else's KV cache: the hook's. llama.cpp's own cache holds the chunk at hand and is
/// emptied before the next, so one session serves any number of caches, in any order. The engine must outlive it.
class session {
 public:
  explicit session(const engine& model, const session_options& options = {});

  /// Runs tokens at positions first_position, first_position + 1, ...; the hook sees every layer of every chunk and
  /// must know the tokens before. Whatever the hook throws comes out here; the hook's cache then holds a part of
  /// the chunk. Refuses positions beyond the model's trained context before anything runs.
  logit_rows decode(token_span tokens, std::size_t first_position, const attention_hook& hook,
                    logits_of wanted = logits_of::last, const progress& report = {});

  std::size_t cache_bytes() const;  ///< of llama.cpp's own cells, which the hook's cache comes on top of

 private:
  const engine& engine_;
  std::size_t chunk_;
  cache_format rows_;
  std::unique_ptr<seam> seam_;
  detail::context_handle context_;
};

struct stock_options {
  std::size_t context = 0;  ///< cells; 0: the model's trained context
  std::size_t chunk = 256;
  int threads = 0;
  bool flash_attention = true;
  cache_format format = cache_format::f16;
};

/// llama.cpp as it is, with its own KV cache: what headwise is compared with.
class stock_session {
 public:
  explicit stock_session(const engine& model, const stock_options& options = {});

  /// Continues the sequence.
  logit_rows decode(token_span tokens, logits_of wanted = logits_of::last, const progress& report = {});
  void clear();  ///< back to an empty sequence
  std::size_t length() const noexcept { return length_; }
  std::size_t cache_bytes() const;  ///< what its KV cache takes, filled or not

 private:
  const engine& engine_;
  std::size_t chunk_;
  std::size_t length_ = 0;
  cache_format format_;
  detail::context_handle context_;
};

/// Writes the model with all weights as float32, for tests of agreement: quantised weights round the activations
/// too, which hides small differences. 4 bytes per weight; `out` appears only when complete.
void write_f32_copy(const std::string& in, const std::string& out);

}  // namespace headwise_llama
