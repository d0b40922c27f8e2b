// SPDX-License-Identifier: MIT
#include "seam.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

/// What a copy was made of: llama.cpp converts rows of f32 before its flash attention.
const ggml_tensor* original(const ggml_tensor* tensor) {
  const bool copy =
      tensor != nullptr && tensor->src[0] != nullptr && tensor->src[1] == tensor;  // as ggml_cast makes it
  return copy ? tensor->src[0] : tensor;
}

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

// --- windows --------------------------------------------------------------------------------------------------------

/// How many cells the first query of a mask sees: none of the others has -infinity, and none of these anything but 0.
std::size_t cells_seen(std::size_t layer, const ggml_tensor* mask) {
  if (mask == nullptr) refuse(layer, "attends without a mask");
  check_host(layer, *mask, "masks");
  std::size_t seen = 0;
  for (std::size_t cell = 0; cell < extent(*mask, 0); ++cell) {
    if (mask->type == GGML_TYPE_F16)
      seen += static_cast<const std::uint16_t*>(mask->data)[cell] == 0;
    else if (mask->type == GGML_TYPE_F32)
      seen += static_cast<const float*>(mask->data)[cell] == 0.0F;
    else
      refuse(layer, std::string("masks are ") + ggml_type_name(mask->type) + ", expected f32 or f16");
  }
  return seen;
}

/// Runs graphs of which nothing is computed, and looks at the masks of the last: they are inputs, set before.
class mask_reader {
 public:
  /// Cells that the last token of the last run saw, by layer; 0: not known.
  std::vector<std::size_t> seen;

  explicit mask_reader(std::size_t layers) : seen(layers) {}

  void install(llama_context_params& params) {
    params.cb_eval = callback;
    params.cb_eval_user_data = this;
  }
  void run(llama_context& context, llama_pos position, std::size_t tokens) {
    std::fill(seen.begin(), seen.end(), 0);
    std::vector<llama_token> ids(tokens, 0);  // which they are does not matter
    std::vector<llama_pos> positions(tokens);
    for (llama_pos& each : positions) each = position++;
    std::vector<std::int32_t> counts(tokens, 1);
    llama_seq_id sequence = 0;
    std::vector<llama_seq_id*> sequences(tokens, &sequence);
    std::vector<std::int8_t> no_logits(tokens, 0);
    llama_batch batch = {};
    batch.n_tokens = static_cast<std::int32_t>(tokens);
    batch.token = ids.data();
    batch.pos = positions.data();
    batch.n_seq_id = counts.data();
    batch.seq_id = sequences.data();
    batch.logits = no_logits.data();
    const int failed = llama_decode(&context, batch);
    llama_synchronize(&context);
    for (const auto& [node, op] : left_out_) node->op = op;  // llama.cpp may use the graph again
    left_out_.clear();
    if (error_) std::rethrow_exception(error_);
    if (failed != 0) throw headwise::error("llama.cpp cannot run it to show its windows");
  }

 private:
  static bool callback(ggml_tensor* node, bool ask, void* self) noexcept {
    mask_reader& reader = *static_cast<mask_reader*>(self);
    try {
      if (ask) reader.look_at(*node);
    } catch (...) {
      reader.error_ = std::current_exception();
    }
    return !ask;
  }
  void look_at(ggml_tensor& node) {
    if (node.op == GGML_OP_FLASH_ATTN_EXT) {
      const auto layer = cache_layer(original(node.src[1]), key_cache);
      if (layer && *layer < seen.size()) seen[*layer] = cells_seen(*layer, original(node.src[3]));
    }
    left_out_.emplace_back(&node, node.op);
    node.op = GGML_OP_NONE;
  }

  std::vector<std::pair<ggml_tensor*, ggml_op>> left_out_;
  std::exception_ptr error_;
};

}  // namespace

