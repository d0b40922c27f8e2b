// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>

// Another engine's attention in the same process: what ours is compared with. A program is linked with one
// implementation: ggml.cpp (llama.cpp's, or ik_llama.cpp's, whose symbols are the same) or none.cpp.

namespace bench::anchor {

enum class element { f32, f16, bf16 };
enum class path {
  flash,  ///< ggml_flash_attn_ext
  plain,  ///< mul_mat, soft_max_ext, mul_mat; values lie transposed, as the engine stores them for this path
};

struct call {
  std::size_t query_heads = 0;
  std::size_t kv_heads = 0;
  std::size_t dim = 0;
  std::size_t rows = 0;     ///< that the last query sees; those before it see one less each
  std::size_t queries = 1;  ///< tokens
  element type = element::f32;
  std::size_t threads = 1;
};

/// Whose attention this is, or "" where there is none; and the instruction sets it was built for.
std::string name();
std::string flags();
/// Whether it can do it at all.
bool supports(path how, element type);
/// Rows of a head, padding included, that a layer needs: some kernels want a multiple, and get a mask.
std::size_t padded_rows(std::size_t rows);

/// One attention call that is prepared once and run over many layers.
class attention {
 public:
  attention(path how, const call& what);
  ~attention();
  attention(const attention&) = delete;
  attention& operator=(const attention&) = delete;

  /// q is [queries, query_heads, dim].
  void set_queries(const float* q);
  /// keys are [kv_heads, padded rows, dim], contiguous. So are values (flash), or [kv_heads, dim, padded rows] (plain).
  void run(const std::byte* keys, const std::byte* values);
  /// [queries, query_heads, dim]
  const float* out() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace bench::anchor
