// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "headwise/kernel/kernel.hpp"
#include "reference/attention.hpp"
#include "support/instruction_sets.hpp"
#include "support/random.hpp"

namespace headwise::test {

inline const char* name_of(element_type type) {
  return type == element_type::f32 ? "f32" : (type == element_type::f16 ? "f16" : "bf16");
}
inline std::size_t bytes_of(element_type type, std::size_t count) {
  return count * (type == element_type::f32 ? 4 : 2);
}

/// What a kernel left behind: out is divided by the sum already, and 0 where nothing was seen.
struct kernel_answer {
  std::vector<float> out, maximum, sum, strip;
  std::size_t strip_entries = 0;
  bool operator==(const kernel_answer& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {  // NaN equals NaN
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    };
    return same(out, other.out) && same(maximum, other.maximum) && same(sum, other.sum);
  }
};

/// Runs of one head and the queries against them, with the memory that a kernel may touch and no more.
struct kernel_case {
  element_type type;
  std::size_t key_size;
  std::size_t value_size;
  std::size_t group;
  std::vector<key_range> sees;  ///< one per query token
  attention_params params{1.0F, 0.0F};
  std::size_t row_offset = 0;      ///< bytes between an aligned address and where rows begin
  std::size_t scratch_offset = 0;  ///< floats, likewise

  struct run {
    std::vector<std::byte> keys, values;
    std::size_t rows, position;
    float bias;
    std::vector<reference::row> exact;
  };
  std::vector<float> queries{};
  std::vector<run> runs{};

  kernel_case(element_type rows, std::size_t keys, std::size_t values, std::size_t query_tokens = 1,
              std::size_t queries_of_a_token = 1)
      : type(rows), key_size(keys), value_size(values), group(queries_of_a_token), sees(query_tokens, {0, 1U << 30}) {}

  std::size_t count() const { return group * sees.size(); }

  void add(std::size_t rows, std::vector<float> keys, std::vector<float> values, std::size_t at, float bias = 0.0F) {
    const auto stored = [&](std::vector<float>& numbers) {
      std::vector<std::byte> bytes(row_offset + bytes_of(type, numbers.size()));
      kernel::reference::table().narrow(type, numbers.data(), bytes.data() + row_offset, numbers.size());
      kernel::reference::table().widen(type, bytes.data() + row_offset, numbers.data(), numbers.size());
      return bytes;
    };
    runs.push_back({stored(keys), stored(values), rows, at, bias, {}});
    for (std::size_t row = 0; row < rows; ++row) {
      const float* const key = keys.data() + row * key_size;
      const float* const value = values.data() + row * value_size;
      runs.back().exact.push_back({{key, key + key_size}, {value, value + value_size}, static_cast<double>(bias)});
    }
  }
  void add_random(random_numbers& random, std::size_t rows, std::size_t at, float bias = 0.0F, float spread = 1.0F) {
    add(rows, random.gaussians(rows * key_size, spread), random.gaussians(rows * value_size), at, bias);
  }
  /// Rows at positions [first, last) in runs of at most `most` rows, none across a block's edge.
  void add_split(random_numbers& random, std::size_t first, std::size_t last, std::size_t most) {
    for (std::size_t rows = 0; first < last; first += rows) {
      rows = std::min({most, kernel::block_rows - first % kernel::block_rows, last - first});
      add_random(random, rows, first);
    }
  }
  /// Queries already scaled so that logits are of the order of 1.
  void random_queries(random_numbers& random) {
    queries = random.gaussians(count() * key_size, 1.0F / std::sqrt(static_cast<float>(key_size)));
  }
  /// What each of the tokens sees that stand at positions from `first` on.
  template <class Mask>
  void mask(std::size_t first, const Mask& visible) {
    for (std::size_t token = 0; token < sees.size(); ++token) sees[token] = visible(first + token);
  }

