// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace headwise {

/// Bytes on a 64-byte boundary (one cache line, one AVX-512 register). A value: copies own their bytes.
class aligned_memory {
 public:
  static constexpr std::size_t alignment = 64;

  aligned_memory() noexcept = default;
  explicit aligned_memory(std::size_t size)
      : data_(static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}))), size_(size) {}
  aligned_memory(const aligned_memory& other) : aligned_memory(other.size_) {
    if (size_ != 0) std::memcpy(data_, other.data_, size_);
  }
  aligned_memory(aligned_memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  aligned_memory& operator=(const aligned_memory& other) { return *this = aligned_memory(other); }
  aligned_memory& operator=(aligned_memory&& other) noexcept {  // not by value: see shared_value
    aligned_memory taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    return *this;
  }
  ~aligned_memory() { ::operator delete (data_, std::align_val_t{alignment}); }

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace headwise
