// SPDX-License-Identifier: MIT
#include "seam.hpp"

#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "headwise/core/error.hpp"
#include "llama.h"

namespace headwise_llama {
namespace {

// The only names the seam relies on: llama.cpp calls the tensors of its KV cache cache_k_l<layer>, cache_v_l<layer>.
constexpr std::string_view key_cache = "cache_k_l";
constexpr std::string_view value_cache = "cache_v_l";

[[noreturn]] void refuse(std::size_t layer, const std::string& reason) {
  throw headwise::error("layer " + std::to_string(layer) + ": " + reason);
}

/// The tensor that owns the memory: caches are used through views.
const ggml_tensor& root(const ggml_tensor& tensor) { return tensor.view_src ? *tensor.view_src : tensor; }

/// The layer of the KV cache tensor behind `tensor`, if its name begins with `prefix`.
std::optional<std::size_t> cache_layer(const ggml_tensor* tensor, std::string_view prefix) {
  if (tensor == nullptr) return std::nullopt;
  const std::string_view name = root(*tensor).name;
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  std::size_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, layer);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return layer;
}

/// The layer whose keys or values this node stores.
std::optional<std::size_t> stored_layer(const ggml_tensor& node, std::string_view prefix) {
  return node.op == GGML_OP_SET_ROWS ? cache_layer(node.src[2], prefix) : std::nullopt;
}

bool is_ours(const ggml_tensor& node) {
  return node.op == GGML_OP_FLASH_ATTN_EXT || stored_layer(node, key_cache) || stored_layer(node, value_cache);
}

std::size_t extent(const ggml_tensor& tensor, int axis) { return static_cast<std::size_t>(tensor.ne[axis]); }

void check_host(std::size_t layer, const ggml_tensor& tensor, const char* what) {
  const ggml_backend_buffer_t buffer = tensor.buffer ? tensor.buffer : root(tensor).buffer;
  if (tensor.data == nullptr || buffer == nullptr || !ggml_backend_buffer_is_host(buffer))
    refuse(layer, std::string(what) + " are not in host memory");
}

headwise::element_type element_of(std::size_t layer, const ggml_tensor& tensor, const char* what) {
  switch (tensor.type) {
    case GGML_TYPE_F32: return headwise::element_type::f32;
    case GGML_TYPE_F16: return headwise::element_type::f16;
    case GGML_TYPE_BF16: return headwise::element_type::bf16;
    default: refuse(layer, std::string(what) + " are " + ggml_type_name(tensor.type) + ", expected f32, f16 or bf16");
  }
}

float float_param(const ggml_tensor& node, int index) {
  float value;
  std::memcpy(&value, &node.op_params[index], sizeof value);
  return value;
}

std::string rows_of(std::size_t heads, std::size_t dim) {
  return std::to_string(heads) + " heads of " + std::to_string(dim) + " elements";
}

}  // namespace

void seam::install(llama_context_params& params) {
  params.cb_eval = callback;
  params.cb_eval_user_data = this;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // the node whose output we replace
  params.type_k = params.type_v = GGML_TYPE_F16;           // a quantised cache would rotate keys and queries
  params.offload_kqv = false;
  params.op_offload = false;
}

void seam::begin(const attention_hook& hook) {
  hook_ = &hook;
  layers_done_ = 0;
  keys_.filled = values_.filled = false;
  error_ = nullptr;
}

void seam::finish() {
  hook_ = nullptr;
  if (error_) std::rethrow_exception(error_);
  if (layers_done_ == 0 || layers_done_ % shape_.layers != 0)
    refuse(layers_done_ % shape_.layers,
           "no flash attention over its own K and V in the graph, expected one per layer");
}

// llama.cpp asks (ask = true) which nodes should pause the computation, then calls again once each is computed.
// Returning false would stop the graph without failing llama_decode, so errors are kept for finish().
bool seam::callback(ggml_tensor* node, bool ask, void* self) noexcept {
  seam& bridge = *static_cast<seam*>(self);
  if (bridge.hook_ == nullptr || bridge.error_) return !ask;
  if (ask) return is_ours(*node);
  try {
    bridge.take(*node);
  } catch (...) {
    bridge.error_ = std::current_exception();
  }
  return true;
}

