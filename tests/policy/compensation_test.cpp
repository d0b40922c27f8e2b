// SPDX-License-Identifier: MIT
#include "headwise/policy/compensation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "headwise/core/attention_params.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "reference/attention.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::test::sizes;

using headwise::any_compensation;
using headwise::attention_params;
using headwise::mean_compensation;
using headwise::moment_compensation;
using headwise::no_compensation;
using headwise::summary_logit;

// The trait that require_compensation() asks: what is one, and what falls short of one in a single point.
struct complete {
  struct summary {};
  static summary make_summary(std::size_t, std::size_t) { return {}; }
  static void fold(summary&, const float*, const float*) {}
  static std::size_t folded(const summary&) { return 0; }
  static std::size_t bytes(const summary&) { return 0; }
  static summary_logit evaluate(const summary&, const float*, const attention_params&, float*) { return {}; }
};
struct no_summary_type {
  static int make_summary(std::size_t, std::size_t) { return {}; }
  static void fold(int&, const float*, const float*) {}
  static std::size_t folded(int) { return 0; }
  static std::size_t bytes(int) { return 0; }
  static summary_logit evaluate(int, const float*, const attention_params&, float*) { return {}; }
};
struct folds_blocks : complete {
  static void fold(summary&, const float*, const float*, std::size_t) {}
};
struct names_its_blocks : folds_blocks {
  static std::size_t fold_rows() { return 8; }
};
struct takes_rows_or_blocks : names_its_blocks {
  using complete::fold;
  using folds_blocks::fold;
};
struct names_blocks_but_folds_rows : complete {
  static std::size_t fold_rows() { return 8; }
};
struct folds_blocks_of_doubles : complete {
  static void fold(summary&, const double*, const double*, std::size_t) {}
};
struct gives_a_plain_logit : complete {
  static float evaluate(const summary&, const float*, const attention_params&, float*) { return 0.0F; }
};
struct folds_non_const : complete {
  void fold(summary&, const float*, const float*) {}
};
struct folds_doubles : complete {
  static void fold(summary&, const double*, const double*) {}
};
struct summary_that_cannot_be_copied : complete {
  struct summary {
    summary() = default;
    summary(const summary&) = delete;
    summary& operator=(const summary&) = delete;
  };
  static summary make_summary(std::size_t, std::size_t) { return {}; }
  static void fold(summary&, const float*, const float*) {}
  static std::size_t folded(const summary&) { return 0; }
  static std::size_t bytes(const summary&) { return 0; }
  static summary_logit evaluate(const summary&, const float*, const attention_params&, float*) { return {}; }
};
template <class C>
constexpr bool is_compensation = headwise::detail::is_compensation<C>::value;
static_assert(is_compensation<mean_compensation> && is_compensation<no_compensation> &&
              is_compensation<moment_compensation> && is_compensation<any_compensation> && is_compensation<complete> &&
              is_compensation<folds_blocks> && is_compensation<names_its_blocks> &&
              is_compensation<takes_rows_or_blocks>);
static_assert(!is_compensation<names_blocks_but_folds_rows> && !is_compensation<folds_blocks_of_doubles>);
static_assert(!is_compensation<int> && !is_compensation<no_summary_type> && !is_compensation<gives_a_plain_logit> &&
              !is_compensation<folds_non_const> && !is_compensation<folds_doubles> &&
              !is_compensation<summary_that_cannot_be_copied>);

/// Folded rows as float32 for the library and in double for the reference.
struct folded_rows {
  std::size_t key_size;
  std::size_t value_size;
  std::vector<std::vector<float>> keys;
  std::vector<std::vector<float>> values;
  std::vector<reference::row> exact;

  folded_rows(std::size_t of_keys, std::size_t of_values) : key_size(of_keys), value_size(of_values) {}
  void add(const std::vector<float>& key, const std::vector<float>& value) {
    keys.push_back(key);
    values.push_back(value);
    exact.push_back({{key.begin(), key.end()}, {value.begin(), value.end()}, 0.0});
  }
  template <class Compensation>
  typename Compensation::summary fold(const Compensation& compensation) const {
    auto summary = compensation.make_summary(key_size, value_size);
    fold(compensation, summary, headwise::detail::fold_rows(compensation));
    return summary;
  }
  /// So many rows at a time; the last may be fewer.
  template <class Compensation>
  void fold(const Compensation& compensation, typename Compensation::summary& summary, std::size_t at_a_time) const {
    std::vector<float> key_block, value_block;
    for (std::size_t first = 0; first < keys.size(); first += at_a_time) {
      key_block.clear();
      value_block.clear();
      const std::size_t end = std::min(first + at_a_time, keys.size());
      for (std::size_t i = first; i < end; ++i) {
        key_block.insert(key_block.end(), keys[i].begin(), keys[i].end());
        value_block.insert(value_block.end(), values[i].begin(), values[i].end());
      }
      compensation.fold(summary, key_block.data(), value_block.data(), end - first);
    }
  }
};

