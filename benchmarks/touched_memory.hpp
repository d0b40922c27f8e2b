// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bench {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// Memory on huge pages where the system gives them, every page touched: a limit, or another engine, should not be
/// slowed by page tables.
class touched_memory {
 public:
  explicit touched_memory(std::size_t size)
      : data_(static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}))), size_(size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(data_, size_, MADV_HUGEPAGE);
#endif
    std::memset(data_, 1, size_);
  }
  touched_memory(const touched_memory&) = delete;
  touched_memory& operator=(const touched_memory&) = delete;
  ~touched_memory() { ::operator delete (data_, std::align_val_t{alignment}); }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t alignment = 2 * mebibyte;
  std::byte* data_;
  std::size_t size_;
};

}  // namespace bench
