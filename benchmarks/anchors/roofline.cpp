// SPDX-License-Identifier: MIT
#include "roofline.hpp"

#include <array>
#include <numeric>

#include "rounds.hpp"

namespace bench {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
constexpr std::size_t vector_bytes = 32;
#else
constexpr std::size_t vector_bytes = 16;
#endif
// clang splits longer vectors than it likes on this CPU; a limit has to be the machine's.
#if defined(__clang__) && defined(__AVX512F__)
#define BENCH_FULL_WIDTH __attribute__((min_vector_width(512)))
#else
#define BENCH_FULL_WIDTH
#endif
using float_vector __attribute__((vector_size(vector_bytes))) = float;
using integer_vector __attribute__((vector_size(vector_bytes))) = long long;

/// Multiply-adds per second of one core. 12 sums: two units with a latency of 4 need 8, and 16 registers hold them.
BENCH_FULL_WIDTH double fma_rate() {
  constexpr std::size_t steps = 30000;
  constexpr std::size_t sums = 12;
  float_vector sum[sums];
  for (float_vector& x : sum) x = float_vector{} + 1.0F;
  float_vector factor = float_vector{} + 0.999F;
  float_vector term = float_vector{} + 0.001F;
  keep(factor), keep(term);
  const stopwatch time(true);
  for (std::size_t i = 0; i < steps; ++i)
    for (float_vector& x : sum) x = x * factor + term;
  const double seconds = time.seconds();
  for (float_vector& x : sum) keep(x);
  return static_cast<double>(steps * sums * (vector_bytes / sizeof(float))) / seconds;
}

/// Reads `bytes` at `data` as `Streams` runs side by side.
template <std::size_t Streams>
BENCH_FULL_WIDTH void read_streams(const std::byte* data, std::size_t bytes) {
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

/// The order in which a kernel goes over a cache: pages of 64 rows, keys then values (of 128 f16 elements here). A
/// layer's heads grow side by side, so the next page of a head lies `heads` pages further. `Ahead` asks for its lines
/// on the way.
template <bool Ahead>
BENCH_FULL_WIDTH void read_pages(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t heads = 8;
  constexpr std::size_t page_bytes = std::size_t{2} * 64 * 256;
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

}  // namespace

double roofline_probe::read(pattern how) {
  const std::byte* const from = memory_.data() + next_;
  next_ = next_ + 2 * piece_ <= memory_.size() ? next_ + piece_ : 0;
  const std::size_t part = piece_ / threads_;
  const stopwatch time(threads_ == 1);
  on_threads(threads_, [&](std::size_t i) {
    const std::byte* const mine = from + i * part;
    switch (how) {
      case streams_1: return read_streams<1>(mine, part);
      case streams_2: return read_streams<2>(mine, part);
      case streams_4: return read_streams<4>(mine, part);
      case streams_8: return read_streams<8>(mine, part);
      case pages: return read_pages<false>(mine, part);
      default: return read_pages<true>(mine, part);
    }
  });
  return static_cast<double>(part * threads_) / time.seconds();
}

double roofline_probe::fma() {
  std::array<double, 64> rate{};
  on_threads(threads_, [&](std::size_t i) { rate[i] = fma_rate(); });
  return std::accumulate(rate.begin(), rate.end(), 0.0);
}

roofline roofline_probe::measure() {
  roofline limits{0.0, 0.0};
  for (int i = 0; i < 5; ++i) limits.fma = (std::max)(limits.fma, fma());
  for (std::size_t how = 0; how < patterns; ++how)
    limits.read = (std::max)(limits.read, read(static_cast<pattern>(how)));
  return limits;
}

}  // namespace bench
