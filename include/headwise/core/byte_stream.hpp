// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/core/error.hpp"

namespace headwise {

// Where saved bytes go to and come from. Any object with these members will do; file_sink and file_source
// (core/file.hpp) are those of a file.
//   | Expression               | Returns     | Meaning                                                  | May throw |
//   | sink.write(data, bytes)  | void        | takes them all, in order; data may be null for 0 bytes   | yes       |
//   | source.read(data, bytes) | void        | the next so many; refuses if fewer are left              | yes       |
//   | source.remaining()       | std::size_t | bytes that can still be read                             | no        |
// How bytes are cut into calls means nothing. The do-nothing member is counting_sink.

/// Takes bytes into memory.
class memory_sink {
 public:
  void write(const void* data, std::size_t bytes) {
    const std::byte* const first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  /// Room for so many bytes in all, where they are known beforehand.
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Only counts.
class counting_sink {
 public:
  void write(const void*, std::size_t bytes) noexcept { bytes_ += bytes; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Gives bytes out of memory, which outlives it.
class memory_source {
 public:
  memory_source(const void* data, std::size_t bytes) noexcept
      : next_(static_cast<const std::byte*>(data)), remaining_(bytes) {}

  void read(void* data, std::size_t bytes) {
    if (bytes > remaining_) detail::fail("read: found ", remaining_, " bytes, expected ", bytes, " more");
    if (bytes == 0) return;
    std::memcpy(data, next_, bytes);
    next_ += bytes;
    remaining_ -= bytes;
  }
  std::size_t remaining() const noexcept { return remaining_; }

 private:
  const std::byte* next_;
  std::size_t remaining_;
};

namespace detail {

/// Any sink and any source: what a policy's save() and load() are asked with (never called).
struct some_sink {
  void write(const void* data, std::size_t bytes);
};
struct some_source {
  void read(void* data, std::size_t bytes);
  std::size_t remaining() const noexcept;
};

template <class S, class = void>
struct is_sink : std::false_type {};
template <class S>
struct is_sink<S, std::void_t<decltype(std::declval<S&>().write(std::declval<const void*>(), std::size_t{}))>>
    : std::true_type {};

template <class S, class = void>
struct is_source : std::false_type {};
template <class S>
struct is_source<S, std::void_t<decltype(std::declval<S&>().read(std::declval<void*>(), std::size_t{})),
                                decltype(static_cast<std::size_t>(std::declval<const S&>().remaining()))>>
    : std::true_type {};

template <class S>
constexpr void require_sink() {
  static_assert(is_sink<S>::value, "headwise: a byte sink needs write(const void*, bytes) (core/byte_stream.hpp)");
}
template <class S>
constexpr void require_source() {
  static_assert(is_source<S>::value,
                "headwise: a byte source needs read(void*, bytes) and remaining() (core/byte_stream.hpp)");
}

/// A number is 8 bytes in a file, on every machine.
template <class Sink>
void write_count(Sink& sink, std::size_t count) {
  const std::uint64_t number = count;
  sink.write(&number, sizeof number);
}
template <class Source>
std::size_t read_count(Source& source) {
  std::uint64_t number = 0;
  source.read(&number, sizeof number);
  constexpr std::uint64_t most = (std::numeric_limits<std::size_t>::max)();
  if (number > most) fail("read: found the number ", number, ", expected at most ", most);
  return static_cast<std::size_t>(number);
}

}  // namespace detail
}  // namespace headwise