folded_rows random_rows(std::size_t count, std::size_t key_size, std::size_t value_size, std::uint32_t seed,
                        float spread = 1.0F) {
  headwise::test::random_numbers random(seed);
  folded_rows rows(key_size, value_size);
  for (std::size_t i = 0; i < count; ++i)
    rows.add(random.gaussians(key_size, spread, 0.5F), random.gaussians(value_size, 1.0F, -0.25F));
  return rows;
}

struct answer {
  double logit;  ///< capped, and ln D behind
  std::vector<float> value;
};

/// What enters the softmax for a query that is scaled already.
template <class Compensation>
answer evaluate(const Compensation& compensation, const typename Compensation::summary& summary,
                const std::vector<float>& query, std::size_t value_size, float softcap = 0.0F) {
  attention_params params;
  params.scale = 1.0F;
  params.softcap = softcap;
  answer result{0.0, std::vector<float>(value_size)};
  const summary_logit weight = compensation.evaluate(summary, query.data(), params, result.value.data());
  result.logit = static_cast<double>(params.capped(weight.mean_logit)) + static_cast<double>(weight.log_mass);
  return result;
}

void expect_row(const answer& found, const reference::row& expected, const reference::vector& query,
                reference::logit_rule rule, double tolerance) {
  const double logit = reference::logit(query, expected.key, rule) + expected.bias;
  EXPECT_NEAR(found.logit, logit, tolerance * (1.0 + std::fabs(logit)));
  for (std::size_t i = 0; i < found.value.size(); ++i)
    ASSERT_NEAR(static_cast<double>(found.value[i]), expected.value[i],
                tolerance * (1.0 + std::fabs(expected.value[i])))
        << "element " << i;
}

struct rows_case {
  std::size_t count, key_size, value_size;
};
const rows_case rows_cases[] = {{1, 1, 1}, {2, 3, 5}, {17, 64, 64}, {100, 64, 32}, {1000, 33, 65}, {3000, 128, 128}};

TEST(mean_compensation, equals_the_equations) {
  headwise::test::random_numbers random(1);
  for (const rows_case& c : rows_cases) {
    const folded_rows rows = random_rows(c.count, c.key_size, c.value_size, 2);
    const auto summary = rows.fold(mean_compensation{});
    EXPECT_EQ(mean_compensation::folded(summary), c.count);
    for (const float softcap : {0.0F, 3.0F}) {
      const auto query = random.gaussians(c.key_size);
      const reference::vector exact_query(query.begin(), query.end());
      expect_row(evaluate(mean_compensation{}, summary, query, c.value_size, softcap), reference::mean_row(rows.exact),
                 exact_query, {1.0, static_cast<double>(softcap)}, 2e-6);
    }
  }
}

TEST(moment_compensation, equals_the_equations) {
  headwise::test::random_numbers random(2);
  for (const rows_case& c : rows_cases) {
    const folded_rows rows = random_rows(c.count, c.key_size, c.value_size, 3);
    const auto summary = rows.fold(moment_compensation{});
    EXPECT_EQ(moment_compensation::folded(summary), c.count);
    EXPECT_GE(moment_compensation::bytes(summary), c.key_size * c.value_size * sizeof(float));
    for (const float softcap : {0.0F, 3.0F}) {
      const auto query = random.gaussians(c.key_size);
      const reference::vector exact_query(query.begin(), query.end());
      const reference::logit_rule rule{1.0, static_cast<double>(softcap)};
      expect_row(evaluate(moment_compensation{}, summary, query, c.value_size, softcap),
                 reference::moment_row(exact_query, rows.exact, rule), exact_query, rule, 1e-5);
    }
  }
}

TEST(no_compensation, stands_for_nothing_and_costs_nothing) {
  const folded_rows rows = random_rows(10, 4, 4, 1);
  const auto summary = rows.fold(no_compensation{});
  EXPECT_EQ(no_compensation::folded(summary), 0U);
  EXPECT_EQ(no_compensation::bytes(summary), 0U);
}

template <class Compensation>
class compensations : public testing::Test {};
using summarising = testing::Types<mean_compensation, moment_compensation>;
struct compensation_names {
  template <class Compensation>
  static std::string GetName(int) {
    return std::is_same_v<Compensation, mean_compensation> ? "mean" : "moment";
  }
};
TYPED_TEST_SUITE(compensations, summarising, compensation_names);

