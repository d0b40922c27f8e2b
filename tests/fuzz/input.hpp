// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace headwise::test {

/// Bytes as choices; zeros once they are used up.
class fuzz_input {
 public:
  fuzz_input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  std::size_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  /// A number in 0..limit-1.
  std::size_t below(std::size_t limit) {
    const std::size_t number = limit > 256 ? byte() * 256 + byte() : byte();
    return limit == 0 ? 0 : number % limit;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace headwise::test
