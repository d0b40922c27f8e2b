// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "headwise/core/token_view.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"

namespace headwise::detail {

/// One row of a caller's view as float32: view.dim elements.
inline void read_row(const token_view& view, std::size_t token, std::size_t head, float* row) noexcept {
  const std::size_t offset = token * view.token_stride + head * view.head_stride;
  const auto* bytes = static_cast<const std::byte*>(view.data);
  switch (view.type) {
    case element_type::f32: float32::decode(bytes + float32::bytes(offset), row, view.dim); break;
    case element_type::f16: float16::decode(bytes + float16::bytes(offset), row, view.dim); break;
    case element_type::bf16: bfloat16::decode(bytes + bfloat16::bytes(offset), row, view.dim); break;
  }
}

}  // namespace headwise::detail
