// SPDX-License-Identifier: MIT
// Cases SAVE: a cache that was saved and loaded again is the same, bit for bit, and so is all that follows; a damaged
// file is refused and changes nothing.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "headwise/cache/snapshot.hpp"
#include "headwise/element/format_variant.hpp"
#include "headwise/policy/bounded_compensation.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/refused.hpp"
#include "support/saved.hpp"
#include "support/temporary_folder.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

struct chosen_f16 : any_format {
  chosen_f16() : any_format(float16{}) {}
};
struct chosen_moment : any_compensation {
  chosen_moment() : any_compensation(moment_compensation{}) {}
};

template <class Format = float32, class Compensation = mean_compensation>
kv_cache<Format, fixed_budget, Compensation> made(const head_plan& plan, std::size_t window,
                                                  when_to_compress when = when_to_compress::every_append,
                                                  std::size_t reserve = 0, Compensation compensation = {},
                                                  Format format = {}) {
  cache_options options;
  options.rollback_reserve = reserve;
  return kv_cache<Format, fixed_budget, Compensation>(plan, fixed_budget{window}, compensation, when, format, options);
}

/// Two layers of two KV heads, one of them a retrieval head.
head_plan small_plan(std::size_t dim = 8, std::size_t sinks = 4) {
  head_plan plan({2, 4, 2, dim, 0}, head_role::local, sinks);
  plan.set({1, 0}, head_role::retrieval);
  return plan;
}

/// 30 tokens in `cache`, one by one.
template <class Cache>
void fill(Cache& cache, std::size_t n = 30, unsigned seed = 1) {
  const tokens rows = random_tokens(cache.shape(), n, seed);
  for (std::size_t i = 0; i < n; ++i) append(cache, rows, i, 1);
}

template <class A, class B>
void expect_same(const A& a, const B& b) {
  ASSERT_EQ(a.length(), b.length());
  ASSERT_TRUE(visible_state(a) == visible_state(b));
  ASSERT_EQ(saved(a), saved(b));  // and what cannot be seen
}

/// Decodes tokens on both and compares every output.
template <class A, class B>
void expect_same_future(A& a, B& b, std::size_t tokens_to_come, unsigned seed) {
  const tokens rows = random_tokens(a.shape(), tokens_to_come, seed);
  for (std::size_t i = 0; i < tokens_to_come; ++i) {
    ASSERT_EQ(feed(a, rows, i, 1), feed(b, rows, i, 1));
    expect_same(a, b);
  }
}

template <class Format>
class save_format : public testing::Test {};
struct format_name {
  template <class Format>
  static std::string GetName(int) {
    return std::is_same_v<Format, chosen_f16> ? std::string("variant") : std::string(Format{}.name());
  }
};
using formats = testing::Types<float32, float16, bfloat16, chosen_f16>;
TYPED_TEST_SUITE(save_format, formats, format_name);

TYPED_TEST(save_format, SAVE_01_a_loaded_cache_goes_on_like_the_one_that_was_saved) {
  const auto check = [](auto cache, auto fresh, std::size_t n, bool compress) {
    fill(cache, n);
    if (compress) cache.compress();
    fill(fresh, 3, 9);  // whatever it holds
    load_all(fresh, saved(cache));
    expect_same(cache, fresh);
    expect_same_future(cache, fresh, 16, 2);
  };
  for (const std::size_t n : {0U, 1U, 7U, 8U, 9U, 11U, 12U, 13U, 50U, 63U, 64U, 65U, 150U}) {
    SCOPED_TRACE(n);
    for (const std::size_t reserve : {0U, 5U})
      for (const bool compress : {false, true}) {
        const auto when = compress ? when_to_compress::after_prompt : when_to_compress::every_append;
        const auto each = [&](auto compensation) {
          const auto cache = made<TypeParam>(small_plan(), 8, when, reserve, compensation);
          check(cache, cache, n, compress);
        };
        each(mean_compensation{});
        each(moment_compensation{});
        each(no_compensation{});
        each(chosen_moment{});
        each(bounded_compensation<moment_compensation>{});
      }
  }
}

