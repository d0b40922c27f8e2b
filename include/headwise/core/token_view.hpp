// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "headwise/core/error.hpp"

namespace headwise {

/// What one element of a caller's tensor is.
enum class element_type : std::uint8_t { f32, f16, bf16 };

/// Queries, keys or values of a chunk of tokens as an engine has them: any order of tokens and heads in memory, as
/// long as the elements of one row are adjacent. Strides count elements. Nothing is owned or copied.
struct token_view {
  const void* data = nullptr;
  element_type type = element_type::f32;
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t dim = 0;
  std::size_t token_stride = 0;
  std::size_t head_stride = 0;
  /// Elements that may be read from `data` on, where the caller knows: then a view that reaches past them is refused.
  std::size_t extent = (std::numeric_limits<std::size_t>::max)();
};

/// Where attention writes: float32, strides in elements.
struct output_view {
  float* data = nullptr;
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t dim = 0;
  std::size_t token_stride = 0;
  std::size_t head_stride = 0;
  std::size_t extent = (std::numeric_limits<std::size_t>::max)();
};

/// Rows of `tokens` tokens packed as [token][head][element], the layout of most engines.
inline token_view packed_rows(const float* data, std::size_t tokens, std::size_t heads, std::size_t dim) noexcept {
  return {data, element_type::f32, tokens, heads, dim, heads * dim, dim};
}
/// The same layout for what attention writes.
inline output_view packed_output(float* data, std::size_t tokens, std::size_t heads, std::size_t dim) noexcept {
  return {data, tokens, heads, dim, heads * dim, dim};
}

namespace detail {

/// Refuses a view of another shape than (tokens, heads, dim), rows that overlap, and reads past its extent.
/// `what` names the view in the message.
template <class View>
void check_view(const View& view, const char* what, std::size_t heads, std::size_t dim) {
  constexpr std::size_t limit = std::size_t{1} << 31;  // more tokens in one call is a negative number in disguise
  if (view.tokens >= limit) fail(what, ": ", view.tokens, " tokens in one call, expected fewer than ", limit);
  if (view.tokens == 0) return;
  if (view.heads != heads || view.dim != dim)
    fail(what, ": ", view.heads, " heads of ", view.dim, " elements, expected ", heads, " of ", dim);
  if (view.data == nullptr) fail(what, ": a null pointer with ", view.tokens, " tokens");
  if (view.heads > 1 && view.head_stride < dim)
    fail(what, ": head stride ", view.head_stride, ", expected at least ", dim);
  if (view.tokens > 1 && view.token_stride < dim)
    fail(what, ": token stride ", view.token_stride, ", expected at least ", dim);
  if (view.extent == (std::numeric_limits<std::size_t>::max)()) return;
  const auto steps = [](std::size_t count, std::size_t stride) {  // saturates, so that it cannot wrap
    const std::size_t most = (std::numeric_limits<std::size_t>::max)() / 4;
    return count != 0 && stride > most / count ? most : count * stride;
  };
  const std::size_t needed = steps(view.tokens - 1, view.token_stride) + steps(view.heads - 1, view.head_stride) + dim;
  if (needed > view.extent) fail(what, ": reaches ", needed, " elements, the buffer has ", view.extent);
}

}  // namespace detail
}  // namespace headwise
