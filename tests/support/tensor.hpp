// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "headwise/core/token_view.hpp"
#include "reference/conversions.hpp"

namespace headwise::test {

/// How the rows of a tensor [tokens, heads, dim] lie in memory.
enum class order {
  packed,       ///< [token][head][element]
  heads_first,  ///< [head][token][element], ggml's [D, T, H]
  odd,          ///< [token][head][element] with gaps of odd sizes, as inside a fused QKV
};

inline reference::binary_format format_of(element_type type) {
  return type == element_type::f16 ? reference::f16 : reference::bf16;
}

/// A caller's tensor in one of the element types; everything between its rows is NaN. It holds the given float32
/// numbers, rounded by the reference where the type is narrower.
class tensor {
 public:
  tensor() = default;
  tensor(std::size_t tokens, std::size_t heads, std::size_t dim, const std::vector<float>& numbers,
         element_type type = element_type::f32, order layout = order::packed) {
    view_.type = type;
    view_.tokens = tokens;
    view_.heads = heads;
    view_.dim = dim;
    view_.head_stride = layout == order::packed ? dim : (layout == order::odd ? dim + 3 : dim * tokens);
    view_.token_stride = layout == order::packed ? heads * dim : (layout == order::odd ? heads * (dim + 3) + 7 : dim);
    if (tokens == 0) return;
    view_.extent = (tokens - 1) * view_.token_stride + (heads - 1) * view_.head_stride + dim;
    const std::size_t size = type == element_type::f32 ? sizeof(float) : sizeof(std::uint16_t);
    bytes_.assign(view_.extent * size, std::byte{0xFF});
    values_.resize(tokens * heads * dim);
    for (std::size_t t = 0, n = 0; t < tokens; ++t)
      for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t i = 0; i < dim; ++i, ++n) {
          std::byte* const place = bytes_.data() + (t * view_.token_stride + h * view_.head_stride + i) * size;
          values_[n] = numbers[n];
          if (type == element_type::f32) {
            std::memcpy(place, &numbers[n], size);
          } else {
            const auto bits =
                static_cast<std::uint16_t>(reference::pattern_of(format_of(type), static_cast<double>(numbers[n])));
            std::memcpy(place, &bits, size);
            values_[n] = static_cast<float>(reference::value_of(format_of(type), bits));
          }
        }
  }

  /// The tensor, or `count` of its tokens from `first` on.
  token_view view() const { return view(0, view_.tokens); }
  token_view view(std::size_t first, std::size_t count) const {
    const std::size_t size = view_.type == element_type::f32 ? sizeof(float) : sizeof(std::uint16_t);
    token_view part = view_;
    part.tokens = count;
    if (count != 0) {
      part.data = bytes_.data() + first * view_.token_stride * size;
      part.extent -= first * view_.token_stride;
    }
    return part;
  }
  /// One row, exactly as the view holds it.
  std::vector<double> row(std::size_t token, std::size_t head) const {
    const float* const start = values_.data() + (token * view_.heads + head) * view_.dim;
    return std::vector<double>(start, start + view_.dim);
  }

 private:
  token_view view_;
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
};

}  // namespace headwise::test
