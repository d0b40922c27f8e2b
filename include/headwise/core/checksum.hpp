// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "headwise/config.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Tells damaged bytes: 64 bits, at the speed of memory, against accidents and not against forgery. Bytes are read as
/// little-endian words of 8, dealt to eight lanes that begin with 1..8, the last 64 bytes filled up with zeros, and
///   lane <- rotl(lane + word A, 29) B   (mod 2^64, A and B odd)
/// is a bijection of the lane for every word and of the word for every lane, as is the same step that in the end joins
/// first the length and then the lanes to 0: among equally many bytes those that differ in one word always differ in
/// the sum, others but for one in 2^64. How bytes are cut into calls means nothing.
class checksum {
 public:
  void add(const void* data, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    const std::byte* next = static_cast<const std::byte*>(data);
    const std::size_t held = static_cast<std::size_t>(length_ % block);
    length_ += bytes;
    if (held != 0) {
      const std::size_t taken = (std::min)(bytes, block - held);
      std::memcpy(held_ + held, next, taken);
      if (held + taken < block) return;
      next += taken;
      bytes -= taken;
      mix(lanes_, held_, 1);
    }
    mix(lanes_, next, bytes / block);
    if (bytes % block != 0) std::memcpy(held_, next + bytes / block * block, bytes % block);
  }

  std::uint64_t value() const noexcept {
    std::uint64_t lanes[lane_count];
    std::memcpy(lanes, lanes_, sizeof lanes);
    if (length_ % block != 0) {
      std::byte last[block] = {};
      std::memcpy(last, held_, static_cast<std::size_t>(length_ % block));
      mix(lanes, last, 1);
    }
    std::uint64_t sum = step(0, length_);
    for (const std::uint64_t lane : lanes) sum = step(sum, lane);
    return sum;
  }

 private:
  static constexpr std::size_t lane_count = 8;  // one alone would wait for its multiplications
  static constexpr std::size_t block = 8 * lane_count;
  static constexpr std::uint64_t a = 0x9E3779B97F4A7C15;
  static constexpr std::uint64_t b = 0xD6E8FEB86659FD93;

  static constexpr std::uint64_t step(std::uint64_t lane, std::uint64_t word) noexcept {
    const std::uint64_t sum = lane + word * a;
    return (sum << 29 | sum >> 35) * b;
  }

  static std::uint64_t word_at(const std::byte* bytes) noexcept {
    std::uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    std::memcpy(&word, bytes, sizeof word);
#else
    for (int i = 0; i < 8; ++i) word |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
#endif
    return word;
  }

  static void mix(std::uint64_t (&lanes)[lane_count], const std::byte* next, std::size_t blocks) noexcept {
    mix(lanes, next, blocks, std::make_index_sequence<lane_count>{});
  }
  /// Written out for each lane, so that every compiler keeps them in registers.
  template <std::size_t... Lane>
  static void mix(std::uint64_t (&lanes)[lane_count], const std::byte* next, std::size_t blocks,
                  std::index_sequence<Lane...>) noexcept {
    std::uint64_t local[] = {lanes[Lane]...};
    for (; blocks != 0; --blocks, next += block) ((local[Lane] = step(local[Lane], word_at(next + 8 * Lane))), ...);
    ((lanes[Lane] = local[Lane]), ...);
  }

  std::uint64_t lanes_[lane_count] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::uint64_t length_ = 0;
  std::byte held_[block] = {};  // the bytes of a block that is not full
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
