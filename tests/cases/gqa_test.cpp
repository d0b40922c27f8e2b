// SPDX-License-Identifier: MIT
// Cases GQA: which KV head a query head reads, head sizes, the scale.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/row_model.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(gqa, GQA_01_kv_heads_are_repeated_not_tiled) {
  const model_shape shape{1, 4, 2, 1, 0};
  tokens rows = counting_tokens(shape, 40);
  for (std::size_t i = 0; i < rows.v.size(); ++i) rows.v[i] = i % 2 == 0 ? 10.0F : 20.0F;
  for (const head_role role : {head_role::local, head_role::retrieval}) {
    auto cache = make_cache<float32>(head_plan(shape, role), fixed_budget{6});
    const auto check = [&](const std::vector<float>& found) {
      for (std::size_t i = 0; i < found.size(); ++i) ASSERT_FLOAT_EQ(found[i], i % 4 < 2 ? 10.0F : 20.0F);
    };
    check(feed(cache, rows, 0, 30));
    cache.compress();
    check(feed(cache, rows, 30, 5));
    check(feed(cache, rows, 35, 1));
  }
}

TEST(gqa, GQA_02_the_group_is_the_quotient_of_the_head_counts) {
  for (const auto& [query_heads, kv_heads] :
       {std::pair{12U, 12U}, {32U, 8U}, {28U, 4U}, {9U, 3U}, {8U, 1U}, {1U, 1U}}) {
    const model_shape shape{1, query_heads, kv_heads, 1, 0};
    tokens rows = counting_tokens(shape, 30);
    for (std::size_t i = 0; i < rows.v.size(); ++i) {
      rows.v[i] = static_cast<float>(i % kv_heads);
      rows.k[i] = 0.125F * static_cast<float>(i % kv_heads);
    }
    auto cache = make_cache<float32>(head_plan(shape), fixed_budget{6});
    append(cache, rows, 0, 30);
    cache.compress();
    const auto found = attended(cache, 0, rows.queries(29, 1));
    for (std::size_t h = 0; h < query_heads; ++h)
      EXPECT_FLOAT_EQ(found[h], static_cast<float>(h * kv_heads / query_heads)) << query_heads << " over " << kv_heads;
    for (std::size_t j = 0; j < kv_heads; ++j) {
      ASSERT_EQ(cache.head(0, j).folded(), 20U);
      EXPECT_FLOAT_EQ(folded_means(cache.head(0, j)).first[0], 0.125F * static_cast<float>(j));
      EXPECT_FLOAT_EQ(folded_means(cache.head(0, j)).second[0], static_cast<float>(j));
    }
  }
}

TEST(gqa, GQA_04_a_chunk_as_long_as_some_dimension) {
  for (const std::size_t kv_heads : {1U, 2U}) {
    const model_shape shape{1, 8, kv_heads, 5, 0};
    for (const std::size_t n : {1U, 2U, 3U, 5U, 7U, 8U, 9U}) {
      auto cache = make_cache<float32>(head_plan(shape));
      const auto found = feed(cache, counting_tokens(shape, n), 0, n);
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_FLOAT_EQ(found[i], static_cast<float>(i / 40) / 2.0F) << "chunk of " << n;
    }
  }
}

TEST(gqa, GQA_06_value_rows_of_another_size_than_key_rows) {
  for (const auto& [key_size, value_size] : {std::pair{6U, 3U}, {192U, 128U}, {64U, 1U}, {1U, 64U}}) {
    const model_shape shape{1, 2, 2, key_size, value_size};
    tokens rows = random_tokens(shape, 30, 6);
    for (std::size_t i = 0; i < rows.v.size(); ++i) rows.v[i] = static_cast<float>(i % value_size + 1);
    auto cache = make_cache<float32>(head_plan(shape), fixed_budget{6});
    append(cache, rows, 0, 30);
    cache.compress();

    constexpr std::size_t guard = 32;  // canaries on both sides
    std::vector<float> out(2 * value_size + 2 * guard, -7.0F);
    attend_schedule schedule;
    attend(cache, 0, rows.queries(29, 1), packed_output(out.data() + guard, 1, 2, value_size), schedule);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool inside = i >= guard && i < guard + 2 * value_size;
      if (inside) {
        ASSERT_FLOAT_EQ(out[i], static_cast<float>((i - guard) % value_size + 1));
      } else {
        ASSERT_EQ(out[i], -7.0F) << i;
      }
    }

    // The default scale is that of the keys: two rows with values 0 and 1 show the difference of their logits.
    tokens two(shape, 2);
    two.q.assign(two.q.size(), 1.0F);
    for (std::size_t head = 0; head < 2; ++head) {
      std::fill_n(two.key(1, head), key_size, 1.0F / std::sqrt(static_cast<float>(key_size)));
      std::fill_n(two.value(1, head), value_size, 1.0F);
    }
    auto small = make_cache<float32>(head_plan(shape));
    const auto found = feed(small, two, 0, 2);
    EXPECT_NEAR(found.back(), 1.0 / (1.0 + std::exp(-1.0)), 1e-6);
  }
}

/// Chunks and a decode against the equations in double, with nothing folded and with rows folded.
template <class Format>
void check_head_size(std::size_t dim) {
  const model_shape shape{1, 2, 1, dim, 0};
  tokens rows = random_tokens(shape, 40, static_cast<unsigned>(dim));
  for (std::size_t i = 0; i < rows.v.size(); ++i)  // a tail that is left out shows as 0
    rows.v[i] = static_cast<float>(i % dim + 1) * (1.0F + 0.125F * static_cast<float>(i / dim % 5));
  auto cache = make_cache<Format>(head_plan(shape), fixed_budget{9});
  row_model model(head_plan(shape), fixed_budget{9}, row_model::summary::mean, when_to_compress::after_prompt);
  const auto step = [&](std::size_t first, std::size_t n) {
    const auto found = feed(cache, rows, first, n);
    model.append(0, rows, first, n, Format{});
    for (std::size_t i = 0; i < n * 2; ++i) {
      const auto expected = model.attention(0, i % 2, first + i / 2, rows.q.data() + (first * 2 + i) * dim);
      for (std::size_t j = 0; j < dim; ++j)
        ASSERT_NEAR(found[i * dim + j], expected[j], 1e-5 * expected[j]) << Format::name() << ", head size " << dim;
    }
  };
  step(0, 3);   // few queries
  step(3, 30);  // many
  cache.compress();
  model.compress(0);
  step(33, 1);
  step(34, 6);
}

TEST(gqa, GQA_07_every_head_size) {
  for (const std::size_t dim : {1U,  2U,  3U,   5U,   8U,   16U,  31U,  32U,  33U,  63U,  64U, 65U,
                                80U, 96U, 100U, 112U, 127U, 128U, 129U, 192U, 256U, 320U, 576U}) {
    check_head_size<float32>(dim);
    check_head_size<float16>(dim);
    check_head_size<bfloat16>(dim);
  }
}

}  // namespace
}  // namespace headwise::test