std::vector<std::size_t> windows_of(llama_model* model, const headwise::model_shape& shape) {
  const llama_pos window = llama_model_n_swa(model);
  std::vector<std::size_t> windows(shape.layers, 0);
  if (window <= 0) return windows;
  if (window < 3) throw headwise::error("it has windows of " + std::to_string(window) + " tokens, expected at least 3");

  constexpr llama_pos chunk = 128;
  mask_reader reader(shape.layers);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 4 * chunk;
  params.n_batch = params.n_ubatch = chunk;
  params.n_seq_max = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.offload_kqv = params.op_offload = false;
  reader.install(params);
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model, params), llama_free);
  if (!context) throw headwise::error("llama.cpp cannot make a context to show its windows");

  // Tokens at 0, 1 and window - 1 (those between must come, and may go), seen from the position `window`: a layer that
  // sees everything sees the three and itself, a window all but the first. A cell that no window reaches any more may
  // be used again, so cells are counted, not named.
  for (llama_pos position = 0; position < window;) {
    const llama_pos count = std::min(chunk, window - position);
    reader.run(*context, position, static_cast<std::size_t>(count));
    position += count;
    llama_memory_seq_rm(llama_get_memory(context.get()), 0, 2, position - 1);
  }
  reader.run(*context, window, 1);
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    constexpr std::size_t whole = 4;
    const std::size_t seen = reader.seen[layer];
    if (seen == 0) refuse(layer, "no flash attention over keys of its own, expected it in every layer");
    if (seen == whole - 1)
      windows[layer] = static_cast<std::size_t>(window);
    else if (seen != whole)
      refuse(layer, "a token at position " + std::to_string(window) + " does not see the newest " +
                        std::to_string(window) + " (windows that are chunks, or look both ways)");
  }
  return windows;
}

void seam::install(llama_context_params& params, headwise::element_type rows) {
  if (rows == headwise::element_type::bf16)  // llama.cpp would take it, but no hook asks for it
    throw headwise::error("seam: rows of llama.cpp's own cache are f32 or f16");
  params.cb_eval = callback;
  params.cb_eval_user_data = this;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // the node whose output we replace
  params.type_k = params.type_v = rows == headwise::element_type::f16 ? GGML_TYPE_F16 : GGML_TYPE_F32;
  params.offload_kqv = false;
  params.op_offload = false;
}

void seam::begin(const attention_hook& hook) {
  hook_ = &hook;
  layers_done_ = 0;
  keys_.known = values_.known = false;
  error_ = nullptr;
}

void seam::finish() {
  hook_ = nullptr;
  restore();
  if (error_) std::rethrow_exception(error_);
  if (layers_done_ == 0 || layers_done_ % shape_.layers != 0)
    refuse(layers_done_ % shape_.layers,
           "no flash attention over its own K and V in the graph, expected one per layer");
}

/// Makes a node a place that costs nothing, until restore(): it is not to be computed.
void seam::leave_out(ggml_tensor& node) {
  left_out_.push_back({&node, node.op});
  node.op = GGML_OP_NONE;
}

/// The nodes as llama.cpp made them: it may use the graph again.
void seam::restore() noexcept {
  for (const left_out& each : left_out_) each.node->op = static_cast<ggml_op>(each.op);
  left_out_.clear();
}

// llama.cpp asks (ask = true) node after node where to pause, computes up to the first that we name, calls again with
// it (ask = false), and goes on asking. Every pause ends a parallel region of the engine and costs its threads a
// meeting, so there is one per layer. Returning false after a pause would stop the graph without failing llama_decode,
// so errors are kept for finish().
bool seam::callback(ggml_tensor* node, bool ask, void* self) noexcept {
  seam& bridge = *static_cast<seam*>(self);
  if (!ask) bridge.restore();
  if (bridge.hook_ == nullptr || bridge.error_) return !ask;
  try {
    if (ask) return bridge.ask(*node);
    bridge.attend(*node);
  } catch (...) {
    bridge.error_ = std::current_exception();
  }
  return !ask;
}