TYPED_TEST(save_format, SAVE_03_every_prefix_and_every_flipped_byte_is_refused_and_changes_nothing) {
  auto cache = made<TypeParam>(small_plan(), 8, when_to_compress::every_append, 3);
  fill(cache);
  const blob good = saved(cache);
  auto target = made<TypeParam>(small_plan(), 8, when_to_compress::every_append, 3);
  fill(target, 21, 5);
  const blob before = saved(target);
  for (std::size_t length = 0; length < good.size(); ++length) {
    memory_source source(good.data(), length);
    ASSERT_NO_FATAL_FAILURE(EXPECT_REFUSED(load(target, source), "load: "));
  }
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const unsigned flip : {0x01U, 0x80U, 0xFFU}) {
      blob bad = good;
      bad[at] ^= static_cast<std::byte>(flip);
      ASSERT_NO_FATAL_FAILURE(EXPECT_REFUSED(load_all(target, bad), "load: ")) << "byte " << at;
    }
  EXPECT_EQ(saved(target), before);
  load_all(target, good);
  expect_same(target, cache);
}

TEST(save, SAVE_03_files_too) {
  const temporary_folder folder;
  auto cache = made(small_plan(), 8);
  fill(cache);
  save(cache, folder.file("good"));
  EXPECT_EQ(folder.files(), 1U);
  const std::string good = content(folder.file("good"));
  auto target = made(small_plan(), 8);
  fill(target, 21, 5);
  const blob before = saved(target);
  const std::string bad = folder.file("bad");
  for (std::size_t length = 0; length < good.size(); length += length < 40 ? 1 : 61) {
    put(bad, good.substr(0, length));
    EXPECT_REFUSED(load(target, bad), bad.c_str());
  }
  for (std::size_t at = 0; at < good.size(); at += 37) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    put(bad, flipped);
    EXPECT_REFUSED(load(target, bad), bad.c_str());
  }
  EXPECT_REFUSED(load(target, folder.file("none")), "none: cannot be opened");
  EXPECT_REFUSED(load(target, folder.file("")), "found a folder");
  EXPECT_REFUSED(save(cache, folder.file("none/file")), "cannot be written");
  EXPECT_EQ(saved(target), before);
  load(target, folder.file("good"));
  expect_same(target, cache);
}

/// Stores what another format does, or as many bytes, under another name.
template <class Format>
struct renamed : Format {
  static const char* name() noexcept { return "renamed"; }
};

TEST(save, SAVE_04_another_format_is_refused_however_many_bytes_its_rows_have) {
  auto f16 = made<float16>(small_plan(), 8);
  auto bf16 = made<bfloat16>(small_plan(), 8);
  auto f32 = made<float32>(small_plan(4), 8);  // as many bytes a row
  for (int i = 0; i < 3; ++i) fill(f16, 1), fill(bf16, 1), fill(f32, 1);
  const blob f16_before = saved(f16), bf16_before = saved(bf16);
  EXPECT_REFUSED(load_all(bf16, f16_before), "format: found 'f16', expected 'bf16'");
  EXPECT_REFUSED(load_all(f16, bf16_before), "format: found 'bf16', expected 'f16'");
  EXPECT_REFUSED(load_all(f16, saved(f32)), "head size: found 4, expected 8");
  auto other = made<renamed<float16>>(small_plan(), 8);
  EXPECT_REFUSED(load_all(other, f16_before), "format: found 'f16', expected 'renamed'");
  auto variant = made<any_format>(small_plan(), 8, when_to_compress::every_append, 0, mean_compensation{}, bfloat16{});
  EXPECT_REFUSED(load_all(variant, f16_before), "format: found 'f16', expected 'bf16'");
  load_all(variant, bf16_before);  // a variant is what was chosen
  EXPECT_EQ(saved(variant), bf16_before);
  EXPECT_EQ(saved(f16), f16_before);
  EXPECT_EQ(saved(bf16), bf16_before);

  auto one = made<float16>(one_local(4), 8);
  tokens row(one_head(), 1);
  row.v[0] = 1.0F;
  append(one, row, 0, 1);
  auto again = made<float16>(one_local(4), 8);
  load_all(again, saved(one));
  EXPECT_EQ(answer(again), 1.0F);  // f16 bits read as bf16: 0.0078
}

