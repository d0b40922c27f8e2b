// SPDX-License-Identifier: MIT
#include "engine.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "gguf.h"
#include "headwise/core/error.hpp"
#include "llama.h"

namespace headwise_llama {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& reason) {
  throw headwise::error(where + ": " + reason);
}

// --- llama.cpp's log: one for the whole process, silent unless wanted, its first error kept for our messages --------

struct log_state {
  std::mutex mutex;
  bool verbose = false;
  std::string first_error;
};

log_state& log() {
  static log_state state;
  return state;
}

void on_log(ggml_log_level level, const char* text, void*) {
  log_state& state = log();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.verbose) std::fputs(text, stderr);
  if (level == GGML_LOG_LEVEL_ERROR && state.first_error.empty()) {
    state.first_error = text;
    std::replace(state.first_error.begin(), state.first_error.end(), '\n', ' ');
  }
}

/// Begins a call of llama.cpp whose error is to be reported.
void forget_errors() {
  const std::lock_guard<std::mutex> lock(log().mutex);
  log().first_error.clear();
}

std::string llama_error() {
  const std::lock_guard<std::mutex> lock(log().mutex);
  std::string text = log().first_error.empty() ? "no reason given" : log().first_error;
  text.erase(text.find_last_not_of(' ') + 1);
  return "llama.cpp: " + text;
}

void start_llama(bool verbose) {
  {
    const std::lock_guard<std::mutex> lock(log().mutex);
    log().verbose = verbose;
  }
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_log, nullptr);
    if (ggml_backend_reg_count() == 0) ggml_backend_load_all();  // builds with loadable backends
    llama_backend_init();
  });
}

// --- what the file says about itself, before llama.cpp loads it -----------------------------------------------------

struct free_gguf {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
using gguf_handle = std::unique_ptr<gguf_context, free_gguf>;

template <class Number>
std::vector<double> as_doubles(const void* data, std::size_t count) {
  std::vector<double> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, static_cast<const std::byte*>(data) + i * sizeof number, sizeof number);
    numbers[i] = static_cast<double>(number);
  }
  return numbers;
}

/// The metadata of a GGUF file, field names without the architecture in front.
class metadata {
 public:
  explicit metadata(const std::string& path) : path_(path) {
    check_readable();
    forget_errors();
    file_.reset(gguf_init_from_file(path.c_str(), {/*no_alloc*/ true, /*ctx*/ nullptr}));
    if (!file_)
      refuse(path_, "damaged or truncated GGUF header in " + std::to_string(size_) + " bytes, " + llama_error());
    check_complete();
    const std::int64_t key = gguf_find_key(file_.get(), "general.architecture");
    if (key < 0 || gguf_get_kv_type(file_.get(), key) != GGUF_TYPE_STRING)
      refuse(path_, "no field general.architecture, expected a language model");
    architecture_ = gguf_get_val_str(file_.get(), key);
  }

  std::string field(const char* name) const { return architecture_ + "." + name; }

  bool has_tensor(const char* name) const { return gguf_find_tensor(file_.get(), name) >= 0; }

  /// The numbers of a field (one, or an array's); none when the field is missing.
  std::vector<double> numbers(const char* name) const {
    const std::int64_t key = gguf_find_key(file_.get(), field(name).c_str());
    if (key < 0) return {};
    gguf_type type = gguf_get_kv_type(file_.get(), key);
    std::size_t count = 1;
    const void* data = nullptr;
    if (type == GGUF_TYPE_ARRAY) {
      type = gguf_get_arr_type(file_.get(), key);
      count = gguf_get_arr_n(file_.get(), key);
      if (type != GGUF_TYPE_STRING) data = gguf_get_arr_data(file_.get(), key);
    } else if (type != GGUF_TYPE_STRING) {
      data = gguf_get_val_data(file_.get(), key);
    }
    switch (type) {
      case GGUF_TYPE_BOOL:  // stored as one byte
      case GGUF_TYPE_INT8: return as_doubles<std::int8_t>(data, count);
      case GGUF_TYPE_UINT8: return as_doubles<std::uint8_t>(data, count);
      case GGUF_TYPE_INT16: return as_doubles<std::int16_t>(data, count);
      case GGUF_TYPE_UINT16: return as_doubles<std::uint16_t>(data, count);
      case GGUF_TYPE_INT32: return as_doubles<std::int32_t>(data, count);
      case GGUF_TYPE_UINT32: return as_doubles<std::uint32_t>(data, count);
      case GGUF_TYPE_INT64: return as_doubles<std::int64_t>(data, count);
      case GGUF_TYPE_UINT64: return as_doubles<std::uint64_t>(data, count);
      case GGUF_TYPE_FLOAT32: return as_doubles<float>(data, count);
      case GGUF_TYPE_FLOAT64: return as_doubles<double>(data, count);
      default: refuse(path_, field(name) + " is a " + gguf_type_name(type) + ", expected a number");
    }
  }