void seam::take(const ggml_tensor& node) {
  const std::size_t expected = layers_done_ % shape_.layers;
  if (node.op == GGML_OP_FLASH_ATTN_EXT) return attend(node);
  const auto key_layer = stored_layer(node, key_cache);
  const std::size_t layer = key_layer ? *key_layer : *stored_layer(node, value_cache);
  if (layer != expected) refuse(layer, "stores K or V where layer " + std::to_string(expected) + " was expected");
  if (key_layer)
    keep(keys_, *node.src[0], "keys", shape_.key_size());
  else
    keep(values_, *node.src[0], "values", shape_.value_size());
}

void seam::keep(kept_rows& rows, const ggml_tensor& source, const char* what, std::size_t dim) {
  const std::size_t layer = layers_done_ % shape_.layers;
  const headwise::element_type type = element_of(layer, source, what);
  check_host(layer, source, what);
  const std::size_t width = shape_.kv_heads * dim;
  if (extent(source, 0) != width || source.ne[2] != 1 || source.ne[3] != 1)
    refuse(layer, std::string(what) + " have " + std::to_string(source.ne[0]) + " elements per token, expected " +
                      std::to_string(width) + " (" + rows_of(shape_.kv_heads, dim) + ")");
  const std::size_t element = ggml_type_size(source.type);
  if (source.nb[0] != element) refuse(layer, std::string(what) + " have gaps between their elements");

  const std::size_t tokens = extent(source, 1);
  rows.bytes.resize(tokens * width * element);
  for (std::size_t i = 0; i < tokens; ++i)
    std::memcpy(rows.bytes.data() + i * width * element, static_cast<const std::byte*>(source.data) + i * source.nb[1],
                width * element);
  rows.view = {rows.bytes.data(), type, tokens, shape_.kv_heads, dim, width, dim};
  rows.filled = true;
}

void seam::attend(const ggml_tensor& node) {
  const std::size_t layer = layers_done_ % shape_.layers;
  if (!node.src[0] || !node.src[1] || !node.src[2]) refuse(layer, "flash attention without its inputs");
  const ggml_tensor& query = *node.src[0];
  if (cache_layer(node.src[2], key_cache))
    refuse(layer, "values are a part of the keys (a K-only or MLA cache), expected a cache of their own");
  if (cache_layer(node.src[1], key_cache) != layer || cache_layer(node.src[2], value_cache) != layer)
    refuse(layer, "attends to '" + std::string(root(*node.src[1]).name) + "', expected its own KV cache");
  if (!keys_.filled || !values_.filled) refuse(layer, "attends without having stored keys and values");
  if (node.src[4]) refuse(layer, "has attention sinks of its own in the softmax, which headwise does not compute");
  const float max_bias = float_param(node, 1);
  if (max_bias != 0.0F)
    refuse(layer, "uses ALiBi (max_bias " + std::to_string(max_bias) + "), expected rotary positions");

  const std::size_t tokens = keys_.view.tokens;
  if (query.type != GGML_TYPE_F32 || node.type != GGML_TYPE_F32 || query.nb[0] != sizeof(float))
    refuse(layer, std::string("queries are ") + ggml_type_name(query.type) + ", expected packed f32");
  check_host(layer, query, "queries");
  check_host(layer, node, "attention outputs");
  if (extent(query, 0) != shape_.key_size() || extent(query, 2) != shape_.query_heads || query.ne[3] != 1)
    refuse(layer, "queries are " + rows_of(extent(query, 2), extent(query, 0)) + ", expected " +
                      rows_of(shape_.query_heads, shape_.key_size()));
  if (extent(node, 0) != shape_.value_size())
    refuse(layer, "outputs are " + rows_of(extent(node, 1), extent(node, 0)) + ", expected " +
                      rows_of(shape_.query_heads, shape_.value_size()));
  if (extent(query, 1) != tokens || values_.view.tokens != tokens)
    refuse(layer, std::to_string(query.ne[1]) + " queries for " + std::to_string(tokens) + " keys and " +
                      std::to_string(values_.view.tokens) + " values");

  attention_call call;
  call.layer = layer;
  call.q = {query.data,
            headwise::element_type::f32,
            tokens,
            shape_.query_heads,
            shape_.key_size(),
            query.nb[1] / sizeof(float),
            query.nb[2] / sizeof(float)};
  call.k = keys_.view;
  call.v = values_.view;
  call.out = {
      static_cast<float*>(node.data), tokens, shape_.query_heads, shape_.value_size(), node.nb[2] / sizeof(float),
      node.nb[1] / sizeof(float)};
  call.params.scale = float_param(node, 0);
  call.params.softcap = float_param(node, 2);
  (*hook_)(call);

  keys_.filled = values_.filled = false;
  ++layers_done_;
}

}  // namespace headwise_llama