TEST(save, SAVE_04_another_shape_plan_or_policy_is_refused_with_the_field) {
  const auto cache = made(small_plan(), 8);
  const blob good = saved(cache);
  const auto refused = [&](auto target, const char* word) {
    fill(target, 20, 3);
    const auto before = visible_state(target);
    EXPECT_REFUSED(load_all(target, good), "load: ", word);
    EXPECT_TRUE(visible_state(target) == before);
  };
  const auto shaped = [](const model_shape& shape) { return made(head_plan(shape), 8); };
  refused(shaped({3, 4, 2, 8, 0}), "layers: found 2, expected 3");
  refused(shaped({2, 8, 2, 8, 0}), "query heads: found 4, expected 8");
  refused(shaped({2, 4, 4, 8, 0}), "KV heads: found 2, expected 4");
  refused(shaped({2, 4, 2, 9, 8}), "head size: found 8, expected 9");
  refused(shaped({2, 4, 2, 8, 16}), "value size: found 8, expected 16");
  refused(made(small_plan(8, 5), 8), "sinks: found 4, expected 5");
  refused(made(small_plan(), 9), "budget: found 'fixed(8)', expected 'fixed(9)'");
  refused(kv_cache<float32, razor_budget, mean_compensation>(small_plan(), razor_budget{8, 0}),
          "budget: found 'fixed(8)', expected 'razor(8, 0)'");
  refused(made<float32, no_compensation>(small_plan(), 8), "compensation: found 'mean', expected 'none'");
  refused(made<float32, moment_compensation>(small_plan(), 8), "compensation: found 'mean', expected 'moment(16)'");
  refused(made(small_plan(), 8, when_to_compress::frozen), "when to compress: found 'every_append', expected 'frozen'");
  refused(made(small_plan(), 8, when_to_compress::every_append, 7), "rollback reserve: found 0, expected 7");
  head_plan plan = small_plan();
  plan.set({1, 0}, head_role::local);
  refused(made(plan, 8), "layer 1, KV head 0: role: found 'retrieval', expected 'local'");
  plan = small_plan();
  plan.set_window(1, 10);
  refused(made(plan, 8), "layer 1: window: found 0, expected 10");
}

TEST(save, SAVE_06_several_sequences_in_one_sink_each_with_its_own_optional_parts) {
  const auto with_drops = [](std::size_t n) {
    auto cache = made(small_plan(), 8);
    fill(cache, n, static_cast<unsigned>(n));
    return cache;
  };
  for (const bool drops_outside : {false, true}) {
    auto first = with_drops(drops_outside ? 30 : 5), second = with_drops(drops_outside ? 7 : 40),
         third = with_drops(drops_outside ? 64 : 9);
    auto without = made<float16, no_compensation>(small_plan(), 8);
    fill(without, 50, 4);
    memory_sink sink;
    save(first, sink);
    save(second, sink);
    save(without, sink);
    save(third, sink);
    EXPECT_EQ(sink.bytes().size(),
              saved_bytes(first) + saved_bytes(second) + saved_bytes(without) + saved_bytes(third));

    memory_source source(sink.bytes().data(), sink.bytes().size());
    auto a = with_drops(1), b = with_drops(2), c = with_drops(3);
    auto none = made<float16, no_compensation>(small_plan(), 8);
    load(a, source);
    expect_same(a, first);
    load(b, source);
    expect_same(b, second);
    load(none, source);
    expect_same(none, without);
    load(c, source);
    expect_same(c, third);
    EXPECT_EQ(source.remaining(), 0U);
    EXPECT_REFUSED(load(c, source), "load: found 0 bytes, expected a saved cache");
  }
}