  /// A field that is the same for all layers; 0 when it is missing.
  std::size_t same_everywhere(const char* name) const {
    const std::vector<double> found = numbers(name);
    for (std::size_t layer = 1; layer < found.size(); ++layer)
      if (found[layer] != found[0])
        refuse(path_, field(name) + " differs by layer: " + whole(found[0]) + " in layer 0, " + whole(found[layer]) +
                          " in layer " + std::to_string(layer) + ", expected one number for all");
    if (found.empty()) return 0;
    if (!(found[0] >= 0 && found[0] <= 1e9))
      refuse(path_, field(name) + " is " + whole(found[0]) + ", expected a count");
    return static_cast<std::size_t>(found[0]);
  }

  std::size_t required(const char* name) const {
    const std::size_t number = same_everywhere(name);
    if (number == 0)
      refuse(path_, "architecture '" + architecture_ + "' with " + field(name) +
                        " missing or 0, expected a language model with attention");
    return number;
  }

  /// Refuses the file if the field holds anything but zeros.
  void must_be_unset(const char* name, const char* reason) const {
    for (const double number : numbers(name))
      if (number != 0) refuse(path_, field(name) + " is " + whole(number) + ": " + reason);
  }

  static std::string whole(double number) { return headwise::detail::join(number); }

 private:
  void check_readable() {
    std::error_code failure;
    if (std::filesystem::is_directory(path_, failure)) refuse(path_, "a directory, expected a GGUF file");
    std::ifstream stream(path_, std::ios::binary);
    if (!stream) refuse(path_, std::string("cannot be opened: ") + std::strerror(errno));
    size_ = std::filesystem::file_size(path_, failure);
    if (failure) refuse(path_, "cannot be read: " + failure.message());
    if (size_ == 0) refuse(path_, "empty, expected a GGUF file");
    char magic[4] = {};
    stream.read(magic, sizeof magic);
    if (!stream || std::memcmp(magic, GGUF_MAGIC, sizeof magic) != 0)
      refuse(path_, "not a GGUF file (its first four bytes are not '" GGUF_MAGIC "')");
  }

  void check_complete() const {
    std::uintmax_t end = gguf_get_data_offset(file_.get());
    for (std::int64_t i = 0; i < gguf_get_n_tensors(file_.get()); ++i)
      end = std::max<std::uintmax_t>(end, gguf_get_data_offset(file_.get()) + gguf_get_tensor_offset(file_.get(), i) +
                                              gguf_get_tensor_size(file_.get(), i));
    if (size_ < end) refuse(path_, "truncated: " + std::to_string(size_) + " bytes, expected " + std::to_string(end));
  }

  std::string path_;
  std::uintmax_t size_ = 0;
  gguf_handle file_;
  std::string architecture_;
};