  /// One call per `runs_at_once` runs.
  kernel_answer run_with(const kernel::functions& kernels, bool strip = false,
                         std::size_t runs_at_once = static_cast<std::size_t>(-1)) const {
    constexpr float canary = -7777.0F;
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    constexpr std::size_t beside = 16;
    const std::size_t scratch_floats = kernels.scratch_floats(count(), key_size, value_size);
    std::vector<float> scratch(scratch_offset + scratch_floats + beside, canary);
    std::fill_n(scratch.begin() + static_cast<std::ptrdiff_t>(scratch_offset), scratch_floats, nan);
    kernel_answer answer;
    answer.maximum.assign(count(), 0.0F);
    answer.sum.assign(count(), 0.0F);
    answer.out.assign(count() * value_size, 0.0F);
    if (strip) answer.strip.assign(runs.size() * kernels.strip_floats(count()), nan);
    const kernel::softmax_rows state{answer.maximum.data(), answer.sum.data(), answer.out.data()};
    kernel::clear(state, count(), value_size);
    const kernel::query_block block{queries.data(), count(), group, key_size, value_size, &params, sees.data()};
    std::vector<kernel::row_block> blocks;
    for (const run& r : runs)
      blocks.push_back({r.keys.data() + row_offset, r.values.data() + row_offset, r.rows, r.position, r.bias});
    kernel::weight_strip weights{answer.strip.data(), 0};
    for (std::size_t i = 0; i < blocks.size();) {
      const std::size_t most = std::min(runs_at_once, blocks.size() - i);
      kernels.attend(type, blocks.data() + i, most, blocks.size() - i - most, block, scratch.data() + scratch_offset,
                     state, strip ? &weights : nullptr);
      i += most;
    }
    answer.strip_entries = weights.blocks;
    bool kept_inside = true;
    for (std::size_t i = 0; i < scratch.size(); ++i)
      if (i < scratch_offset || i >= scratch_offset + scratch_floats) kept_inside = kept_inside && scratch[i] == canary;
    EXPECT_TRUE(kept_inside) << "wrote beside its scratch memory: " << description();
    for (std::size_t i = 0; i < answer.out.size(); ++i)
      if (answer.sum[i / value_size] != 0.0F) answer.out[i] /= answer.sum[i / value_size];
    return answer;
  }
  kernel_answer run_all() const { return run_with(kernel::for_sizes(key_size, value_size)); }

  reference::vector query(std::size_t index) const {
    const float* const q = queries.data() + index * key_size;
    return {q, q + key_size};
  }
  std::vector<reference::row> seen_by(std::size_t index) const {
    std::vector<reference::row> seen;
    for (const run& r : runs)
      for (std::size_t row = 0; row < r.rows; ++row)
        if (r.position + row >= sees[index / group].begin && r.position + row < sees[index / group].end)
          seen.push_back(r.exact[row]);
    return seen;
  }
  std::string description() const {
    return std::string(kernel::fastest().name) + " " + name_of(type) + ", " + std::to_string(sees.size()) +
           " tokens x " + std::to_string(group) + " queries, sizes " + std::to_string(key_size) + "/" +
           std::to_string(value_size) + ", " + std::to_string(runs.size()) + " runs";
  }

  /// Compares every element with double precision.
  void expect_exact(const kernel_answer& found, double tolerance = 1e-5) const {
    for (std::size_t q = 0; q < count(); ++q) {
      const std::vector<reference::row> seen = seen_by(q);
      const reference::vector expected =
          reference::attention(query(q), seen, {1.0, static_cast<double>(params.softcap)}, value_size);
      for (std::size_t i = 0; i < value_size; ++i)
        ASSERT_NEAR(static_cast<double>(found.out[q * value_size + i]), expected[i],
                    tolerance * (1.0 + std::fabs(expected[i])))
            << "query " << q << " element " << i << ", sees " << seen.size() << " rows; " << description();
      if (seen.empty()) {
        ASSERT_EQ(found.sum[q], 0.0F) << description();
        ASSERT_EQ(found.maximum[q], kernel::lowest_logit) << description();
      }
    }
  }
  void expect_exact(double tolerance = 1e-5) const { expect_exact(run_all(), tolerance); }
};

/// A test for one set and one type of rows; names itself "AVX2_f16".
struct set_and_type {
  instruction_set set;
  element_type type;
};
inline std::vector<set_and_type> sets_and_types() {
  std::vector<set_and_type> all;
  for (const instruction_set& set : instruction_sets())
    for (const element_type type : {element_type::f32, element_type::f16, element_type::bf16})
      all.push_back({set, type});
  return all;
}
inline void PrintTo(const set_and_type& p, std::ostream* out) { *out << p.set.name << "_" << name_of(p.type); }

/// Forces the set of the test's parameter.
class each_set_and_type : public testing::TestWithParam<set_and_type> {
 protected:
  void SetUp() override {
    kernel::choose(GetParam().set.bit);
    ASSERT_STREQ(kernel::fastest().name, GetParam().set.name);
  }
  void TearDown() override { kernel::choose(); }
  element_type type() const { return GetParam().type; }
  bool is_reference() const { return GetParam().set.bit == 0; }
};
class each_set : public testing::TestWithParam<instruction_set> {
 protected:
  void SetUp() override {
    kernel::choose(GetParam().bit);
    ASSERT_STREQ(kernel::fastest().name, GetParam().name);
  }
  void TearDown() override { kernel::choose(); }
};

}  // namespace headwise::test

// Tests of these are named sets/<suite>.<test>/AVX2_f16.
#define HEADWISE_FOR_EACH_SET_AND_TYPE(suite)                                                \
  INSTANTIATE_TEST_SUITE_P(sets, suite, testing::ValuesIn(headwise::test::sets_and_types()), \
                           testing::PrintToStringParamName())
#define HEADWISE_FOR_EACH_SET(suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(sets, suite, testing::ValuesIn(headwise::test::instruction_sets()), \
                           testing::PrintToStringParamName())