TEST(save, SAVE_08_numbers_that_cannot_be_are_refused_before_anything_is_allocated) {
  auto cache = made(small_plan(), 8, when_to_compress::every_append, 3);
  fill(cache);
  const blob good = saved(cache);
  const header_fields fields(cache);
  const auto ends = section_ends(cache);
  auto target = made(small_plan(), 8, when_to_compress::every_append, 3);
  fill(target, 21, 5);
  const blob before = saved(target);
  const auto refused = [&](const std::string& field, std::uint64_t value, const char* word) {
    SCOPED_TRACE(field + " = " + std::to_string(value));
    blob bad = good;
    put_number(bad, field == "bytes of the header" ? 16 : fields[field], value);
    EXPECT_REFUSED(load_all(target, bad), "load: header: ");  // by its checksum, or its size
    seal(bad, 0, ends[0]);
    memory().peak_bytes = memory().live_bytes.load();
    const std::size_t mapped = memory().mapped_bytes, live = memory().live_bytes;
    EXPECT_REFUSED(load_all(target, bad), "load: ", word);
    EXPECT_LT(memory().peak_bytes - live, bad.size() + (std::size_t{1} << 20));
    EXPECT_EQ(memory().mapped_bytes, mapped);
  };
  const std::uint64_t huge = std::uint64_t{1} << 63, minus_one = static_cast<std::uint64_t>(-1);
  const std::uint64_t wraps = (std::uint64_t{1} << 58) + 30;  // 64 bytes a row: 2^64, and 30 rows
  for (const char* field : {"layers", "query heads", "KV heads", "head size", "value size", "sinks"})
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{0xFFFFFFFF}, huge, minus_one})
      refused(field, value, field);
  for (const std::uint64_t value : {huge, minus_one, wraps, std::uint64_t{1} << 41})
    refused("layer 0: length", value, "layer 0: length: found");
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{29}, std::uint64_t{31}, std::uint64_t{1} << 40})
    refused("layer 0: length", value, "");
  refused("layer 1: length", std::uint64_t{1} << 40, "bytes of rows and summaries, expected");
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{2}, huge})
    refused("layer 0: rolling", value, "layer 0: rolling: found");
  for (const char* field : {"kept from", "raw from", "early rows", "kept from before the last append",
                            "length at the last retain", "summary", "folded rows", "folded rows before the reserve"})
    for (const std::uint64_t value : {huge, minus_one, wraps, std::uint64_t{31}})
      refused(std::string("layer 0, KV head 1: ") + field, value, field);
  for (const char* field : {"summary bytes", "checkpoint bytes"})
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{7}, huge, minus_one, minus_one - 500})
      refused(std::string("layer 0, KV head 1: ") + field, value, "bytes");
  refused("layer 1, KV head 0: kept from", 5, "");  // rows that a retrieval head would miss
  refused("layer 0: length at the last compress", 31, "compress: found 31, expected 0..30");
  for (const char* field : {"format", "budget", "compensation", "when to compress"})  // lengths of texts
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{100}, huge, minus_one})
      refused(field, value, field);

  // D rows, and the compensation row.
  ASSERT_EQ(cache.head(0, 1).folded(), 18U);
  const std::string head = "layer 0, KV head 1: ";
  refused(head + "folded rows", 31, "folded rows: found 31, expected 0..18");
  refused(head + "folded rows", 17, "summary: found 18 folded rows, expected 17");
  refused(head + "folded rows", 0, "found");
  refused(head + "summary", 0, "folded rows: found 18, expected 0");
  auto uncompensated = made<float32, no_compensation>(small_plan(), 8);
  fill(uncompensated, 6);
  blob none = saved(uncompensated);
  const header_fields none_fields(uncompensated);
  put_number(none, none_fields[head + "summary"], 1);  // D = 0 with one
  seal(none, 0, none_fields.end());
  EXPECT_REFUSED(load_all(uncompensated, none), "layer 0, KV head 1: summary: found 1, expected 0");

  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{7}, huge, minus_one, minus_one - 7})
    refused("bytes of the header", value, "header");
  EXPECT_EQ(saved(target), before);
}