/// Refuses models whose KV cache is not one key and one value row per token, head and layer, all of one shape, seen
/// by every later token at its original position. What the file does not tell, the seam refuses at the first chunk.
headwise::model_shape check_supported(const std::string& path, const metadata& file) {
  constexpr const char* recurrent = "it has recurrent layers, expected attention in every layer";
  constexpr const char* latent = "its cache holds latent rows (MLA), expected keys and values of each head";
  file.must_be_unset("ssm.state_size", recurrent);
  file.must_be_unset("ssm.conv_kernel", recurrent);
  file.must_be_unset("wkv.head_size", recurrent);
  file.must_be_unset("shortconv.l_cache", recurrent);
  file.must_be_unset("kda.head_dim", recurrent);
  file.must_be_unset("attention.recurrent_layers", recurrent);
  file.must_be_unset("attention.kv_lora_rank", latent);
  file.must_be_unset("attention.key_length_mla", latent);
  file.must_be_unset("attention.shared_kv_layers", "layers share one cache, expected one for each");
  file.must_be_unset("attention.max_alibi_bias", "its positions are ALiBi biases, expected rotary positions");

  const std::vector<double> causal = file.numbers("attention.causal");
  if (!causal.empty() && causal[0] == 0)
    refuse(path, file.field("attention.causal") + " is false: expected a model that generates text");
  if (file.has_tensor("blk.0.attn_sinks.weight"))
    refuse(path, "it has attention sinks (blk.0.attn_sinks.weight), which headwise does not compute");
  if (file.has_tensor("rope_factors_long.weight") || file.has_tensor("blk.0.rope_factors_long.weight"))
    refuse(path, "its rope factors depend on the context size (rope_factors_long), expected one set of factors");

  headwise::model_shape shape;
  shape.layers = file.required("block_count");
  constexpr std::size_t most_layers = 512;  // beyond its limit llama.cpp aborts
  if (shape.layers > most_layers)
    refuse(path, file.field("block_count") + " is " + std::to_string(shape.layers) + ", expected at most " +
                     std::to_string(most_layers));
  static_cast<void>(file.required("context_length"));
  shape.query_heads = file.required("attention.head_count");
  shape.kv_heads = file.same_everywhere("attention.head_count_kv");
  if (shape.kv_heads == 0) shape.kv_heads = shape.query_heads;
  const std::size_t width = file.required("embedding_length");
  const auto row = [&](const char* name) {
    const std::size_t length = file.same_everywhere(name);
    return length != 0 ? length : width / shape.query_heads;
  };
  shape.head_dim = row("attention.key_length");
  shape.value_dim = row("attention.value_length");
  const auto same_in_windows = [&](const char* name, std::size_t elsewhere) {
    const std::size_t length = file.same_everywhere(name);
    if (length != 0 && length != elsewhere)
      refuse(path, file.field(name) + " is " + std::to_string(length) + ", and " + std::to_string(elsewhere) +
                       " in layers without a window, expected rows of one size");
  };
  same_in_windows("attention.key_length_swa", shape.head_dim);
  same_in_windows("attention.value_length_swa", shape.value_dim);
  return shape;
}

// --- running
// ----------------------------------------------------------------------------------------------------------

int thread_count(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

llama_context_params context_params(std::size_t cells, std::size_t chunk, int threads) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(cells);
  params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(chunk);  // one llama_decode is one graph
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = thread_count(threads);
  params.offload_kqv = false;
  params.op_offload = false;
  params.swa_full = false;  // layers with a window have no more cells than they need
  return params;
}

detail::context_handle make_context(const engine& model, const llama_context_params& params) {
  forget_errors();
  detail::context_handle context(llama_init_from_model(model.handle(), params));
  if (!context) refuse(model.path(), "no context of " + std::to_string(params.n_ctx) + " cells, " + llama_error());
  if (llama_get_memory(context.get()) == nullptr) refuse(model.path(), "a model without a KV cache");
  return context;
}

ggml_type ggml_type_of(cache_format format) { return format == cache_format::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16; }

/// All cells of llama.cpp's own cache: keys and values of every KV head. Layers with a window have their own cache of
/// as many cells as window and chunk need, in whole 256 (llama-kv-cache-iswa.cpp).
std::size_t own_cache_bytes(const engine& model, const llama_context& context, ggml_type type) {
  const headwise::model_shape& shape = model.shape();
  const headwise::head_plan plan = model.plan(headwise::head_role::retrieval);
  const std::size_t all = llama_n_ctx(&context);
  std::size_t cells = 0;
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    const std::size_t needed = (plan.window(layer) + llama_n_ubatch(&context) + 255) / 256 * 256;
    cells += plan.window(layer) == 0 ? all : std::min(all, needed);
  }
  return cells * shape.kv_heads * (shape.key_size() + shape.value_size()) * ggml_type_size(type);
}

