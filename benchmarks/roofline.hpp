// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#include "touched_memory.hpp"

// What this machine can do at most, measured in the same round as what is compared with it: bytes read per second from
// memory that no cache holds, and float32 multiply-adds per second with everything in registers. A step that must read
// B bytes and do F multiply-adds cannot take less than max(B / read, F / fma).

namespace bench {

constexpr double giga = 1e9;
/// How much must pass by before the same bytes are read again.
constexpr std::size_t cold_bytes = 512 * mebibyte;

/// The limits of one round.
struct roofline {
  double read;  ///< bytes per second
  double fma;   ///< multiply-adds per second

  double seconds(double bytes, double fmas) const { return (std::max)(bytes / read, fmas / fma); }
};

/// Measures the limits of `threads` cores, each on a part of the memory of its own. Always compiled for this machine
/// (anchors/roofline.cpp), whatever the program around it is compiled for.
class roofline_probe {
 public:
  /// The ways to read; the limit is the best of them.
  enum pattern : std::size_t { streams_1, streams_2, streams_4, streams_8, pages, pages_ahead, patterns };
  static constexpr const char* names[patterns] = {"streams_1", "streams_2", "streams_4",
                                                  "streams_8", "pages",     "pages_ahead"};

  /// `piece` bytes are read at a time; the next measurement goes on behind them, so that `total` bytes pass by before
  /// the same are read again.
  explicit roofline_probe(std::size_t threads = 1, std::size_t total = cold_bytes, std::size_t piece = 32 * mebibyte)
      : threads_(threads), piece_(piece), memory_(total) {}

  /// Bytes per second of one way to read.
  double read(pattern how);
  /// Multiply-adds per second.
  double fma();
  /// Both, each the best of several tries: a try that a neighbour disturbed is no limit.
  roofline measure();

 private:
  std::size_t threads_;
  std::size_t piece_;
  std::size_t next_ = 0;
  touched_memory memory_;
};

}  // namespace bench
