// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "headwise/core/error.hpp"

namespace headwise {

/// The token ids of a model that a probe may use.
struct vocabulary {
  std::vector<std::int32_t> ordinary;  ///< ids of ordinary text: no control, unknown or unused tokens
  std::optional<std::int32_t> prefix;  ///< what a prompt of this model begins with (BOS); none: no prefix
};

/// The synthetic prompt that reveals retrieval heads: a prefix token, and a block of random tokens repeated.
/// The authors use 2500 tokens x 4; models with a shorter context take a shorter block (500 x 4 ranks the heads of
/// SmolLM2-135M as 1000 x 4 does).
class repeated_tokens {
 public:
  /// `block` distinct ordinary tokens, drawn by `seed` (the same on every platform). Refuses a vocabulary that is too
  /// small for them.
  repeated_tokens(const vocabulary& from, std::size_t block, std::size_t repeats, std::uint64_t seed)
      : repeated_tokens(from_block(draw(from, block, seed), repeats, from.prefix)) {}

  /// A block of the caller's own.
  static repeated_tokens from_block(std::vector<std::int32_t> block, std::size_t repeats,
                                    std::optional<std::int32_t> prefix = std::nullopt) {
    if (block.empty()) detail::fail("repeated_tokens: the block has no tokens");
    if (repeats < 2) detail::fail("repeated_tokens: ", repeats, " repeats, expected at least 2");
    constexpr std::size_t most = 1U << 30;  // positions of engines are 32-bit
    if (repeats > most / block.size())
      detail::fail("repeated_tokens: ", repeats, " repeats of ", block.size(), " tokens, expected at most ", most,
                   " tokens in all");
    return {std::move(block), repeats, prefix};
  }

  /// Prefix and all copies, in the order to be fed.
  const std::vector<std::int32_t>& tokens() const noexcept { return tokens_; }
  std::size_t size() const noexcept { return tokens_.size(); }
  std::size_t block() const noexcept { return block_; }
  std::size_t repeats() const noexcept { return repeats_; }
  /// 1 with a prefix token, 0 without: where the repeated part begins.
  std::size_t prefix_length() const noexcept { return tokens_.size() - block_ * repeats_; }

 private:
  repeated_tokens(std::vector<std::int32_t> block, std::size_t repeats, std::optional<std::int32_t> prefix)
      : block_(block.size()), repeats_(repeats) {
    tokens_.reserve(block.size() * repeats + 1);
    if (prefix) tokens_.push_back(*prefix);
    for (std::size_t i = 0; i < repeats; ++i) tokens_.insert(tokens_.end(), block.begin(), block.end());
  }

  static std::vector<std::int32_t> draw(const vocabulary& from, std::size_t block, std::uint64_t seed) {
    std::vector<std::int32_t> ids = from.ordinary;
    std::sort(ids.begin(), ids.end());  // an id that is listed twice is still one token
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    if (ids.size() < block)
      detail::fail("repeated_tokens: a block of ", block, " distinct tokens from a vocabulary of ", ids.size());
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < block; ++i)  // Fisher-Yates; the modulo's bias is below 2^-40
      std::swap(ids[i], ids[i + static_cast<std::size_t>(random() % (ids.size() - i))]);
    ids.resize(block);
    return ids;
  }

  std::vector<std::int32_t> tokens_;
  std::size_t block_;
  std::size_t repeats_;
};

}  // namespace headwise