void check_tokens(const engine& model, token_span tokens, std::size_t first_position) {
  const std::size_t limit = model.context_length();
  if (first_position > limit || tokens.size() > limit - first_position)
    refuse(model.path(), std::to_string(first_position) + " + " + std::to_string(tokens.size()) +
                             " tokens, but the model was trained for a context of " + std::to_string(limit));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens.data()[i] < 0 || static_cast<std::size_t>(tokens.data()[i]) >= model.vocabulary_size())
      refuse(model.path(), "token " + std::to_string(tokens.data()[i]) + " at " + std::to_string(i) +
                               " is not in the vocabulary of " + std::to_string(model.vocabulary_size()));
}

/// One chunk through llama_decode; its result.
int run_chunk(llama_context& context, token_span tokens, std::size_t position, std::vector<std::int8_t>& wanted) {
  const std::size_t count = tokens.size();
  std::vector<llama_pos> positions(count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = static_cast<llama_pos>(position + i);
  std::vector<std::int32_t> sequence_counts(count, 1);
  llama_seq_id sequence = 0;
  std::vector<llama_seq_id*> sequences(count, &sequence);
  llama_batch batch = {};
  batch.n_tokens = static_cast<std::int32_t>(count);
  batch.token = const_cast<token*>(tokens.data());  // llama_decode only reads it
  batch.pos = positions.data();
  batch.n_seq_id = sequence_counts.data();
  batch.seq_id = sequences.data();
  batch.logits = wanted.data();
  return llama_decode(&context, batch);
}

/// Chunk after chunk; `run(chunk, position, wanted)` decodes one.
template <class Run>
logit_rows run_chunks(const engine& model, llama_context& context, token_span tokens, std::size_t first_position,
                      std::size_t chunk, logits_of wanted, const progress& report, const Run& run) {
  check_tokens(model, tokens, first_position);
  logit_rows rows;
  rows.vocabulary = model.vocabulary_size();
  std::vector<std::int8_t> flags;
  for (std::size_t done = 0; done < tokens.size();) {
    const token_span part = tokens.part(done, std::min(chunk, tokens.size() - done));
    flags.assign(part.size(), wanted == logits_of::all ? 1 : 0);
    if (wanted == logits_of::last && done + part.size() == tokens.size()) flags.back() = 1;
    run(part, first_position + done, flags);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (flags[i] == 0) continue;
      const float* row = llama_get_logits_ith(&context, static_cast<std::int32_t>(i));
      if (row == nullptr) refuse(model.path(), "no logits for token " + std::to_string(done + i));
      rows.values.insert(rows.values.end(), row, row + rows.vocabulary);
    }
    done += part.size();
    if (report) report(done, tokens.size());
  }
  return rows;
}

}  // namespace

token logit_rows::best(std::size_t row) const {
  return static_cast<token>(std::max_element((*this)[row], (*this)[row] + vocabulary) - (*this)[row]);
}

// --- engine
// -----------------------------------------------------------------------------------------------------------

void engine::free_model::operator()(llama_model* model) const { llama_model_free(model); }

