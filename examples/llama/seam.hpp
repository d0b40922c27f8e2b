// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "headwise/core/attention_params.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/core/token_view.hpp"

// The seam between headwise and an unmodified llama.cpp: this file and seam.cpp, to be copied into an engine.
// It needs llama.h, ggml.h and public headwise headers, nothing else.

struct ggml_tensor;
struct llama_context_params;
struct llama_model;

namespace headwise_llama {

/// One layer of one chunk of tokens: what the graph computed, and where the attention output belongs.
/// All views die when the hook returns. k and v are rows of llama.cpp's own cache, in the type that install() chose.
struct attention_call {
  std::size_t layer = 0;
  headwise::token_view q;     ///< [query head, token, head_dim], after RoPE
  headwise::token_view k;     ///< [KV head, token, head_dim], after RoPE
  headwise::token_view v;     ///< [KV head, token, value_dim]
  headwise::output_view out;  ///< [query head, token, value_dim]; holds nothing until the hook writes it
  headwise::attention_params params;
};

/// Owns the KV cache in llama.cpp's place: keeps k and v, attends, writes all of `out`. May throw.
using attention_hook = std::function<void(const attention_call&)>;

/// How far back a model looks in each layer, its own key included; 0: to the beginning. llama.cpp itself is asked, so
/// that no list of architectures has to be kept: of a run just longer than the window it makes its attention masks,
/// while nothing is computed. Refuses windows that are not the newest keys.
std::vector<std::size_t> windows_of(llama_model* model, const headwise::model_shape& shape);

/// Turns the nodes of llama.cpp's graph into calls of a hook, one per layer, in order, on the thread that decodes. The
/// computation pauses once per layer, where llama.cpp would attend; its own attention is left out, and nothing is
/// copied.
///
///     seam bridge(shape);                  // the hook sees to windows_of(model, shape)
///     bridge.install(context_params);      // the context needs flash attention, and the seam must outlive it
///     ...
///     bridge.begin(hook);
///     llama_decode(context, batch);        // of one sequence
///     bridge.finish();                     // throws what went wrong inside
class seam {
 public:
  explicit seam(const headwise::model_shape& shape) : shape_(shape) { headwise::check(shape); }
  seam(const seam&) = delete;  // llama.cpp holds its address
  seam& operator=(const seam&) = delete;

  /// Sets cb_eval, flash attention, and a cache in host memory whose rows the hook gets, as f32 (exactly what the model
  /// computed) or f16 (half the bytes; for hooks that keep f16 rows no other result).
  void install(llama_context_params& params, headwise::element_type rows = headwise::element_type::f32);

  /// Before every llama_decode. The hook must live until finish().
  void begin(const attention_hook& hook);

  /// After every llama_decode, failed ones included: rethrows the first error of a hook or of the checks below, and
  /// refuses a graph in which not every layer asked for attention.
  void finish();

 private:
  /// Where the rows of a chunk lie once the nodes that store them are computed.
  struct stored_rows {
    headwise::token_view view;
    bool known = false;
  };

  /// A node of llama.cpp's own attention, and its operation.
  struct left_out {
    ggml_tensor* node;
    int op;
  };

  static bool callback(ggml_tensor* node, bool ask, void* self) noexcept;
  bool ask(ggml_tensor& node);
  void find(stored_rows& rows, const ggml_tensor& node, const char* what, std::size_t dim) const;
  void attend(const ggml_tensor& node);
  void leave_out(ggml_tensor& node);
  void restore() noexcept;

  headwise::model_shape shape_;
  const attention_hook* hook_ = nullptr;
  std::size_t layers_done_ = 0;  ///< since begin(); grows past shape_.layers when llama.cpp splits a batch
  stored_rows keys_;
  stored_rows values_;
  std::vector<left_out> left_out_;  ///< of the layer at hand, while they are not to be computed
  std::exception_ptr error_;
};

}  // namespace headwise_llama
