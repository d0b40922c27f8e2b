// SPDX-License-Identifier: MIT
#include "headwise/probe/repeated_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "support/refused.hpp"

namespace {

using headwise::repeated_tokens;
using headwise::vocabulary;
using ids = std::vector<std::int32_t>;

vocabulary words(std::int32_t count, std::int32_t first = 100) {
  vocabulary from;
  from.ordinary.resize(static_cast<std::size_t>(count));
  std::iota(from.ordinary.begin(), from.ordinary.end(), first);
  return from;
}

TEST(repeated_tokens, are_a_block_of_distinct_ordinary_tokens_repeated_behind_an_optional_prefix) {
  for (const std::size_t block : {1U, 2U, 31U, 50U})  // 50: the whole vocabulary
    for (const std::size_t repeats : {2U, 3U, 4U})
      for (const bool prefixed : {false, true}) {
        vocabulary from = words(50);
        if (prefixed) from.prefix = 7;
        const repeated_tokens probe(from, block, repeats, 1);
        const std::size_t prefix = prefixed ? 1 : 0;
        EXPECT_EQ(probe.prefix_length(), prefix);
        EXPECT_EQ(probe.block(), block);
        EXPECT_EQ(probe.repeats(), repeats);
        ASSERT_EQ(probe.size(), prefix + block * repeats);
        ASSERT_EQ(probe.tokens().size(), probe.size());
        if (prefixed) {
          EXPECT_EQ(probe.tokens()[0], 7);
        }
        std::set<std::int32_t> seen;
        for (std::size_t i = 0; i < block * repeats; ++i) {
          const std::int32_t token = probe.tokens()[prefix + i];
          EXPECT_EQ(token, probe.tokens()[prefix + i % block]);
          EXPECT_TRUE(token >= 100 && token < 150) << token;
          seen.insert(token);
        }
        EXPECT_EQ(seen.size(), block);
      }
}

TEST(repeated_tokens, depend_on_the_seed_and_on_nothing_else) {
  const auto drawn = [](std::uint64_t seed) { return repeated_tokens(words(1000), 100, 2, seed).tokens(); };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  EXPECT_NE(drawn(0), drawn(std::uint64_t{1} << 63));  // all bits of the seed count
  // The generator is fixed by the standard, so these are the same on every platform.
  EXPECT_EQ(repeated_tokens(words(1000), 4, 2, 42).tokens(), (ids{506, 349, 1058, 158, 506, 349, 1058, 158}));
}

TEST(repeated_tokens, every_token_is_drawn_about_equally_often) {
  std::vector<int> drawn(10);
  for (std::uint64_t seed = 0; seed < 2000; ++seed)
    for (std::size_t i = 0; i < 3; ++i)
      ++drawn[static_cast<std::size_t>(repeated_tokens(words(10, 0), 3, 2, seed).tokens()[i])];
  for (const int count : drawn) EXPECT_NEAR(count, 600, 100);  // five standard deviations
}

TEST(repeated_tokens, an_id_that_is_listed_twice_is_one_token) {
  vocabulary from;
  from.ordinary = {5, 3, 5, 3, 9, 9, 9};
  ids block = repeated_tokens(from, 3, 2, 3).tokens();
  block.resize(3);
  std::sort(block.begin(), block.end());
  EXPECT_EQ(block, (ids{3, 5, 9}));
  EXPECT_REFUSED(repeated_tokens(from, 4, 2, 3), "4", "3");
}

TEST(repeated_tokens, a_block_of_the_callers_own_is_taken_as_it_is) {
  EXPECT_EQ(repeated_tokens::from_block({4, 4, 1}, 2).tokens(), (ids{4, 4, 1, 4, 4, 1}));
  EXPECT_EQ(repeated_tokens::from_block({4}, 3, 0).tokens(), (ids{0, 4, 4, 4}));
  EXPECT_EQ(repeated_tokens::from_block({4}, 3, 0).prefix_length(), 1U);
}

TEST(repeated_tokens, what_makes_no_probe_is_refused) {
  const std::size_t most = SIZE_MAX;
  EXPECT_REFUSED(repeated_tokens(words(10), 0, 4, 1), "no tokens");
  EXPECT_REFUSED(repeated_tokens({}, 0, 4, 1), "no tokens");
  EXPECT_REFUSED(repeated_tokens({}, 1, 4, 1), "block of 1", "vocabulary of 0");
  EXPECT_REFUSED(repeated_tokens(words(10), 11, 4, 1), "block of 11", "vocabulary of 10");
  EXPECT_REFUSED(repeated_tokens(words(10), most, 4, 1), "vocabulary of 10");
  EXPECT_REFUSED(repeated_tokens(words(10), 5, 1, 1), "1 repeats", "at least 2");
  EXPECT_REFUSED(repeated_tokens(words(10), 5, 0, 1), "0 repeats");
  EXPECT_REFUSED(repeated_tokens(words(10), 4, most, 1), "repeats of 4 tokens");
  EXPECT_REFUSED(repeated_tokens(words(10), 4, most / 4 + 1, 1), "repeats of 4 tokens");  // wraps to 0 tokens
  EXPECT_REFUSED(repeated_tokens::from_block({}, 4), "no tokens");
  EXPECT_REFUSED(repeated_tokens::from_block({1, 2}, 1), "1 repeats");
}

}  // namespace