engine::engine(const std::string& path, const engine_options& options) : path_(path) {
  start_llama(options.verbose);
  const metadata file(path);
  shape_ = check_supported(path, file);

  llama_model_params params = llama_model_default_params();
  ggml_backend_dev_t no_devices[] = {nullptr};  // the seam reads host memory
  params.devices = no_devices;
  params.n_gpu_layers = 0;
  params.use_extra_bufts = options.repack;
  forget_errors();
  model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (!model_) refuse(path, llama_error());

  // What an architecture implies without a field.
  if (llama_model_is_recurrent(handle()) || llama_model_is_hybrid(handle()))
    refuse(path, "it has recurrent layers, expected attention in every layer");
  if (llama_model_has_encoder(handle()) || !llama_model_has_decoder(handle()) || llama_model_is_diffusion(handle()))
    refuse(path, "expected a model that only decodes, from left to right");
  shape_.layers = static_cast<std::size_t>(llama_model_n_layer(handle()));  // without layers that only draft tokens
  windows_.assign(shape_.layers, 0);
  try {
    headwise::check(shape_);
    // A window as long as the context is none.
    const auto window = static_cast<std::size_t>(std::max(0, llama_model_n_swa(handle())));
    const std::vector<double> pattern = file.numbers("attention.sliding_window_pattern");
    if (window != 0 && pattern.size() > 1 &&
        std::all_of(pattern.begin(), pattern.end(), [](double p) { return p == 0; }))
      refuse(path, file.field("attention.sliding_window_pattern") + " names no layer, with windows of " +
                       std::to_string(window) + " tokens: llama.cpp would abort");
    if (window < context_length()) windows_ = windows_of(handle(), shape_);
  } catch (const headwise::error& wrong) {
    refuse(path, wrong.what());
  }
}

headwise::head_plan engine::plan(headwise::head_role role) const {
  headwise::head_plan plan(shape_, role);
  for (std::size_t layer = 0; layer < windows_.size(); ++layer)
    if (windows_[layer] != 0) plan.set_window(layer, windows_[layer]);
  return plan;
}

std::string engine::description() const {
  char text[256];
  if (llama_model_meta_val_str(handle(), "general.name", text, sizeof text) > 0) return text;
  return llama_model_desc(handle(), text, sizeof text) > 0 ? text : "";
}

std::string engine::fingerprint() const {
  char kind[128] = {};
  llama_model_desc(handle(), kind, sizeof kind);
  return headwise::detail::join(description(), ", ", kind, ", ", llama_model_n_params(handle()), " parameters in ",
                                llama_model_size(handle()), " bytes");
}

std::size_t engine::context_length() const { return static_cast<std::size_t>(llama_model_n_ctx_train(handle())); }

const llama_vocab* engine::vocabulary() const { return llama_model_get_vocab(handle()); }

std::size_t engine::vocabulary_size() const { return static_cast<std::size_t>(llama_vocab_n_tokens(vocabulary())); }