TEST(save, SAVE_08_a_summary_with_the_wrong_weight_is_refused_and_a_nan_only_by_its_checksum) {
  auto cache = made(small_plan(), 8);
  fill(cache);
  const blob good = saved(cache);
  const auto ends = section_ends(cache);
  const std::size_t count_at = ends[1] - (1 + 8 + 8) * 8;  // of layer 0, KV head 0: the count, 8 key and 8 value sums
  ASSERT_EQ(number_at(good, count_at), 18U);
  auto target = made(small_plan(), 8);
  for (const std::uint64_t weight : {static_cast<std::uint64_t>(-1), std::uint64_t{0}, std::uint64_t{19}}) {
    blob bad = good;
    put_number(bad, count_at, weight);
    EXPECT_REFUSED(load_all(target, bad), "load: layer 0, KV head 0");
    seal_all(bad, ends);
    EXPECT_REFUSED(load_all(target, bad), "load: layer 0, KV head 0, summary: found ", "folded rows, expected 18");
  }
  EXPECT_EQ(target.length(), 0U);

  // A NaN in the sums is what a row with a NaN leaves there, so only the checksum can tell that it is damage.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  blob bad = good;
  std::memcpy(bad.data() + count_at + 8, &nan, sizeof nan);
  EXPECT_REFUSED(load_all(target, bad), "load: layer 0, KV head 0: damaged: found the checksum");
  EXPECT_EQ(target.length(), 0U);
  seal_all(bad, ends);
  load_all(target, bad);
  EXPECT_EQ(saved(target), bad);
  auto states = visible_state(target), expected = visible_state(cache);
  EXPECT_TRUE(std::isnan(states[0].means.first[0]));
  for (std::size_t head = 1; head < 4; ++head) EXPECT_TRUE(states[head] == expected[head]);
  EXPECT_EQ(states[0].means.second, expected[0].means.second);
  EXPECT_EQ(states[0].rows, expected[0].rows);

  // And such a row's NaN survives.
  tokens rows = random_tokens(cache.shape(), 30, 1);
  rows.key(10, 1)[3] = std::numeric_limits<float>::quiet_NaN();
  rows.value(11, 1)[4] = std::numeric_limits<float>::infinity();
  auto poisoned = made(small_plan(), 8);
  for (std::size_t i = 0; i < 30; ++i) append(poisoned, rows, i, 1);
  load_all(target, saved(poisoned));
  expect_same(target, poisoned);
}

TEST(save, SAVE_09_another_version_magic_or_byte_order_and_trailing_junk_are_refused) {
  const temporary_folder folder;
  auto cache = made(small_plan(), 8);
  fill(cache);
  const blob good = saved(cache);
  auto target = made(small_plan(), 8);
  const auto with = [&](std::size_t at, std::initializer_list<int> bytes) {
    blob bad = good;
    for (const int byte : bytes) bad[at++] = static_cast<std::byte>(byte);
    seal(bad, 0, header_fields(cache).end());
    return bad;
  };
  EXPECT_REFUSED(load_all(target, with(12, {2})), "load: found version 2, expected 1");
  EXPECT_REFUSED(load_all(target, with(12, {0})), "load: found version 0, expected 1");
  EXPECT_REFUSED(load_all(target, with(0, {'G', 'G', 'U', 'F'})), "first bytes");
  EXPECT_REFUSED(load_all(target, with(0, {0x1A, '\n', '\r', 'V', 'K', 'W', 'H', 0x89})), "first bytes");
  EXPECT_REFUSED(load_all(target, with(8, {1, 2, 3, 4})), "byte order");
  EXPECT_EQ(target.length(), 0U);

  blob junk = good;
  junk.resize(junk.size() + 16);
  put(folder.file("junk"), std::string(reinterpret_cast<const char*>(junk.data()), junk.size()));
  const std::string found = "bytes of rows and summaries, expected";
  EXPECT_REFUSED(load(target, folder.file("junk")), "junk: found", found.c_str());
  EXPECT_EQ(target.length(), 0U);
  memory_source source(junk.data(), junk.size());  // where it may be the next sequence: left alone
  load(target, source);
  EXPECT_EQ(source.remaining(), 16U);
  expect_same(target, cache);
}

TEST(save, SAVE_09_the_size_told_beforehand_is_the_size_written) {
  std::size_t states = 0;
  const auto check = [&](const auto& cache) {
    EXPECT_EQ(saved_bytes(cache), saved(cache).size());
    ++states;
  };
  const auto each = [&](auto format) {
    for (const std::size_t n : {0U, 1U, 12U, 13U, 30U, 100U})
      for (const std::size_t reserve : {0U, 10U}) {
        const auto grown = [&](auto compensation) {
          auto cache = made(small_plan(), 8, when_to_compress::every_append, reserve, compensation, format);
          fill(cache, n);
          check(cache);
          if (n > 12) {
            cache.retain(1, 0, {0, 3, 5, n - 2, n - 1});
            check(cache);
          }
        };
        grown(mean_compensation{});
        grown(no_compensation{});
        grown(moment_compensation{});
        grown(chosen_moment{});
      }
  };
  each(float32{});
  each(float16{});
  each(bfloat16{});
  each(chosen_f16{});
  EXPECT_GE(states, 30U);
}

}  // namespace
}  // namespace headwise::test