TYPED_TEST(compensations, one_folded_row_is_the_token_itself) {
  headwise::test::random_numbers random(4);
  for (int i = 0; i < 20; ++i) {
    const folded_rows rows = random_rows(1, 64, 48, static_cast<std::uint32_t>(10 + i), 5.0F);
    const auto query = random.gaussians(64);
    const auto found = evaluate(TypeParam{}, rows.fold(TypeParam{}), query, 48);
    EXPECT_EQ(found.value, rows.values[0]);  // bit for bit
    const double logit = reference::dot({query.begin(), query.end()}, rows.exact[0].key);
    EXPECT_NEAR(found.logit, logit, 1e-6 * (1.0 + std::fabs(logit)));
  }
}

// COMP-01's general law
TYPED_TEST(compensations, equal_folded_keys_are_exact_for_any_number_of_rows) {
  headwise::test::random_numbers random(5);
  const std::vector<float> key = random.gaussians(64);
  const std::vector<float> query = random.gaussians(64);
  const reference::vector exact_query(query.begin(), query.end());
  for (const std::size_t count : sizes{1, 2, 17, 100, 5000}) {
    folded_rows rows(64, 16);
    for (std::size_t i = 0; i < count; ++i) rows.add(key, random.gaussians(16));
    const auto found = evaluate(TypeParam{}, rows.fold(TypeParam{}), query, 16);
    const auto exact = reference::attention(exact_query, rows.exact, {}, 16);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(static_cast<double>(found.value[i]), exact[i], 1e-6);
    const double logit = reference::dot(exact_query, rows.exact[0].key) + std::log(static_cast<double>(count));
    EXPECT_NEAR(found.logit, logit, 2e-6 * (1.0 + std::fabs(logit)));
  }
}

TYPED_TEST(compensations, a_copy_of_a_summary_is_independent) {
  const folded_rows rows = random_rows(10, 8, 8, 6);
  const TypeParam compensation;
  const auto summary = rows.fold(compensation);
  const std::vector<float> query(8, 0.5F);
  const auto before = evaluate(compensation, summary, query, 8);
  auto copy = summary;
  for (int i = 0; i < 5; ++i) compensation.fold(copy, rows.values[0].data(), rows.keys[0].data(), 1);
  const auto after = evaluate(compensation, summary, query, 8);
  EXPECT_EQ(before.logit, after.logit);
  EXPECT_EQ(before.value, after.value);
  EXPECT_EQ(compensation.folded(copy), 15U);
  EXPECT_NE(evaluate(compensation, copy, query, 8).value, before.value);
}

/// One huge key among small ones, first, in the middle or last: what the others say must not drown in its square.
TEST(moment_compensation, an_outlier_key_cancels_nothing) {
  headwise::test::random_numbers random(7);
  const std::size_t dim = 16;
  for (const std::size_t place : sizes{0, 50, 99}) {
    folded_rows rows(dim, dim);
    for (std::size_t i = 0; i < 100; ++i) {
      std::vector<float> key = random.gaussians(dim);
      if (i == place) key[3] = 1e4F;
      rows.add(key, random.gaussians(dim));
    }
    std::vector<float> query = random.gaussians(dim, 0.1F);
    query[3] = 0.0F;  // the query does not see the outlier, so nothing of 1e4 may reach the answer
    const reference::vector exact_query(query.begin(), query.end());
    expect_row(evaluate(moment_compensation{}, rows.fold(moment_compensation{}), query, dim),
               reference::moment_row(exact_query, rows.exact, {}), exact_query, {}, 2e-6);
  }
}

TEST(moment_compensation, a_large_common_offset_cancels_nothing) {
  headwise::test::random_numbers random(8);
  folded_rows rows(8, 8);
  for (std::size_t i = 0; i < 500; ++i)
    rows.add(random.gaussians(8, 1.0F, 1000.0F), random.gaussians(8, 1.0F, -2000.0F));
  const std::vector<float> query = random.gaussians(8, 0.1F);
  const reference::vector exact_query(query.begin(), query.end());
  const auto found = evaluate(moment_compensation{}, rows.fold(moment_compensation{}), query, 8);
  const auto expected = reference::moment_row(exact_query, rows.exact, {});
  for (std::size_t i = 0; i < 8; ++i)  // the last place of 2000 is 1.2e-4
    EXPECT_NEAR(static_cast<double>(found.value[i]), expected.value[i], 3e-4);
}