std::vector<token> engine::tokenize(const std::string& text, bool add_special, bool parse_special) const {
  std::vector<token> tokens(text.size() + 2);  // a token per byte, and one at either end, are the most there can be
  const std::int32_t count =
      llama_tokenize(vocabulary(), text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                     static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
  if (count < 0) refuse(path_, "cannot tokenize a text of " + std::to_string(text.size()) + " bytes");
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

std::string engine::piece(token id) const {
  std::string text(64, '\0');
  std::int32_t length = 0;
  while ((length = llama_token_to_piece(vocabulary(), id, text.data(), static_cast<std::int32_t>(text.size()), 0,
                                        /*special*/ false)) < 0)
    text.resize(static_cast<std::size_t>(-length));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

bool engine::ends_generation(token id) const { return llama_vocab_is_eog(vocabulary(), id); }

engine::chat_frame engine::chat() const {
  const char* const chat_template = llama_model_chat_template(handle(), nullptr);
  if (chat_template == nullptr) return {};
  const std::string mark = "headwise-message";
  const llama_chat_message message = {"user", mark.c_str()};
  std::string text(1024, '\0');
  std::int32_t length = 0;
  while ((length = llama_chat_apply_template(chat_template, &message, 1, /*add_ass*/ true, text.data(),
                                             static_cast<std::int32_t>(text.size()))) >
         static_cast<std::int32_t>(text.size()))
    text.resize(static_cast<std::size_t>(length));
  if (length < 0) return {};
  text.resize(static_cast<std::size_t>(length));
  const std::size_t at = text.find(mark);
  if (at == std::string::npos) return {};
  return {text.substr(0, at), text.substr(at + mark.size())};
}

std::vector<token> engine::ordinary_tokens() const {
  std::vector<token> ids;
  const token count = llama_vocab_n_tokens(vocabulary());
  for (token id = 0; id < count; ++id) {
    const int attributes = llama_vocab_get_attr(vocabulary(), id);
    constexpr int special = LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_UNUSED | LLAMA_TOKEN_ATTR_CONTROL |
                            LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_BYTE;
    if ((attributes & LLAMA_TOKEN_ATTR_NORMAL) != 0 && (attributes & special) == 0) ids.push_back(id);
  }
  return ids;
}

std::optional<token> engine::first_token() const {
  const token id = llama_vocab_bos(vocabulary());
  return id == LLAMA_TOKEN_NULL ? std::nullopt : std::optional<token>(id);
}

// --- sessions
// ---------------------------------------------------------------------------------------------------------

void detail::free_context::operator()(llama_context* context) const { llama_free(context); }

session::session(const engine& model, const session_options& options)
    : engine_(model),
      chunk_(std::max<std::size_t>(1, options.chunk)),
      rows_(options.rows),
      seam_(std::make_unique<seam>(model.shape())) {
  llama_context_params params = context_params(chunk_, chunk_, options.threads);
  seam_->install(params, rows_ == cache_format::f16 ? headwise::element_type::f16 : headwise::element_type::f32);
  context_ = make_context(model, params);
}

logit_rows session::decode(token_span tokens, std::size_t first_position, const attention_hook& hook, logits_of wanted,
                           const progress& report) {
  return run_chunks(engine_, *context_, tokens, first_position, chunk_, wanted, report,
                    [&](token_span part, std::size_t position, std::vector<std::int8_t>& flags) {
                      // An empty cache accepts any position; nothing of it is ever attended to.
                      llama_memory_clear(llama_get_memory(context_.get()), /*data*/ false);
                      forget_errors();
                      seam_->begin(hook);
                      const int failed = run_chunk(*context_, part, position, flags);
                      llama_synchronize(context_.get());
                      seam_->finish();
                      if (failed != 0) refuse(engine_.path(), "decoding failed, " + llama_error());
                    });
}

std::size_t session::cache_bytes() const { return own_cache_bytes(engine_, *context_, ggml_type_of(rows_)); }

stock_session::stock_session(const engine& model, const stock_options& options)
    : engine_(model), chunk_(std::max<std::size_t>(1, options.chunk)), format_(options.format) {
  const std::size_t cells = options.context == 0 ? model.context_length() : options.context;
  llama_context_params params = context_params(cells, std::min(chunk_, cells), options.threads);
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = ggml_type_of(options.format);
  context_ = make_context(model, params);
}

logit_rows stock_session::decode(token_span tokens, logits_of wanted, const progress& report) {
  return run_chunks(engine_, *context_, tokens, length_, chunk_, wanted, report,
                    [&](token_span part, std::size_t position, std::vector<std::int8_t>& flags) {
                      forget_errors();
                      if (run_chunk(*context_, part, position, flags) != 0)
                        refuse(engine_.path(), "decoding failed at position " + std::to_string(position) + " of " +
                                                   std::to_string(llama_n_ctx(context_.get())) + " cells, " +
                                                   llama_error());
                      length_ = position + part.size();
                    });
}

std::size_t stock_session::cache_bytes() const { return own_cache_bytes(engine_, *context_, ggml_type_of(format_)); }

void stock_session::clear() {
  llama_memory_clear(llama_get_memory(context_.get()), /*data*/ false);
  length_ = 0;
}

void write_f32_copy(const std::string& in, const std::string& out) {
  start_llama(log().verbose);
  static_cast<void>(metadata(in));  // llama_model_quantize trusts its input more
  const std::string part = out + ".part";
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;
  forget_errors();
  std::error_code failure;
  if (llama_model_quantize(in.c_str(), part.c_str(), &params) != 0) {
    std::filesystem::remove(part, failure);
    refuse(out, "no float32 copy of " + in + ", " + llama_error());
  }
  std::filesystem::rename(part, out, failure);
  if (failure) refuse(out, "cannot be written: " + failure.message());
}

}  // namespace headwise_llama
