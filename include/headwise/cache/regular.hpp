// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <utility>

namespace headwise::detail {

/// Makes a copyable callable assignable: a lambda is not, and a cache that stores one must stay a regular value.
template <class T>
class regular {
 public:
  regular(T value) : value_(std::move(value)) {}  // NOLINT: stands for the value
  regular(const regular&) = default;
  regular(regular&&) = default;
  regular& operator=(const regular& other) {
    if (this != &other) value_.emplace(*other.value_);
    return *this;
  }
  regular& operator=(regular&& other) {
    if (this != &other) value_.emplace(std::move(*other.value_));
    return *this;
  }
  ~regular() = default;

  const T& get() const noexcept { return *value_; }

 private:
  std::optional<T> value_;
};

}  // namespace headwise::detail
