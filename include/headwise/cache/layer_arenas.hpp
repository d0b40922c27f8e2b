// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory_resource>

#include "headwise/config.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/store/page_arena.hpp"
#include "headwise/store/page_layout.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Where the pages of a layer come from. Two arenas, so that what compress() frees does not lie among the pages of
/// heads that keep everything. Copies of a cache share them.
class layer_arenas {
 public:
  layer_arenas(const page_layout& page, const head_plan& plan, std::size_t layer, std::pmr::memory_resource* memory)
      : layer_arenas(page, plan.shape().kv_heads, retrieval_heads(plan, layer), layer, memory) {}

  page_arena& of(head_role role) noexcept { return role == head_role::retrieval ? retrieval_ : other_; }
  page_arena& other() noexcept { return other_; }
  std::size_t spare_bytes() const noexcept {
    return retrieval_.held_bytes() + other_.held_bytes() - (retrieval_.pages() + other_.pages()) * row_bytes_;
  }

 private:
  layer_arenas(const page_layout& page, std::size_t heads, std::size_t retrieval, std::size_t layer,
               std::pmr::memory_resource* memory) noexcept
      : row_bytes_(page.row_bytes()),
        retrieval_(page.bytes, retrieval, layer, memory),
        other_(page.bytes, heads - retrieval, layer, memory) {}
  static std::size_t retrieval_heads(const head_plan& plan, std::size_t layer) {
    std::size_t heads = 0;
    for (std::size_t head = 0; head < plan.shape().kv_heads; ++head)
      heads += plan.role({layer, head}) == head_role::retrieval;
    return heads;
  }

  std::size_t row_bytes_;  // of a page
  page_arena retrieval_;
  page_arena other_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
