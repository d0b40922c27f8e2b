// SPDX-License-Identifier: MIT
#include "headwise/core/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace {

using headwise::test::random_numbers;

std::uint64_t sum_of(const std::string& bytes) {
  headwise::checksum sum;
  sum.add(bytes.data(), bytes.size());
  return sum.value();
}

std::string random_bytes(std::size_t count, std::uint32_t seed) {
  random_numbers random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.bits());
  return bytes;
}

/// The definition, byte by byte.
std::uint64_t defined(std::string bytes) {
  const std::uint64_t length = bytes.size();
  while (bytes.size() % 64 != 0) bytes += '\0';
  const auto step = [](std::uint64_t lane, std::uint64_t word) {
    lane += word * 0x9E3779B97F4A7C15U;
    lane = (lane << 29) + (lane >> 35);
    return lane * 0xD6E8FEB86659FD93U;
  };
  std::uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (std::size_t word = 0; word < bytes.size() / 8; ++word) {
    std::uint64_t number = 0;
    for (std::size_t i = 8; i-- > 0;) number = number * 256 + static_cast<unsigned char>(bytes[word * 8 + i]);
    lanes[word % 8] = step(lanes[word % 8], number);
  }
  std::uint64_t sum = step(0, length);
  for (const std::uint64_t lane : lanes) sum = step(sum, lane);
  return sum;
}

TEST(checksum, is_the_one_that_files_were_written_with) {
  EXPECT_EQ(sum_of(""), 0xD6AFE30803715D74U);
  EXPECT_EQ(sum_of("headwise"), 0x5EB8C070813C1EE6U);
  EXPECT_EQ(sum_of(std::string(1000, 'x')), 0x558D2C1A5F8580D5U);
  for (std::size_t length = 0; length <= 200; ++length) {
    const std::string bytes = random_bytes(length, static_cast<std::uint32_t>(length));
    EXPECT_EQ(sum_of(bytes), defined(bytes)) << length << " bytes";
  }
}

TEST(checksum, does_not_depend_on_how_the_bytes_come) {
  random_numbers random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const std::string bytes = random_bytes(random.below(300), random.bits());
    headwise::checksum sum;
    sum.add(nullptr, 0);
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t part = (std::min)(bytes.size() - at, random.below(random.below(2) == 0 ? 10 : 100));
      sum.add(bytes.data() + at, part);
      at += part;
      EXPECT_EQ(sum.value(), sum_of(bytes.substr(0, at)));  // asking changes nothing
    }
    EXPECT_EQ(sum.value(), sum_of(bytes));
  }
}

TEST(checksum, one_changed_byte_always_shows) {
  for (const std::size_t length : {1U, 7U, 8U, 63U, 64U, 65U, 200U}) {
    std::string bytes = random_bytes(length, 3);
    const std::uint64_t sum = sum_of(bytes);
    for (char& byte : bytes)
      for (int change = 1; change < 256; ++change) {
        byte = static_cast<char>(byte ^ change);
        ASSERT_NE(sum_of(bytes), sum);
        byte = static_cast<char>(byte ^ change);
      }
  }
}

TEST(checksum, two_flipped_bits_show_and_no_two_damages_look_alike) {
  const std::string bytes = random_bytes(80, 4);
  std::set<std::uint64_t> sums = {sum_of(bytes)};
  std::size_t expected = 1;
  const auto flip = [](std::string& of, std::size_t bit) {
    of[bit / 8] = static_cast<char>(of[bit / 8] ^ 1 << bit % 8);
  };
  for (std::size_t first = 0; first < 8 * bytes.size(); ++first)
    for (std::size_t second = first; second < 8 * bytes.size(); ++second, ++expected) {
      std::string damaged = bytes;
      flip(damaged, first);
      if (second != first) flip(damaged, second);
      sums.insert(sum_of(damaged));
    }
  EXPECT_EQ(sums.size(), expected);
}

TEST(checksum, cuts_zeros_and_exchanged_parts_show) {
  std::set<std::uint64_t> sums;
  const std::string bytes = random_bytes(500, 5);
  for (std::size_t length = 0; length <= bytes.size(); ++length) sums.insert(sum_of(bytes.substr(0, length)));
  for (std::size_t length = 1; length <= 500; ++length) sums.insert(sum_of(std::string(length, '\0')));
  for (std::size_t first = 0; first < 496; first += 8)
    for (std::size_t second = first + 8; second + 8 <= 500; second += 8) {
      std::string damaged = bytes;
      std::swap_ranges(damaged.begin() + static_cast<std::ptrdiff_t>(first),
                       damaged.begin() + static_cast<std::ptrdiff_t>(first + 8),
                       damaged.begin() + static_cast<std::ptrdiff_t>(second));
      sums.insert(sum_of(damaged));
    }
  EXPECT_EQ(sums.size(), 501U + 500U + 62U * 61U / 2U);
}

}  // namespace
