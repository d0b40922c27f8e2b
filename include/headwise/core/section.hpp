// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "headwise/config.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/core/checksum.hpp"
#include "headwise/core/error.hpp"

namespace headwise::detail {
inline namespace HEADWISE_ISA {

// A section of a file: bytes, then their checksum.

/// Bytes on their way to a sink; end() sends their checksum after them, and another section may follow.
template <class Sink>
class section_sink {
 public:
  static constexpr std::size_t end_bytes = sizeof(std::uint64_t);

  explicit section_sink(Sink& to) noexcept : to_(to) {}
  void write(const void* data, std::size_t bytes) {
    to_.write(data, bytes);
    if constexpr (!std::is_same_v<Sink, counting_sink>) sum_.add(data, bytes);  // who counts need not read them all
  }
  void end() {
    const std::uint64_t sum = sum_.value();
    to_.write(&sum, sizeof sum);
    sum_ = checksum();
  }

 private:
  Sink& to_;
  checksum sum_;
};

/// Bytes as they come from a source; end() refuses them all if they are not those that were written.
template <class Source>
class section_source {
 public:
  explicit section_source(Source& from) noexcept : from_(from) {}
  void read(void* data, std::size_t bytes) {
    from_.read(data, bytes);
    sum_.add(data, bytes);
  }
  std::size_t remaining() const noexcept { return from_.remaining(); }
  /// `where` begins the message.
  void end(const std::string& where) {
    const std::uint64_t expected = sum_.value();
    std::uint64_t found = 0;
    from_.read(&found, sizeof found);
    if (found != expected) fail(where, ": damaged: found the checksum ", found, ", expected ", expected);
    sum_ = checksum();
  }

 private:
  Source& from_;
  checksum sum_;
};

/// The next so many bytes of a source as a source of their own. `where` begins messages, and outlives it.
template <class Source>
class part_source {
 public:
  part_source(Source& from, std::size_t bytes, const std::string& where) noexcept
      : from_(from), remaining_(bytes), where_(where) {}
  void read(void* data, std::size_t bytes) {
    if (bytes > remaining_) fail(where_, ": found ", remaining_, " bytes, expected ", bytes, " more");
    from_.read(data, bytes);
    remaining_ -= bytes;
  }
  std::size_t remaining() const noexcept { return remaining_; }
  /// Refuses bytes that nobody has read.
  void end() const {
    if (remaining_ != 0) fail(where_, ": found ", remaining_, " bytes too many");
  }

 private:
  Source& from_;
  std::size_t remaining_;
  const std::string& where_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise::detail