/// Every element of C_vk beside double precision, against what its key and its value spread.
void expect_covariance(const folded_rows& rows, double tolerance) {
  const auto summary = rows.fold(moment_compensation{});
  const std::vector<reference::vector> exact = reference::covariance(rows.exact);
  const reference::row mean = reference::mean_row(rows.exact);
  reference::vector key_spread(rows.key_size), value_spread(rows.value_size);
  for (const reference::row& row : rows.exact) {
    for (std::size_t j = 0; j < rows.key_size; ++j) key_spread[j] += std::pow(row.key[j] - mean.key[j], 2);
    for (std::size_t i = 0; i < rows.value_size; ++i) value_spread[i] += std::pow(row.value[i] - mean.value[i], 2);
  }
  std::vector<float> unit(rows.key_size);
  for (std::size_t j = 0; j < rows.key_size; ++j) {
    unit[j] = 1.0F;
    std::vector<float> found(rows.value_size);
    summary.covariance_times(unit.data(), found.data());
    for (std::size_t i = 0; i < rows.value_size; ++i) {
      const double spread = std::sqrt(key_spread[j] * value_spread[i]) / static_cast<double>(rows.exact.size());
      ASSERT_NEAR(static_cast<double>(found[i]), exact[i][j], tolerance * spread)
          << "value " << i << ", key " << j << " of " << rows.exact.size() << " rows";
    }
    unit[j] = 0.0F;
  }
}

TEST(moment_compensation, its_covariance_is_that_of_double_precision) {
  headwise::test::random_numbers random(12);
  for (const std::size_t count : sizes{1, 2, 15, 16, 17, 33, 160, 1000})
    for (const std::size_t dim : sizes{1, 3, 64, 65, 130}) {
      folded_rows rows(dim, dim == 3 ? 70 : dim);
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<float> value = random.gaussians(rows.value_size);
        const std::vector<float> key = random.gaussians(dim);
        value[0] += key[dim - 1];
        rows.add(key, value);
      }
      expect_covariance(rows, 1e-5);
    }
}

TEST(moment_compensation, its_covariance_holds_beside_outliers_offsets_and_over_100000_rows) {
  headwise::test::random_numbers random(13);
  const std::size_t dim = 12;
  for (const std::size_t place : sizes{0, 7, 16, 999}) {  // first, in the first block, first of a block, last
    folded_rows rows(dim, dim);
    for (std::size_t i = 0; i < 1000; ++i) {
      std::vector<float> key = random.gaussians(dim);
      if (i == place) key[3] = 1e4F;
      rows.add(key, random.gaussians(dim));
    }
    expect_covariance(rows, 1e-5);
  }
  folded_rows far(dim, dim);
  for (std::size_t i = 0; i < 1000; ++i)
    far.add(random.gaussians(dim, 1.0F, 1000.0F), random.gaussians(dim, 1.0F, -2e4F));
  expect_covariance(far, 1e-5);
  folded_rows many(4, 3);  // and they drift: what was far from the first mean is near the later one
  for (std::size_t i = 0; i < 100000; ++i) {
    std::vector<float> key = random.gaussians(4, 1.0F, static_cast<float>(i) * 1e-3F);
    std::vector<float> value = random.gaussians(3, 1.0F, 5.0F);
    value[0] += 0.5F * key[1];
    many.add(key, value);
  }
  expect_covariance(many, 2e-5);
}

/// Blocks are what the bits depend on; how many come at a time is not.
TEST(compensations_in_blocks, any_number_of_whole_blocks_gives_the_same_bits) {
  const folded_rows rows = random_rows(640, 24, 40, 14);
  const auto check = [&](const auto& compensation) {
    const std::size_t block = headwise::detail::fold_rows(compensation);
    const auto expected = rows.fold(compensation);
    const std::vector<float> query(24, 0.25F);
    for (const std::size_t blocks : sizes{2, 3, 4, 40}) {
      auto summary = compensation.make_summary(24, 40);
      rows.fold(compensation, summary, block * blocks);
      EXPECT_EQ(compensation.folded(summary), 640U);
      EXPECT_EQ(evaluate(compensation, summary, query, 40).logit, evaluate(compensation, expected, query, 40).logit);
      EXPECT_EQ(evaluate(compensation, summary, query, 40).value, evaluate(compensation, expected, query, 40).value);
    }
  };
  EXPECT_EQ(headwise::detail::fold_rows(mean_compensation{}), 1U);
  EXPECT_EQ(headwise::detail::fold_rows(moment_compensation{}), 16U);
  check(mean_compensation{});
  check(moment_compensation{});
  check(any_compensation(moment_compensation{}));
  check(any_compensation(mean_compensation{}));
}