/// Whether to pause after a node. Nothing of what lies before the last pause and the node is computed yet.
bool seam::ask(ggml_tensor& node) {
  if (node.op == GGML_OP_FLASH_ATTN_EXT) {
    leave_out(node);
    return true;
  }
  const ggml_tensor* const copied = original(&node);
  if (copied != &node && (cache_layer(copied, key_cache) || cache_layer(copied, value_cache))) {
    leave_out(node);  // made for the attention that is left out
    return false;
  }
  const auto key_layer = stored_layer(node, key_cache);
  const auto value_layer = stored_layer(node, value_cache);
  if (!key_layer && !value_layer) return false;
  const std::size_t layer = key_layer ? *key_layer : *value_layer;
  const std::size_t expected = layers_done_ % shape_.layers;
  if (layer != expected) refuse(layer, "stores K or V where layer " + std::to_string(expected) + " was expected");
  if (key_layer)
    find(keys_, node, "keys", shape_.key_size());
  else
    find(values_, node, "values", shape_.value_size());
  return false;
}

/// The rows that a SET_ROWS node is going to store. They are read from llama.cpp's cache and not from where they came,
/// since the graph may reuse that memory before attention.
void seam::find(stored_rows& rows, const ggml_tensor& node, const char* what, std::size_t dim) const {
  const std::size_t layer = layers_done_ % shape_.layers;
  const ggml_tensor& source = *node.src[0];
  const ggml_tensor& cells = *node.src[1];
  const ggml_tensor& cache = *node.src[2];
  const headwise::element_type type = element_of(layer, cache, what);
  check_host(layer, cache, what);
  check_host(layer, cells, "cell numbers");
  const std::size_t width = shape_.kv_heads * dim;
  if (extent(source, 0) != width || source.ne[2] != 1 || source.ne[3] != 1 || extent(cache, 0) != width)
    refuse(layer, std::string(what) + " have " + std::to_string(source.ne[0]) + " elements per token, expected " +
                      std::to_string(width) + " (" + rows_of(shape_.kv_heads, dim) + ")");
  const std::size_t element = ggml_type_size(cache.type);
  if (cache.nb[0] != element || cache.nb[1] % element != 0)
    refuse(layer, std::string(what) + " have gaps between their elements");

  // The cells are an input of the graph, so their numbers are there before anything is computed. A cache that was
  // emptied before is filled from its first cell on; rows that lie elsewhere would have to be gathered.
  const std::size_t tokens = extent(source, 1);
  if (cells.type != GGML_TYPE_I64 || cells.op != GGML_OP_NONE || extent(cells, 0) != tokens || tokens == 0)
    refuse(layer, std::string(what) + " are stored in cells that are computed, expected a list of one per token");
  const auto* const numbers = static_cast<const std::int64_t*>(cells.data);
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::int64_t expected = numbers[0] + static_cast<std::int64_t>(i);
    if (numbers[i] != expected || numbers[i] < 0 || numbers[i] >= cache.ne[1])
      refuse(layer, std::string(what) + " go to cell " + std::to_string(numbers[i]) + " of " +
                        std::to_string(cache.ne[1]) + ", expected cell " + std::to_string(expected));
  }
  rows.view = {static_cast<const std::byte*>(cache.data) + static_cast<std::size_t>(numbers[0]) * cache.nb[1],
               type,
               tokens,
               shape_.kv_heads,
               dim,
               cache.nb[1] / element,
               dim};
  rows.known = true;
}

void seam::attend(const ggml_tensor& node) {
  const std::size_t layer = layers_done_ % shape_.layers;
  if (!node.src[0] || !node.src[1] || !node.src[2]) refuse(layer, "flash attention without its inputs");
  const ggml_tensor& query = *node.src[0];
  const ggml_tensor* const keys = original(node.src[1]);
  const ggml_tensor* const values = original(node.src[2]);
  if (cache_layer(values, key_cache))
    refuse(layer, "values are a part of the keys (a K-only or MLA cache), expected a cache of their own");
  if (cache_layer(keys, key_cache) != layer || cache_layer(values, value_cache) != layer)
    refuse(layer, "attends to '" + std::string(root(*keys).name) + "', expected its own KV cache");
  if (!keys_.known || !values_.known) refuse(layer, "attends without having stored keys and values");
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

  keys_.known = values_.known = false;
  ++layers_done_;
}

}  // namespace headwise_llama
