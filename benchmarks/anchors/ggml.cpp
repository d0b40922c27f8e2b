// SPDX-License-Identifier: MIT
// The attention of llama.cpp's ggml, or of ik_llama.cpp's: one graph, whose key and value tensors are pointed at
// another layer for every call, so that nothing but the attention is timed.
#include <ggml.h>
#if __has_include(<ggml-cpu.h>)
#include <ggml-cpu.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "anchors/anchor.hpp"

namespace bench::anchor {
namespace {

#if defined(GGML_FLASH_ATTN_EXT_IQK_DISABLED)  // only ik_llama.cpp has it
constexpr const char* engine = "ik_llama.cpp";
constexpr std::size_t row_padding = 64;  // its fast path takes multiples of 32, and overruns its work memory at 32
constexpr std::size_t query_padding = GGML_KQ_MASK_PAD;
#else
constexpr const char* engine = "llama.cpp (ggml)";
constexpr std::size_t row_padding = 1;
constexpr std::size_t query_padding = 1;
#endif

constexpr std::size_t pad(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

ggml_type type_of(element type) {
  switch (type) {
    case element::f16: return GGML_TYPE_F16;
    case element::bf16: return GGML_TYPE_BF16;
    default: return GGML_TYPE_F32;
  }
}

std::int64_t size(std::size_t n) { return static_cast<std::int64_t>(n); }

}  // namespace

std::string name() { return engine; }

std::string flags() {
  std::string text;
  const auto add = [&](const char* what, int has) {
    if (has != 0) text += (text.empty() ? "" : " ") + std::string(what);
  };
  add("avx", ggml_cpu_has_avx());
  add("avx2", ggml_cpu_has_avx2());
  add("fma", ggml_cpu_has_fma());
  add("f16c", ggml_cpu_has_f16c());
  add("avx512", ggml_cpu_has_avx512());
  add("avx512_vbmi", ggml_cpu_has_avx512_vbmi());
  add("avx512_vnni", ggml_cpu_has_avx512_vnni());
  add("avx512_bf16", ggml_cpu_has_avx512_bf16());
  add("neon", ggml_cpu_has_neon());
  return text.empty() ? "no vector unit: this is no native build" : text;
}

bool supports([[maybe_unused]] path how, [[maybe_unused]] element type) {
#if defined(GGML_FLASH_ATTN_EXT_IQK_DISABLED)
  return how != path::flash || type != element::f32;  // it aborts
#else
  return true;
#endif
}

std::size_t padded_rows(std::size_t rows) { return pad(rows, row_padding); }

struct attention::state {
  explicit state(const call& call) : what(call), rows(padded_rows(call.rows)) {}
  ~state() {
    if (context != nullptr) ggml_free(context);
#if __has_include(<ggml-cpu.h>)
    if (pool != nullptr) ggml_threadpool_free(pool);
#endif
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  /// Gives a tensor memory of its own.
  ggml_tensor* owned(ggml_tensor* tensor) {
    buffers.emplace_back(ggml_nbytes(tensor) / sizeof(float) + 16);
    auto address = reinterpret_cast<std::uintptr_t>(buffers.back().data());
    tensor->data = reinterpret_cast<void*>((address + 63) / 64 * 64);
    return tensor;
  }
  /// Causal, f16 as llama.cpp makes it; padding is masked.
  ggml_tensor* make_mask() {
    const std::size_t queries = pad(what.queries, query_padding);
    ggml_tensor* const tensor = owned(ggml_new_tensor_2d(context, GGML_TYPE_F16, size(rows), size(queries)));
    auto* const bits = static_cast<ggml_fp16_t*>(tensor->data);
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-std::numeric_limits<float>::infinity());
    const ggml_fp16_t seen = ggml_fp32_to_fp16(0.0F);
    for (std::size_t token = 0; token < queries; ++token)
      for (std::size_t row = 0; row < rows; ++row)
        bits[token * rows + row] = row + what.queries <= what.rows + token && token < what.queries ? seen : hidden;
    return tensor;
  }

  call what;
  std::size_t rows;
  std::vector<std::vector<float>> buffers;
  ggml_context* context = nullptr;
  ggml_cgraph* graph = nullptr;
  ggml_tensor* query = nullptr;
  ggml_tensor* keys = nullptr;
  ggml_tensor* values = nullptr;
  ggml_tensor* result = nullptr;
  ggml_cplan plan{};
  std::vector<std::uint8_t> work;
#if __has_include(<ggml-cpu.h>)
  ggml_threadpool* pool = nullptr;
#endif
};

attention::attention(path how, const call& what) : state_(std::make_unique<state>(what)) {
  state& s = *state_;
  ggml_init_params params{};
  params.mem_size = 64 * ggml_tensor_overhead() + ggml_graph_overhead();
  params.no_alloc = true;
  s.context = ggml_init(params);
  const ggml_type type = type_of(what.type);
  const float scale = 1.0F / std::sqrt(static_cast<float>(what.dim));

  s.query =
      s.owned(ggml_new_tensor_3d(s.context, GGML_TYPE_F32, size(what.dim), size(what.query_heads), size(what.queries)));
  ggml_tensor* const q = ggml_permute(s.context, s.query, 0, 2, 1, 3);  // [dim, queries, heads]
  s.keys = ggml_new_tensor_3d(s.context, type, size(what.dim), size(s.rows), size(what.kv_heads));
  ggml_tensor* const mask = s.make_mask();
  if (how == path::flash) {
    s.values = ggml_new_tensor_3d(s.context, type, size(what.dim), size(s.rows), size(what.kv_heads));
    s.result = s.owned(ggml_flash_attn_ext(s.context, q, s.keys, s.values, mask, scale, 0.0F, 0.0F));
  } else {
    s.values = ggml_new_tensor_3d(s.context, type, size(s.rows), size(what.dim), size(what.kv_heads));
    ggml_tensor* const logits = s.owned(ggml_mul_mat(s.context, s.keys, q));
    ggml_tensor* const weights = s.owned(ggml_soft_max_ext(s.context, logits, mask, scale, 0.0F));
    ggml_tensor* const mixed = s.owned(ggml_mul_mat(s.context, s.values, weights));  // [dim, queries, heads]
    s.result = mixed;
    if (what.queries > 1) s.result = s.owned(ggml_cont(s.context, ggml_permute(s.context, mixed, 0, 2, 1, 3)));
  }
  s.graph = ggml_new_graph(s.context);
  ggml_build_forward_expand(s.graph, s.result);

  const int threads = static_cast<int>(what.threads);
#if __has_include(<ggml-cpu.h>)
  ggml_cpu_init();
  ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
  s.pool = ggml_threadpool_new(&pool);
  s.plan = ggml_graph_plan(s.graph, threads, s.pool);
#else
  s.plan = ggml_graph_plan(s.graph, threads);
#endif
  s.work.resize(s.plan.work_size + 64);
  s.plan.work_data = s.work.data();
}

attention::~attention() = default;

void attention::set_queries(const float* q) { std::memcpy(state_->query->data, q, ggml_nbytes(state_->query)); }

void attention::run(const std::byte* keys, const std::byte* values) {
  state_->keys->data = const_cast<std::byte*>(keys);
  state_->values->data = const_cast<std::byte*>(values);
  ggml_graph_compute(state_->graph, &state_->plan);
}

const float* attention::out() const { return static_cast<const float*>(state_->result->data); }

}  // namespace bench::anchor