/// Distance between a summary's value and exact attention over the folded rows, root mean square over many queries.
template <class Compensation>
double value_error(const folded_rows& rows, const std::vector<std::vector<float>>& queries) {
  const Compensation compensation;
  const auto summary = rows.fold(compensation);
  double sum = 0.0;
  for (const auto& query : queries) {
    const auto found = evaluate(compensation, summary, query, rows.value_size);
    const auto exact = reference::attention({query.begin(), query.end()}, rows.exact, {}, rows.value_size);
    for (std::size_t i = 0; i < rows.value_size; ++i)
      sum += std::pow(static_cast<double>(found.value[i]) - exact[i], 2);
  }
  return std::sqrt(sum / static_cast<double>(queries.size()));
}

/// Gaussian keys, values that depend on them in part: the first-order term is worth most where keys spread little.
TEST(moment_compensation, is_closer_to_the_attention_of_the_folded_rows_than_the_mean) {
  const std::size_t dim = 32;
  struct {
    float spread;        // of the logits
    double improvement;  // at least
  } const cases[] = {{0.1F, 8.0}, {0.3F, 4.0}, {1.0F, 1.3}};
  for (const auto& c : cases) {
    headwise::test::random_numbers random(9);
    folded_rows rows(dim, dim);
    for (std::size_t i = 0; i < 2000; ++i) {
      const std::vector<float> key = random.gaussians(dim);
      std::vector<float> value = random.gaussians(dim);
      for (std::size_t j = 0; j < dim; ++j) value[j] += key[(j + 5) % dim];
      rows.add(key, value);
    }
    std::vector<std::vector<float>> queries;
    for (int i = 0; i < 50; ++i)
      queries.push_back(random.gaussians(dim, c.spread / std::sqrt(static_cast<float>(dim))));
    const double mean = value_error<mean_compensation>(rows, queries);
    const double moment = value_error<moment_compensation>(rows, queries);
    EXPECT_LT(moment * c.improvement, mean) << "spread " << c.spread;
  }
}

template <class Compensation>
void expect_variant_equals(const Compensation& member) {
  const any_compensation variant = member;
  const folded_rows rows = random_rows(40, 12, 20, 11);
  EXPECT_EQ(headwise::detail::fold_rows(member), headwise::detail::fold_rows(variant));
  const auto a = rows.fold(member);
  const auto b = rows.fold(variant);
  EXPECT_EQ(member.folded(a), variant.folded(b));
  EXPECT_EQ(member.bytes(a), variant.bytes(b));
  const std::vector<float> query(12, 0.25F);
  const auto from_member = evaluate(member, a, query, 20, 5.0F);
  const auto from_variant = evaluate(variant, b, query, 20, 5.0F);
  EXPECT_EQ(from_member.logit, from_variant.logit);
  EXPECT_EQ(from_member.value, from_variant.value);
}

/// A user's own, which takes single rows: the sum of the first key elements.
struct one_row_at_a_time {
  struct summary {
    std::size_t rows = 0;
    float sum = 0.0F;
  };
  static summary make_summary(std::size_t, std::size_t) { return {}; }
  static void fold(summary& s, const float* key, const float* value) { s.sum += key[0] - value[0], ++s.rows; }
  static std::size_t folded(const summary& s) { return s.rows; }
  static std::size_t bytes(const summary&) { return sizeof(summary); }
  static summary_logit evaluate(const summary& s, const float*, const attention_params&, float*) {
    return {s.sum, 0.0F};
  }
};

TEST(compensation_variant, hands_single_rows_to_a_member_that_takes_them) {
  using variant = headwise::compensation_variant<one_row_at_a_time, moment_compensation>;
  const folded_rows rows = random_rows(40, 12, 20, 15);
  const variant compensation = one_row_at_a_time{};
  EXPECT_EQ(compensation.fold_rows(), 1U);
  EXPECT_EQ(variant(moment_compensation{}).fold_rows(), 16U);
  auto summary = compensation.make_summary(12, 20);
  rows.fold(compensation, summary, 40);
  auto expected = one_row_at_a_time::make_summary(12, 20);
  for (std::size_t i = 0; i < 40; ++i) one_row_at_a_time::fold(expected, rows.keys[i].data(), rows.values[i].data());
  EXPECT_EQ(compensation.folded(summary), 40U);
  EXPECT_EQ(evaluate(compensation, summary, std::vector<float>(12), 20).logit, static_cast<double>(expected.sum));
}

TEST(compensation_variant, equals_its_member) {
  expect_variant_equals(mean_compensation{});
  expect_variant_equals(moment_compensation{});
  expect_variant_equals(no_compensation{});
}

}  // namespace
