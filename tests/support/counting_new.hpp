// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>

#include "support/counted_memory.hpp"

// Replaces operator new of a test program. Include it in exactly one of the program's source files.

namespace headwise::test::detail {

/// A block begins `alignment` bytes into what malloc gave, its size right before it, and ends where that ends, so that
/// a sanitizer still sees reads past it.
inline void* allocate(std::size_t size, std::size_t alignment) {
  counted_memory& counts = memory();
  if (must_fail(counts)) throw std::bad_alloc();
  void* start = nullptr;
  if (posix_memalign(&start, alignment, size + alignment) != 0) throw std::bad_alloc();
  std::byte* const block = static_cast<std::byte*>(start) + alignment;
  std::memcpy(block - sizeof size, &size, sizeof size);
  if (counts.fill >= 0) std::memset(block, counts.fill, size);
  const std::size_t live = counts.live_bytes += size;
  for (std::size_t peak = counts.peak_bytes; peak < live && !counts.peak_bytes.compare_exchange_weak(peak, live);) {
  }
  ++counts.allocations;
  return block;
}

inline void release(void* block, std::size_t alignment) noexcept {
  if (block == nullptr) return;
  std::byte* const bytes = static_cast<std::byte*>(block);
  std::size_t size;
  std::memcpy(&size, bytes - sizeof size, sizeof size);
  memory().live_bytes -= size;
  std::free(bytes - alignment);
}

inline constexpr std::size_t plain = alignof(std::max_align_t);

}  // namespace headwise::test::detail

// NOLINTBEGIN
void* operator new(std::size_t size) { return headwise::test::detail::allocate(size, headwise::test::detail::plain); }
void* operator new[](std::size_t size) { return headwise::test::detail::allocate(size, headwise::test::detail::plain); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return headwise::test::detail::allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return headwise::test::detail::allocate(size, static_cast<std::size_t>(alignment));
}
// std::stable_sort asks this way.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return operator new(size, std::nothrow); }
void operator delete(void* block, const std::nothrow_t&) noexcept { operator delete(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { operator delete[](block); }
void operator delete(void* block) noexcept { headwise::test::detail::release(block, headwise::test::detail::plain); }
void operator delete[](void* block) noexcept { headwise::test::detail::release(block, headwise::test::detail::plain); }
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }
void operator delete[](void* block, std::size_t) noexcept { operator delete[](block); }
void operator delete(void* block, std::align_val_t alignment) noexcept {
  headwise::test::detail::release(block, static_cast<std::size_t>(alignment));
}
void operator delete[](void* block, std::align_val_t alignment) noexcept {
  headwise::test::detail::release(block, static_cast<std::size_t>(alignment));
}
void operator delete(void* block, std::size_t, std::align_val_t alignment) noexcept {
  operator delete(block, alignment);
}
void operator delete[](void* block, std::size_t, std::align_val_t alignment) noexcept {
  operator delete[](block, alignment);
}
// NOLINTEND
