// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gguf.h"
#include "llama.h"
#include "model.hpp"

namespace headwise_llama::test {

/// A model of random float32 weights, for architectures of which there is no real model here: as wide as a thumbnail,
/// with the tokenizer of the test model.
struct tiny_model {
  std::string architecture = "gemma3";
  std::uint32_t layers = 6;
  std::uint32_t context = 2048;
  std::uint32_t window = 48;                 ///< 0: no such field
  std::vector<std::uint32_t> pattern = {3};  ///< one: every third layer sees everything; or a flag for each layer
  std::vector<std::pair<std::string, std::uint32_t>> fields;  ///< more of the architecture's, or others

  static constexpr std::uint32_t width = 64;
  static constexpr std::uint32_t query_heads = 4;
  static constexpr std::uint32_t kv_heads = 2;
  static constexpr std::uint32_t head_dim = 32;
  static constexpr std::uint32_t inner = 96;

  /// Writes the file into the tests' folder.
  std::filesystem::path write(const std::string& name) const {
    struct freed {
      void operator()(gguf_context* file) const { gguf_free(file); }
      void operator()(ggml_context* context) const { ggml_free(context); }
    };
    const std::unique_ptr<gguf_context, freed> real(gguf_init_from_file(model_path().c_str(), {true, nullptr}));
    const std::unique_ptr<gguf_context, freed> file(gguf_init_empty());
    gguf_set_kv(file.get(), real.get());
    std::vector<std::string> others;  // all but the tokenizer
    for (std::int64_t i = 0; i < gguf_get_n_kv(file.get()); ++i) {
      const std::string key = gguf_get_key(file.get(), i);
      if (key.rfind("tokenizer.", 0) != 0) others.push_back(key);
    }
    for (const std::string& key : others) gguf_remove_key(file.get(), key.c_str());
    gguf_set_val_str(file.get(), "general.architecture", architecture.c_str());
    const auto field = [&](const std::string& key) { return architecture + "." + key; };
    const auto set = [&](const std::string& key, std::uint32_t number) {
      gguf_set_val_u32(file.get(), field(key).c_str(), number);
    };
    set("block_count", layers);
    set("context_length", context);
    set("embedding_length", width);
    set("feed_forward_length", inner);
    set("attention.head_count", query_heads);
    set("attention.head_count_kv", kv_heads);
    set("attention.key_length", head_dim);
    set("attention.value_length", head_dim);
    set("rope.dimension_count", head_dim);
    gguf_set_val_f32(file.get(), field("attention.layer_norm_rms_epsilon").c_str(), 1e-6F);
    gguf_set_val_f32(file.get(), field("rope.freq_base").c_str(), 1e6F);
    if (window != 0) set("attention.sliding_window", window);
    if (pattern.size() == 1) set("attention.sliding_window_pattern", pattern[0]);
    if (pattern.size() > 1)
      gguf_set_arr_data(file.get(), field("attention.sliding_window_pattern").c_str(), GGUF_TYPE_UINT32, pattern.data(),
                        pattern.size());
    for (const auto& [key, number] : fields) set(key, number);

    const auto vocabulary =
        static_cast<std::int64_t>(gguf_get_arr_n(file.get(), gguf_find_key(file.get(), "tokenizer.ggml.tokens")));
    const std::size_t floats = static_cast<std::size_t>(vocabulary) * width + layers * (width * 1024 + 4096);
    const std::unique_ptr<ggml_context, freed> tensors(
        ggml_init({floats * sizeof(float) + layers * 32 * ggml_tensor_overhead(), nullptr, /*no_alloc*/ false}));
    std::mt19937 random(5);
    const auto add = [&](const std::string& tensor_name, std::int64_t in, std::int64_t out, float middle,
                         float spread) {
      ggml_tensor* const tensor = out == 0 ? ggml_new_tensor_1d(tensors.get(), GGML_TYPE_F32, in)
                                           : ggml_new_tensor_2d(tensors.get(), GGML_TYPE_F32, in, out);
      ggml_set_name(tensor, (tensor_name + ".weight").c_str());
      std::normal_distribution<float> normal(middle, spread);
      auto* const data = static_cast<float*>(tensor->data);
      for (std::int64_t i = 0; i < ggml_nelements(tensor); ++i) data[i] = normal(random);
      gguf_add_tensor(file.get(), tensor);
    };
    const auto matrix = [&](const std::string& tensor_name, std::int64_t in, std::int64_t out) {
      add(tensor_name, in, out, 0.0F, 1.0F / std::sqrt(static_cast<float>(in)));
    };
    const auto norm = [&](const std::string& tensor_name, std::int64_t size, float middle = 1.0F) {
      add(tensor_name, size, 0, middle, 0.1F);
    };
    add("token_embd", width, vocabulary, 0.0F, 0.125F);
    norm("output_norm", width);
    const bool gemma = architecture == "gemma3";
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::string block = "blk." + std::to_string(layer) + ".";
      norm(block + "attn_norm", width);
      matrix(block + "attn_q", width, query_heads * head_dim);
      matrix(block + "attn_k", width, kv_heads * head_dim);
      matrix(block + "attn_v", width, kv_heads * head_dim);
      matrix(block + "attn_output", query_heads * head_dim, width);
      norm(block + "ffn_norm", width);
      matrix(block + "ffn_gate", width, inner);
      matrix(block + "ffn_up", width, inner);
      matrix(block + "ffn_down", inner, width);
      if (!gemma) continue;
      norm(block + "attn_q_norm", head_dim, 1.5F);  // attention that is neither flat nor on a single key
      norm(block + "attn_k_norm", head_dim, 1.5F);
      norm(block + "post_attention_norm", width);
      norm(block + "post_ffw_norm", width);
    }
    const std::filesystem::path path = scratch() / (name + ".gguf");
    if (!gguf_write_to_file(file.get(), path.string().c_str(), /*only_meta*/ false))
      throw std::runtime_error(path.string() + " could not be written");
    return path;
  }
};

}  // namespace headwise_llama::test
