// SPDX-License-Identifier: MIT
#include "headwise/policy/bounded_compensation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "headwise/core/byte_stream.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "reference/attention.hpp"
#include "support/random.hpp"
#include "support/sizes.hpp"

namespace {

using headwise::any_compensation;
using headwise::attention_params;
using headwise::bounded_compensation;
using headwise::folded_bounds;
using headwise::mean_compensation;
using headwise::moment_compensation;
using headwise::no_compensation;
using headwise::summary_logit;
using headwise::test::random_numbers;
using headwise::test::sizes;

/// A compensation and what it made of rows.
template <class Compensation>
struct folded_by {
  Compensation compensation;
  typename Compensation::summary summary;
};

/// Rows side by side, as compensations take them.
struct row_list {
  std::size_t key_size, value_size;
  std::vector<float> keys, values;

  std::size_t count() const { return keys.size() / key_size; }
  void add(const std::vector<float>& key, const std::vector<float>& value) {
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
  }
  std::vector<reference::row> exact() const {
    std::vector<reference::row> rows;
    for (std::size_t i = 0; i < count(); ++i) {
      const float* const k = keys.data() + i * key_size;
      const float* const v = values.data() + i * value_size;
      rows.push_back({{k, k + key_size}, {v, v + value_size}, 0.0});
    }
    return rows;
  }
  template <class Compensation>
  folded_by<Compensation> fold(const Compensation& compensation) const {
    folded_by<Compensation> folded{compensation, compensation.make_summary(key_size, value_size)};
    compensation.fold(folded.summary, keys.data(), values.data(), count());
    return folded;
  }
};

row_list random_rows(std::size_t count, std::size_t key_size, std::size_t value_size, std::uint32_t seed) {
  random_numbers random(seed);
  return {key_size, value_size, random.gaussians(count * key_size), random.gaussians(count * value_size, 1.0F, 0.5F)};
}

attention_params with_softcap(float softcap) {
  attention_params params;
  params.scale = 1.0F;
  params.softcap = softcap;
  return params;
}

struct found_bounds {
  double least_mass, most_mass;  ///< logs
  double longest;
  std::vector<double> least, most;
};
template <class Compensation>
found_bounds bounds_of(const folded_by<Compensation>& folded, const std::vector<float>& query, std::size_t value_size,
                       float softcap = 0.0F) {
  found_bounds found{1.0, 0.0, 0.0, std::vector<double>(value_size), std::vector<double>(value_size)};
  const auto mass = headwise::detail::bounds_of(folded.compensation, folded.summary, query.data(),
                                                with_softcap(softcap), found.least.data(), found.most.data());
  EXPECT_TRUE(mass.has_value());
  if (!mass) return found;
  found.least_mass = mass->least_log_mass;
  found.most_mass = mass->most_log_mass;
  found.longest = mass->longest_value;
  return found;
}

/// The folded rows' own attention, in double.
struct own_attention {
  double log_mass;
  reference::vector out;
};
own_attention attention_of(const row_list& rows, const std::vector<float>& query, float softcap = 0.0F) {
  const reference::vector exact_query(query.begin(), query.end());
  const reference::logit_rule rule{1.0, static_cast<double>(softcap)};
  const std::vector<reference::row> exact = rows.exact();
  double most = -HUGE_VAL, sum = 0.0;
  for (const reference::row& row : exact) most = std::fmax(most, reference::logit(exact_query, row.key, rule));
  for (const reference::row& row : exact) sum += std::exp(reference::logit(exact_query, row.key, rule) - most);
  return {most + std::log(sum), reference::attention(exact_query, exact, rule, rows.value_size)};
}

/// But for the rounding of the reference itself.
bool holds(const found_bounds& bounds, const own_attention& exact) {
  const auto between = [](double least, double x, double most) {
    const double rounding = 1e-13 * (1.0 + std::fabs(x));
    return least <= x + rounding && x - rounding <= most;
  };
  bool all = between(bounds.least_mass, exact.log_mass, bounds.most_mass);
  for (std::size_t i = 0; i < exact.out.size(); ++i)
    all = all && between(bounds.least[i], exact.out[i], bounds.most[i]);
  return all && std::sqrt(reference::dot(exact.out, exact.out)) <= bounds.longest * (1.0 + 1e-13);
}

/// Keeps nothing of its rows but their number: has no sums to offer.
struct counting_compensation {
  struct summary {
    std::size_t rows = 0;
  };
  static summary make_summary(std::size_t, std::size_t) { return {}; }
  static void fold(summary& s, const float*, const float*) { ++s.rows; }
  static std::size_t folded(const summary& s) { return s.rows; }
  static std::size_t bytes(const summary&) { return sizeof(summary); }
  static summary_logit evaluate(const summary&, const float*, const attention_params&, float*) { return {}; }
};

static_assert(headwise::detail::is_compensation<bounded_compensation<mean_compensation>>::value &&
              headwise::detail::is_compensation<bounded_compensation<any_compensation>>::value &&
              headwise::detail::is_compensation<bounded_compensation<counting_compensation>>::value);

template <class Compensation>
void expect_same_answers(const Compensation& inner) {
  const bounded_compensation<Compensation> bounded(inner);
  const row_list rows = random_rows(48, 12, 20, 1);
  const auto a = rows.fold(inner).summary;
  const auto b = rows.fold(bounded).summary;
  EXPECT_EQ(headwise::detail::fold_rows(bounded), headwise::detail::fold_rows(inner));
  EXPECT_EQ(bounded.folded(b), inner.folded(a));
  EXPECT_EQ(bounded.bytes(b), inner.bytes(a) + 2 * (12 + 20) * sizeof(float) + 16);
  const std::vector<float> query(12, 0.25F);
  std::vector<float> from_inner(20, 7.0F), from_bounded(20, 7.0F);
  const summary_logit x = inner.evaluate(a, query.data(), with_softcap(5.0F), from_inner.data());
  const summary_logit y = bounded.evaluate(b, query.data(), with_softcap(5.0F), from_bounded.data());
  EXPECT_EQ(x.mean_logit, y.mean_logit);
  EXPECT_EQ(x.log_mass, y.log_mass);
  EXPECT_EQ(from_inner, from_bounded);
}

TEST(bounded_compensation, answers_as_what_it_bounds_and_says_what_it_costs) {
  expect_same_answers(mean_compensation{});
  expect_same_answers(moment_compensation{});
  expect_same_answers(no_compensation{});
  expect_same_answers(any_compensation(moment_compensation{}));
}

/// Rows of many kinds: few and many, wide and narrow keys, an offset, an outlier, equal keys, equal values.
template <class Visit>
void each_kind_of_rows(Visit&& visit) {
  random_numbers random(2);
  for (const std::size_t count : sizes{1, 2, 3, 16, 200})
    for (const std::size_t dim : sizes{1, 2, 8, 64})
      for (const float spread : {0.0F, 0.01F, 1.0F, 30.0F})
        for (const char* kind : {"plain", "offset", "outlier", "equal values"}) {
          row_list rows{dim, dim, {}, {}};
          const std::vector<float> value = random.gaussians(dim);
          const std::vector<float> key = random.gaussians(dim);
          const bool offset = std::string(kind) == "offset";
          for (std::size_t i = 0; i < count; ++i) {
            std::vector<float> k = random.gaussians(dim, spread, offset ? 100.0F : 0.0F);
            for (std::size_t j = 0; j < dim; ++j) k[j] += key[j];
            if (std::string(kind) == "outlier" && i == count / 2) k[0] += 50.0F;
            rows.add(
                k, std::string(kind) == "equal values" ? value : random.gaussians(dim, 1.0F, offset ? -1000.0F : 0.0F));
          }
          visit(rows, std::string(kind) + ", " + std::to_string(count) + " rows of " + std::to_string(dim) +
                          ", spread " + std::to_string(spread));
        }
}

TEST(bounded_compensation, its_bounds_hold) {
  random_numbers random(3);
  each_kind_of_rows([&](const row_list& rows, const std::string& kind) {
    const auto with_sums = rows.fold(bounded_compensation(mean_compensation{}));
    const auto without = rows.fold(bounded_compensation(counting_compensation{}));
    for (const float softcap : {0.0F, 0.5F, 3.0F, 50.0F})
      for (const float reach : {0.1F, 1.0F, 10.0F}) {
        const std::vector<float> query = random.gaussians(rows.key_size, reach);
        const own_attention exact = attention_of(rows, query, softcap);
        const found_bounds tight = bounds_of(with_sums, query, rows.value_size, softcap);
        const found_bounds loose = bounds_of(without, query, rows.value_size, softcap);
        const bool both = holds(tight, exact) && holds(loose, exact);
        ASSERT_TRUE(both) << kind << ", softcap " << softcap << ", reach " << reach << ": " << tight.least_mass
                          << " <= " << exact.log_mass << " <= " << tight.most_mass;
        EXPECT_LE(tight.most_mass, loose.most_mass + 1e-9 * (1.0 + std::fabs(loose.most_mass)));
        EXPECT_GE(tight.least_mass, loose.least_mass - 1e-9 * (1.0 + std::fabs(loose.least_mass)));
      }
  });
}

TEST(bounded_compensation, equal_keys_leave_no_doubt) {
  random_numbers random(4);
  const std::vector<float> key = random.gaussians(64);
  for (const std::size_t count : sizes{1, 2, 100, 5000}) {
    row_list rows{64, 16, {}, {}};
    for (std::size_t i = 0; i < count; ++i) rows.add(key, random.gaussians(16));
    const std::vector<float> query = random.gaussians(64, 0.3F);
    for (const float softcap : {0.0F, 5.0F}) {
      const own_attention exact = attention_of(rows, query, softcap);
      const found_bounds found = bounds_of(rows.fold(bounded_compensation(moment_compensation{})), query, 16, softcap);
      EXPECT_TRUE(holds(found, exact));
      EXPECT_LT(found.most_mass - found.least_mass, 1e-9);
      for (std::size_t i = 0; i < 16; ++i) EXPECT_LT(found.most[i] - found.least[i], 1e-9) << count << " rows";
    }
  }
}

/// Keys at two ends, and values that follow them: the worst that the ranges and means allow, so the bounds are reached.
row_list two_ends(float step = 1.0F, std::size_t upper = 3, std::size_t lower = 5) {
  row_list rows{1, 1, {}, {}};
  for (std::size_t i = 0; i < upper + lower; ++i) rows.add({i < upper ? step : 0.0F}, {i < upper ? step : 0.0F});
  return rows;
}

TEST(bounded_compensation, its_upper_bounds_are_reached) {
  for (const float softcap : {0.0F, 50.0F})
    for (const float q : {0.1F, 1.0F, 8.0F}) {
      const row_list rows = two_ends();
      const own_attention exact = attention_of(rows, {q}, softcap);
      const found_bounds found = bounds_of(rows.fold(bounded_compensation(mean_compensation{})), {q}, 1, softcap);
      EXPECT_TRUE(holds(found, exact));
      EXPECT_NEAR(found.most_mass, exact.log_mass, 1e-12);
      EXPECT_NEAR(found.most[0], exact.out[0], 1e-12);
      const found_bounds turned = bounds_of(rows.fold(bounded_compensation(mean_compensation{})), {-q}, 1, softcap);
      EXPECT_NEAR(turned.least[0], attention_of(rows, {-q}, softcap).out[0], 1e-12);
    }
}

/// So ranges that are narrower by one part in ten million are wrong, and the test above would say so.
TEST(bounded_compensation, ranges_that_are_too_narrow_show) {
  for (const float q : {0.1F, 1.0F, 8.0F}) {
    const own_attention exact = attention_of(two_ends(), {q});
    EXPECT_TRUE(holds(bounds_of(two_ends().fold(bounded_compensation(mean_compensation{})), {q}, 1), exact));
    const row_list narrow = two_ends(std::nextafter(1.0F, 0.0F));
    EXPECT_FALSE(holds(bounds_of(narrow.fold(bounded_compensation(mean_compensation{})), {q}, 1), exact));
  }
}

TEST(bounded_compensation, knows_the_longest_value) {
  for (const std::size_t size : sizes{1, 7, 8, 20}) {
    row_list rows = random_rows(50, 4, size, 9);
    double longest = 0.0;
    for (const reference::row& row : rows.exact()) longest = std::fmax(longest, reference::dot(row.value, row.value));
    const found_bounds found =
        bounds_of(rows.fold(bounded_compensation(mean_compensation{})), {1.0F, 1.0F, 1.0F, 1.0F}, size);
    EXPECT_NEAR(found.longest, std::sqrt(longest), 1e-11);
  }
}

TEST(bounded_compensation, takes_any_number_of_whole_blocks_at_a_time) {
  const row_list rows = random_rows(640, 24, 40, 5);
  const std::vector<float> query(24, 0.25F);
  const auto check = [&](const auto& compensation) {
    const found_bounds expected = bounds_of(rows.fold(compensation), query, 40);
    for (const std::size_t at_a_time : sizes{16, 64, 320}) {
      auto folded = row_list{24, 40, {}, {}}.fold(compensation);
      for (std::size_t first = 0; first < 640; first += at_a_time)
        compensation.fold(folded.summary, rows.keys.data() + first * 24, rows.values.data() + first * 40, at_a_time);
      const found_bounds found = bounds_of(folded, query, 40);
      EXPECT_EQ(found.least_mass, expected.least_mass);
      EXPECT_EQ(found.most_mass, expected.most_mass);
      EXPECT_EQ(found.longest, expected.longest);
      EXPECT_EQ(found.least, expected.least);
      EXPECT_EQ(found.most, expected.most);
    }
  };
  check(bounded_compensation(mean_compensation{}));
  check(bounded_compensation(moment_compensation{}));
  check(bounded_compensation(counting_compensation{}));
}

/// Inside a variant or around one: the same bounds.
TEST(bounded_compensation, composes_with_a_variant) {
  const row_list rows = random_rows(48, 12, 20, 6);
  const std::vector<float> query(12, 0.5F);
  const auto inside = headwise::compensation_variant<bounded_compensation<moment_compensation>, mean_compensation>(
      bounded_compensation(moment_compensation{}));
  const bounded_compensation<any_compensation> around{any_compensation(moment_compensation{})};
  const found_bounds expected = bounds_of(rows.fold(bounded_compensation(moment_compensation{})), query, 20);
  for (const found_bounds& found : {bounds_of(rows.fold(inside), query, 20), bounds_of(rows.fold(around), query, 20)}) {
    EXPECT_EQ(found.least_mass, expected.least_mass);
    EXPECT_EQ(found.most_mass, expected.most_mass);
    EXPECT_EQ(found.longest, expected.longest);
    EXPECT_EQ(found.least, expected.least);
    EXPECT_EQ(found.most, expected.most);
  }
}

template <class Compensation>
bool has_none(const folded_by<Compensation>& folded, std::size_t size) {
  std::vector<double> least(size), most(size);
  const std::vector<float> query(size, 1.0F);
  return !headwise::detail::bounds_of(folded.compensation, folded.summary, query.data(), with_softcap(0.0F),
                                      least.data(), most.data());
}

TEST(bounded_compensation, who_remembers_no_ranges_has_no_bounds) {
  const row_list rows = random_rows(16, 4, 4, 7);
  EXPECT_TRUE(has_none(rows.fold(mean_compensation{}), 4));
  EXPECT_TRUE(has_none(rows.fold(any_compensation(moment_compensation{})), 4));
  EXPECT_FALSE(has_none(rows.fold(bounded_compensation(mean_compensation{})), 4));
}

TEST(bounded_compensation, a_row_that_is_no_finite_number_leaves_no_bounds) {
  for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()})
    for (const bool key : {false, true}) {
      row_list rows = random_rows(16, 4, 4, 8);
      (key ? rows.keys : rows.values)[5] = odd;
      EXPECT_TRUE(has_none(rows.fold(bounded_compensation(mean_compensation{})), 4));
      EXPECT_TRUE(has_none(rows.fold(bounded_compensation(counting_compensation{})), 4));
    }
}

TEST(bounded_compensation, a_saved_summary_has_the_same_bounds) {
  const bounded_compensation<moment_compensation> compensation;
  EXPECT_EQ(headwise::detail::identity(compensation), "bounded(moment(16))");
  const row_list rows = random_rows(32, 4, 4, 9);
  const auto folded = rows.fold(compensation);
  headwise::memory_sink sink;
  compensation.save(folded.summary, sink);
  auto read = folded;
  read.summary = compensation.make_summary(4, 4);
  headwise::memory_source source(sink.bytes().data(), sink.bytes().size());
  compensation.load(read.summary, source);
  EXPECT_EQ(source.remaining(), 0U);
  const std::vector<float> query(4, 0.5F);
  const found_bounds expected = bounds_of(folded, query, 0), found = bounds_of(read, query, 0);
  EXPECT_EQ(found.least_mass, expected.least_mass);
  EXPECT_EQ(found.most_mass, expected.most_mass);
  EXPECT_EQ(found.least, expected.least);
  EXPECT_EQ(found.most, expected.most);
  EXPECT_EQ(found.longest, expected.longest);
}

}  // namespace
