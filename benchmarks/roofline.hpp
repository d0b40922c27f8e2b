// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "headwise/headwise.hpp"
#include "rounds.hpp"

// What this machine can do at most, measured in the same round as what is compared with it: bytes read per second from
// memory that no cache holds, and float32 multiply-adds per second with everything in registers. A step that must read
// B bytes and do F multiply-adds cannot take less than max(B / read, F / fma).

namespace bench {

/// How much must pass by before the same bytes are read again.
constexpr std::size_t cold_bytes = std::size_t{1} << 29;
constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr double giga = 1e9;

#if defined(__AVX512F__)
constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
constexpr std::size_t vector_bytes = 32;
#else
constexpr std::size_t vector_bytes = 16;
#endif
using float_vector __attribute__((vector_size(vector_bytes))) = float;
using integer_vector __attribute__((vector_size(vector_bytes))) = long long;

/// Memory on huge pages where the system gives them, every page touched: a limit should not be one of the page tables.
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

/// Multiply-adds per second of one core. 12 sums: two units with a latency of 4 need 8, and 16 registers hold them.
inline double fma_rate(std::size_t steps = 100000) {
  constexpr std::size_t sums = 12;
  float_vector sum[sums];
  for (float_vector& x : sum) x = float_vector{} + 1.0F;
  float_vector factor = float_vector{} + 0.999F;
  float_vector term = float_vector{} + 0.001F;
  keep(factor), keep(term);
  const stopwatch time;
  for (std::size_t i = 0; i < steps; ++i)
    for (float_vector& x : sum) x = x * factor + term;
  const double seconds = time.seconds();
  for (float_vector& x : sum) keep(x);
  return static_cast<double>(steps * sums * (vector_bytes / sizeof(float))) / seconds;
}

/// Reads `bytes` at `data` as `Streams` runs side by side.
template <std::size_t Streams>
inline void read_streams(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t unroll = Streams >= 8 ? 1 : 8 / Streams;
  const std::size_t stretch = bytes / Streams / (unroll * vector_bytes) * (unroll * vector_bytes);
  integer_vector sum[Streams][unroll] = {};
  for (std::size_t i = 0; i < stretch; i += unroll * vector_bytes)
    for (std::size_t s = 0; s < Streams; ++s)
      for (std::size_t u = 0; u < unroll; ++u)
        sum[s][u] ^= *reinterpret_cast<const integer_vector*>(data + s * stretch + i + u * vector_bytes);
  for (auto& stream : sum)
    for (integer_vector& x : stream) keep(x);
}

/// The order in which a kernel goes over a cache: pages of 64 rows, keys then values. A layer's heads grow side by
/// side, so the next page of a head lies `heads` pages further. `Ahead` lines of the next page are asked for on the
/// way.
template <bool Ahead>
inline void read_pages(const std::byte* data, std::size_t bytes, std::size_t page_bytes, std::size_t heads) {
  const std::size_t pages = bytes / page_bytes / heads;
  for (std::size_t head = 0; head < heads; ++head)
    for (std::size_t page = 0; page < pages; ++page) {
      const std::byte* const from = data + (page * heads + head) * page_bytes;
      integer_vector sum[8] = {};
      for (std::size_t i = 0; i + 8 * vector_bytes <= page_bytes; i += 8 * vector_bytes) {
        if (Ahead && page + 1 < pages)
          for (std::size_t line = 0; line < 8 * vector_bytes; line += 64)
            __builtin_prefetch(from + heads * page_bytes + i + line);
        for (std::size_t u = 0; u < 8; ++u)
          sum[u] ^= *reinterpret_cast<const integer_vector*>(from + i + u * vector_bytes);
      }
      for (integer_vector& x : sum) keep(x);
    }
}

/// The limits of one round.
struct roofline {
  double read;  ///< bytes per second
  double fma;   ///< multiply-adds per second

  double seconds(double bytes, double fmas) const { return (std::max)(bytes / read, fmas / fma); }
};

/// Measures the limits of `threads` cores, each on a part of the memory of its own.
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
  double read(pattern how) {
    const std::byte* const from = memory_.data() + next_;
    next_ = next_ + 2 * piece_ <= memory_.size() ? next_ + piece_ : 0;
    const std::size_t part = piece_ / threads_;
    const stopwatch time;
    on_threads(threads_, [&](std::size_t i) {
      const std::byte* const mine = from + i * part;
      switch (how) {
        case streams_1: return read_streams<1>(mine, part);
        case streams_2: return read_streams<2>(mine, part);
        case streams_4: return read_streams<4>(mine, part);
        case streams_8: return read_streams<8>(mine, part);
        case pages: return read_pages<false>(mine, part, page_bytes, heads);
        default: return read_pages<true>(mine, part, page_bytes, heads);
      }
    });
    return static_cast<double>(part * threads_) / time.seconds();
  }
  double fma() {
    std::array<double, 64> rate{};
    on_threads(threads_, [&](std::size_t i) { rate[i] = fma_rate(); });
    double sum = 0.0;
    for (const double r : rate) sum += r;
    return sum;
  }
  roofline measure() {
    roofline limits{0.0, fma()};
    for (std::size_t how = 0; how < patterns; ++how)
      limits.read = (std::max)(limits.read, read(static_cast<pattern>(how)));
    return limits;
  }

 private:
  static constexpr std::size_t page_bytes = 2 * 64 * 256;  // keys and values of 64 rows of 128 f16 elements
  static constexpr std::size_t heads = 8;

  std::size_t threads_;
  std::size_t piece_;
  std::size_t next_ = 0;
  touched_memory memory_;
};

}  // namespace bench
