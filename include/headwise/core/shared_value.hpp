// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "headwise/config.hpp"

namespace headwise::detail {

/// A value, or none, that copies share until one of them asks to own it. Copying costs one increment, whatever the
/// value; copies may live and go in any thread. std::shared_ptr cannot tell whether it is alone in a way that orders
/// the other's last read before our first write; this count can.
template <class T>
class shared_value {
 public:
  shared_value() noexcept = default;
  explicit shared_value(T value) : held_(new node(std::move(value))) {}
  shared_value(const shared_value& other) noexcept : held_(other.held_) {
    if (held_ != nullptr) held_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  shared_value(shared_value&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  // Two, not one by value: inside a template, clang 14 never destroys the parameter of `x = {}`.
  shared_value& operator=(const shared_value& other) noexcept { return *this = shared_value(other); }
  shared_value& operator=(shared_value&& other) noexcept {
    shared_value taken(std::move(other));
    std::swap(held_, taken.held_);
    return *this;
  }
  ~shared_value() {
    if (held_ != nullptr && held_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held_;
  }

  explicit operator bool() const noexcept { return held_ != nullptr; }
  const T& operator*() const noexcept { return held_->value; }
  const T* operator->() const noexcept { return &held_->value; }

  bool alone() const noexcept { return held_ != nullptr && held_->owners.load(std::memory_order_acquire) == 1; }
  /// The value, to be changed; copied first if others have it too, which may throw.
  T& own() {
    if (!alone()) *this = shared_value(held_->value);
    return held_->value;
  }
  /// The same, once own() has been called and no copy was made since.
  T& owned() noexcept {
    HEADWISE_ASSERT(alone());
    return held_->value;
  }

 private:
  struct node {
    explicit node(T held) : value(std::move(held)) {}
    T value;
    std::atomic<std::size_t> owners{1};
  };

  node* held_ = nullptr;
};

}  // namespace headwise::detail
