// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory_resource>
#include <new>

namespace headwise::test {

/// Counts what is taken, fails when it is told to, and is equal to none but itself, or to those it is told.
struct counting_resource : std::pmr::memory_resource {
  std::size_t live = 0;         ///< bytes
  std::size_t allocations = 0;  ///< since the beginning
  long allow = -1;              ///< that many more allocations succeed; -1: all
  std::size_t failures = 0;     ///< since the beginning
  const std::pmr::memory_resource* equal = nullptr;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (allow == 0) {
      ++failures;
      throw std::bad_alloc();
    }
    void* const block = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    if (allow > 0) --allow;
    ++allocations;
    live += bytes;
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    live -= bytes;
    std::pmr::new_delete_resource()->deallocate(block, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other || &other == equal;
  }
};

}  // namespace headwise::test
