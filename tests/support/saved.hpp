// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "headwise/cache/snapshot.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/core/checksum.hpp"
#include "support/tokens.hpp"

namespace headwise::test {

using blob = std::vector<std::byte>;

template <class Cache>
blob saved(const Cache& cache) {
  memory_sink sink;
  save(cache, sink);
  return sink.bytes();
}

/// Loads a cache that nothing follows.
template <class Cache>
void load_all(Cache& cache, const blob& bytes) {
  memory_source source(bytes.data(), bytes.size());
  load(cache, source);
  EXPECT_EQ(source.remaining(), 0U);
}

inline std::uint64_t number_at(const blob& bytes, std::size_t at) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}
inline void put_number(blob& bytes, std::size_t at, std::uint64_t number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

/// Where the header's fields are: "layer 0, KV head 1: folded rows" -> its offset in the file.
class header_fields {
 public:
  template <class Cache>
  explicit header_fields(const Cache& cache) {
    auto state = headwise::detail::state_of(cache);
    headwise::detail::describe(*this, state);
  }
  std::size_t operator[](const std::string& name) const {
    const auto found = offsets_.find(name);
    if (found == offsets_.end()) ADD_FAILURE() << "no field " << name;
    return found == offsets_.end() ? 0 : found->second;
  }
  const std::map<std::string, std::size_t>& all() const { return offsets_; }
  std::size_t end() const { return next_; }  ///< where the header's checksum is

  void at(const std::string& where) { where_ = where; }
  void same(const char* name, std::size_t) { add(name, 8); }
  void same(const char* name, const std::string& text) { add(name, 8 + text.size()); }
  void number(const char* name, std::size_t, std::size_t, std::size_t) { add(name, 8); }
  void in_blocks(const char*, std::size_t, std::size_t, std::size_t) {}

 private:
  void add(const char* name, std::size_t bytes) {
    EXPECT_TRUE(offsets_.emplace(where_ + name, next_).second) << where_ << name;
    next_ += bytes;
  }

  std::string where_;
  std::map<std::string, std::size_t> offsets_;
  std::size_t next_ = 24;  // behind magic, byte order, version and the header's size
};

/// Recomputes the checksum of the section [begin, end).
inline void seal(blob& bytes, std::size_t begin, std::size_t end) {
  checksum sum;
  sum.add(bytes.data() + begin, end - begin);
  put_number(bytes, end, sum.value());
}

/// Where sections end, that is where their checksums are: of the header, and of every head in order.
template <class Cache>
std::vector<std::size_t> section_ends(const Cache& cache) {
  const auto state = headwise::detail::state_of(cache);
  std::vector<std::size_t> ends = {header_fields(cache).end()};
  for (std::size_t layer = 0; layer < state.layers.size(); ++layer)
    for (std::size_t kv_head = 0; kv_head < cache.shape().kv_heads; ++kv_head) {
      const auto& of = state.layers[layer].heads[kv_head];
      const auto& rows = cache.head(layer, kv_head).rows();
      const std::size_t row = rows.key_bytes() + rows.value_bytes();
      ends.push_back(ends.back() + 8 + of.early * (8 + row) + (rows.length() - of.raw_from) * row + of.summary_bytes +
                     of.checkpoint_bytes);
    }
  return ends;
}

/// Recomputes all checksums of a file whose sections end where these do.
inline void seal_all(blob& bytes, const std::vector<std::size_t>& ends) {
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    seal(bytes, begin, end);
    begin = end + 8;
  }
}

}  // namespace headwise::test
