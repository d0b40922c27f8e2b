// SPDX-License-Identifier: MIT
#include "headwise/attend/certificate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/element/format_variant.hpp"
#include "headwise/policy/bounded_compensation.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "reference/attention.hpp"
#include "support/random.hpp"
#include "support/refused.hpp"
#include "support/sizes.hpp"
#include "support/tensor.hpp"
#include "support/tokens.hpp"

namespace {

using headwise::any_compensation;
using headwise::any_format;
using headwise::attention_params;
using headwise::bounded_compensation;
using headwise::certificate;
using headwise::fixed_budget;
using headwise::head_plan;
using headwise::head_role;
using headwise::mean_compensation;
using headwise::model_shape;
using headwise::moment_compensation;
using headwise::no_compensation;
using headwise::when_to_compress;
using headwise::test::append;
using headwise::test::random_numbers;
using headwise::test::sizes;
using headwise::test::tokens;

using bounds = std::vector<std::optional<double>>;

double distance(const reference::vector& a, const reference::vector& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

/// One query of one query head, in double: what the full cache gives, what the compressed one gives as its equations
/// say (from its kept rows and the summary's own answer), and the diagonal of the box around all values.
struct exact_outputs {
  reference::vector full, ours;
  double diagonal = 0.0;
};

template <class Cache>
exact_outputs exact_outputs_of(const Cache& cache, const tokens& rows, std::size_t position, std::size_t query_head,
                               const attention_params& params) {
  const model_shape& shape = rows.shape;
  const std::size_t kv_head = query_head / shape.group();
  const auto& head = cache.head(0, kv_head);
  const float scale = params.scale_for(shape.key_size());
  std::vector<float> query(
      rows.q.begin() + static_cast<std::ptrdiff_t>((position * shape.query_heads + query_head) * shape.key_size()),
      rows.q.begin() + static_cast<std::ptrdiff_t>((position * shape.query_heads + query_head + 1) * shape.key_size()));
  for (float& x : query) x *= scale;  // in float32, as attend does
  const reference::vector exact_query(query.begin(), query.end());
  const reference::logit_rule rule{1.0, static_cast<double>(params.softcap)};

  const auto stored = [&](const std::vector<float>& of, std::size_t token, std::size_t size) {
    std::vector<std::byte> bytes(head.format().bytes(size));
    std::vector<float> row(size);
    head.format().encode(of.data() + (token * shape.kv_heads + kv_head) * size, bytes.data(), size);
    head.format().decode(bytes.data(), row.data(), size);
    return reference::vector(row.begin(), row.end());
  };
  std::vector<reference::row> all, kept;
  const std::vector<std::size_t> kept_positions = cache.kept_positions(0, kv_head);
  for (std::size_t token = 0; token <= position; ++token) {
    all.push_back({stored(rows.k, token, shape.key_size()), stored(rows.v, token, shape.value_size()), 0.0});
    if (std::binary_search(kept_positions.begin(), kept_positions.end(), token)) kept.push_back(all.back());
  }
  exact_outputs found;
  found.full = reference::attention(exact_query, all, rule, shape.value_size());

  reference::vector low = all[0].value, high = low;
  const auto widen = [&](const reference::vector& value) {
    for (std::size_t i = 0; i < value.size(); ++i)
      low[i] = std::min(low[i], value[i]), high[i] = std::max(high[i], value[i]);
  };
  for (const reference::row& row : all) widen(row.value);
  if (head.folded() != 0) {
    std::vector<float> value(shape.value_size());
    const headwise::summary_logit weight = head.evaluate(query.data(), params, value.data());
    // The summary's row: a key that no query meets, and all of its logit as a bias.
    const auto mean = static_cast<double>(weight.mean_logit);
    const double capped = rule.softcap > 0.0 ? rule.softcap * std::tanh(mean / rule.softcap) : mean;
    kept.push_back({reference::vector(shape.key_size()), reference::vector(value.begin(), value.end()),
                    capped + static_cast<double>(weight.log_mass)});
    widen(kept.back().value);
  }
  found.ours = reference::attention(exact_query, kept, rule, shape.value_size());
  found.diagonal = distance(low, high);
  return found;
}

struct totals {
  std::size_t bounds = 0;
  std::size_t wrong = 0;
  double tightest = std::numeric_limits<double>::max();  ///< least ratio of bound to error
};

/// The last `queries` queries: every bound holds of the exact outputs and, but for float32, of what attend gives; none
/// exceeds the diagonal.
template <class Cache>
totals expect_holds(const Cache& cache, const tokens& rows, std::size_t length, std::size_t queries,
                    const attention_params& params, const std::string& what) {
  const model_shape& shape = rows.shape;
  const bounds found = certificate(cache, 0, rows.queries(length - queries, queries), params);
  EXPECT_EQ(found.size(), queries * shape.query_heads) << what;
  const std::vector<float> attended =
      headwise::test::attended(cache, 0, rows.queries(length - queries, queries), headwise::serial{}, params);
  totals sum;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].has_value()) << what;
    if (!found[i]) continue;
    const exact_outputs exact =
        exact_outputs_of(cache, rows, length - queries + i / shape.query_heads, i % shape.query_heads, params);
    const double error = distance(exact.ours, exact.full);
    const double rounding = 1e-13 * (1.0 + exact.diagonal);  // of the reference itself
    ++sum.bounds;
    sum.wrong += *found[i] + rounding < error;
    if (error > 1e-9) sum.tightest = std::min(sum.tightest, *found[i] / error);
    EXPECT_LE(*found[i], exact.diagonal * (1.0 + 1e-9)) << what;
    const auto start = attended.begin() + static_cast<std::ptrdiff_t>(i * shape.value_size());
    const reference::vector out(start, start + static_cast<std::ptrdiff_t>(shape.value_size()));
    // attend's logits are float32
    EXPECT_LE(distance(out, exact.ours), 1e-4 * (1.0 + exact.diagonal)) << what;
  }
  EXPECT_EQ(sum.wrong, 0U) << what;
  return sum;
}

/// What keys, values and queries look like. Every kind fills a sequence of random numbers of spread 1.
struct kind {
  const char* name;
  std::function<void(tokens&, random_numbers&)> change;
};

void each(std::vector<float>& numbers, const std::function<float(float)>& change) {
  for (float& x : numbers) x = change(x);
}

const std::vector<kind>& kinds() {
  static const std::vector<kind> all = {
      {"plain", [](tokens&, random_numbers&) {}},
      {"wide keys", [](tokens& t, random_numbers&) { each(t.k, [](float x) { return 6.0F * x; }); }},
      {"narrow keys", [](tokens& t, random_numbers&) { each(t.k, [](float x) { return 1.0F + 0.01F * x; }); }},
      {"offsets",
       [](tokens& t, random_numbers&) {
         each(t.k, [](float x) { return x - 3.0F; });
         each(t.v, [](float x) { return x + 30.0F; });
       }},
      {"outlier key",
       [](tokens& t, random_numbers& random) {
         const std::size_t token = t.count / 3 + random.below(t.count / 4);
         for (std::size_t head = 0; head < t.shape.kv_heads; ++head) t.key(token, head)[0] += 20.0F;
       }},
      {"outlier value",
       [](tokens& t, random_numbers& random) {
         const std::size_t token = t.count / 3 + random.below(t.count / 4);
         for (std::size_t head = 0; head < t.shape.kv_heads; ++head) t.value(token, head)[0] += 1000.0F;
       }},
      {"equal keys",
       [](tokens& t, random_numbers&) {
         const std::size_t row = t.shape.kv_heads * t.shape.key_size();
         for (std::size_t i = row; i < t.k.size(); ++i) t.k[i] = t.k[i % row];
       }},
      {"equal values",
       [](tokens& t, random_numbers&) {
         const std::size_t row = t.shape.kv_heads * t.shape.value_size();
         for (std::size_t i = row; i < t.v.size(); ++i) t.v[i] = t.v[i % row];
       }},
      {"values that follow keys",
       [](tokens& t, random_numbers&) {
         for (std::size_t i = 0; i < t.v.size(); ++i) t.v[i] += 2.0F * t.k[i % t.k.size()];
       }},
      {"zeros", [](tokens& t, random_numbers&) { each(t.k, [](float) { return 0.0F; }); }},
  };
  return all;
}

tokens made(const kind& of, const model_shape& shape, std::size_t count, std::uint32_t seed) {
  tokens rows = headwise::test::random_tokens(shape, count, seed);
  random_numbers random(seed);
  of.change(rows, random);
  return rows;
}

template <class Format, class Compensation>
auto compressed(const tokens& rows, std::size_t length, std::size_t sinks, std::size_t window,
                const Compensation& compensation, Format format = Format{},
                when_to_compress when = when_to_compress::after_prompt) {
  auto cache = headwise::make_cache<Format>(head_plan(rows.shape, head_role::local, sinks), fixed_budget{window},
                                            compensation, when, format);
  append(cache, rows, 0, length);
  cache.compress();
  return cache;
}

template <class Format, class Compensation>
void check_kinds(const Compensation& compensation, Format format = Format{}) {
  std::uint32_t seed = 100;
  totals sum;
  for (const kind& each_kind : kinds())
    for (const float softcap : {0.0F, 2.0F, 30.0F})
      for (const std::size_t dim : sizes{8, 12}) {
        const model_shape shape{1, 4, 2, dim, 0};
        const tokens rows = made(each_kind, shape, 90, ++seed);
        const auto cache = compressed(rows, 90, 4, 20, compensation, format);
        attention_params params;
        params.softcap = softcap;
        const totals found = expect_holds(cache, rows, 90, 5, params,
                                          std::string(each_kind.name) + ", softcap " + std::to_string(softcap));
        sum.bounds += found.bounds;
        sum.tightest = std::min(sum.tightest, found.tightest);
      }
  EXPECT_EQ(sum.bounds, kinds().size() * 3 * 2 * 5 * 4);
  std::printf("least bound over error: %.3f\n", sum.tightest);
}

TEST(certificate, holds_for_rows_of_many_kinds) {
  check_kinds<headwise::float32>(bounded_compensation(mean_compensation{}));
  check_kinds<headwise::float32>(bounded_compensation(moment_compensation{}));
  check_kinds<headwise::float16>(bounded_compensation(mean_compensation{}));
  check_kinds<headwise::bfloat16>(bounded_compensation(moment_compensation{}));
  check_kinds<any_format>(bounded_compensation(any_compensation(moment_compensation{})),
                          any_format(headwise::float16{}));
}

TEST(certificate, holds_for_every_group_and_head_size) {
  std::uint32_t seed = 300;
  for (std::size_t group = 1; group <= 8; ++group)
    for (const std::size_t dim : sizes{1, 7, 64}) {
      const model_shape shape{1, 2 * group, 2, dim, dim + 3};
      const tokens rows = headwise::test::random_tokens(shape, 150, ++seed);
      const auto cache = compressed<headwise::float16>(rows, 150, 2, 30, bounded_compensation(moment_compensation{}));
      attention_params params;
      params.scale = group % 2 == 0 ? 0.3F : 0.0F;
      expect_holds(cache, rows, 150, 3, params, "group " + std::to_string(group) + ", size " + std::to_string(dim));
    }
}

/// While a cache rolls: rows leave one by one for the mean, 16 at a time for the moment.
template <class Compensation>
void check_rolling(const Compensation& compensation) {
  const model_shape shape{1, 4, 2, 16, 0};
  const tokens rows = headwise::test::random_tokens(shape, 120, 7);
  auto cache = headwise::make_cache<headwise::bfloat16>(head_plan(shape, head_role::local, 1), fixed_budget{10},
                                                        compensation, when_to_compress::every_append);
  for (std::size_t n = 0; n < 120; ++n) {
    append(cache, rows, n, 1);
    const totals found = expect_holds(cache, rows, n + 1, 1, {}, "at length " + std::to_string(n + 1));
    if (cache.head(0, 0).folded() == 0) {
      EXPECT_EQ(found.tightest, std::numeric_limits<double>::max());  // no error at all
    }
  }
  EXPECT_GE(cache.head(0, 0).folded(), 96U);
}

TEST(certificate, holds_while_rows_leave) {
  check_rolling(bounded_compensation(mean_compensation{}));
  check_rolling(bounded_compensation(moment_compensation{}));
}

/// Somebody else's compensation: the newest folded row speaks for all. It is far off, and its bounds hold.
struct last_row_compensation {
  struct summary {
    std::vector<float> key, value;
    std::size_t count = 0;
  };
  static summary make_summary(std::size_t keys, std::size_t values) {
    return {std::vector<float>(keys), std::vector<float>(values), 0};
  }
  static void fold(summary& s, const float* key, const float* value) {
    std::copy_n(key, s.key.size(), s.key.begin());
    std::copy_n(value, s.value.size(), s.value.begin());
    ++s.count;
  }
  static std::size_t folded(const summary& s) { return s.count; }
  static std::size_t bytes(const summary& s) { return (s.key.size() + s.value.size()) * sizeof(float); }
  static headwise::summary_logit evaluate(const summary& s, const float* query, const attention_params&, float* out) {
    float logit = 0.0F;
    for (std::size_t i = 0; i < s.key.size(); ++i) logit += query[i] * s.key[i];
    std::copy(s.value.begin(), s.value.end(), out);
    return {logit, std::log(static_cast<float>(s.count))};
  }
};

TEST(certificate, holds_for_a_compensation_of_ones_own) {
  for (const float softcap : {0.0F, 3.0F}) {
    const tokens rows = headwise::test::random_tokens({1, 4, 2, 8, 0}, 90, 8);
    const auto cache = compressed<headwise::float32>(rows, 90, 4, 20, bounded_compensation(last_row_compensation{}));
    attention_params params;
    params.softcap = softcap;
    expect_holds(cache, rows, 90, 20, params, "last row");
  }
}

/// The last folded row is an outlier, and the folded values are far from the kept one: the summary weighs far too much,
/// so the error is largest where the folded rows weigh least.
TEST(certificate, holds_where_a_summary_weighs_too_much) {
  tokens rows({1, 1, 1, 1, 0}, 20);
  rows.k[18] = 4.0F;
  rows.v[19] = 100.0F;
  rows.q[19] = 1.0F;
  const auto cache = compressed<headwise::float32>(rows, 20, 0, 1, bounded_compensation(last_row_compensation{}));
  expect_holds(cache, rows, 20, 1, {}, "too heavy");
  const exact_outputs exact = exact_outputs_of(cache, rows, 19, 0, {});
  EXPECT_GT(distance(exact.ours, exact.full), 1.0);
}

/// Nothing overflows, and what the rounding of float64 could turn round is not promised.
TEST(certificate, holds_for_logits_as_large_as_floats) {
  random_numbers random(9);
  std::size_t certain = 0;
  for (const float most : {100.0F, 1e4F, 1e30F, 3e38F})
    for (const float softcap : {0.0F, 20.0F})
      for (int repeat = 0; repeat < 20; ++repeat) {
        const model_shape shape{1, 1, 1, 4, 0};
        tokens rows = headwise::test::random_tokens(shape, 40, random.bits());
        const auto scaled = [&](std::vector<float>& numbers, float unit) {
          for (float& x : numbers) x = (2.0F * random.uniform() - 1.0F) * unit;
        };
        scaled(rows.k, std::sqrt(most) / 2.0F);
        scaled(rows.q, std::sqrt(most) / 2.0F);
        if (repeat % 2 == 0)  // one of the kept rows outweighs all others
          for (std::size_t i = 0; i < 4; ++i)
            rows.k[38 * 4 + i] = std::copysign(std::sqrt(most) / 2.0F, rows.q[39 * 4 + i]);
        const auto cache = compressed<headwise::float32>(rows, 40, 2, 10, bounded_compensation(mean_compensation{}));
        attention_params params;
        params.scale = 1.0F;
        params.softcap = softcap;
        const bounds found = certificate(cache, 0, rows.queries(39, 1), params);
        ASSERT_TRUE(found[0].has_value()) << most;
        const exact_outputs exact = exact_outputs_of(cache, rows, 39, 0, params);
        EXPECT_LE(distance(exact.ours, exact.full), *found[0] + 1e-13) << most << ", softcap " << softcap;
        EXPECT_LE(*found[0], exact.diagonal * (1.0 + 1e-9));
        certain += softcap == 0.0F && *found[0] < 1e-6 * exact.diagonal;
      }
  EXPECT_GE(certain, 3U * 10U);  // where it outweighs them, and not only by a little, nothing was lost
}

TEST(certificate, is_next_to_nothing_where_the_summary_is_exact) {
  double most = 0.0;
  const auto check = [&](const tokens& rows, std::size_t folded, const auto& compensation, float softcap) {
    const auto cache = compressed<headwise::float32>(rows, rows.count, 4, rows.count - 4 - folded, compensation);
    ASSERT_EQ(cache.head(0, 0).folded(), folded);
    attention_params params;
    params.softcap = softcap;
    const bounds found = certificate(cache, 0, rows.queries(rows.count - 2, 2), params);
    for (const std::optional<double>& bound : found) {
      ASSERT_TRUE(bound.has_value());
      EXPECT_LE(*bound, 1e-6) << folded << " rows";
      most = std::max(most, *bound);
    }
    expect_holds(cache, rows, rows.count, 2, params, "exact");
  };
  const model_shape shape{1, 2, 1, 64, 0};
  for (const float softcap : {0.0F, 30.0F}) {
    check(headwise::test::random_tokens(shape, 40, 10), 1, bounded_compensation(mean_compensation{}),
          softcap);  // D = 1
    for (const std::size_t folded : sizes{2, 17, 100, 112}) {
      tokens rows = headwise::test::random_tokens(shape, folded + 40, 11);
      for (std::size_t i = 5; i < 4 + folded; ++i) std::copy_n(rows.key(4), 64, rows.key(i));
      check(rows, folded, bounded_compensation(mean_compensation{}), softcap);  // equal keys, whatever the values
      if (folded % 16 == 0) check(rows, folded, bounded_compensation(moment_compensation{}), softcap);
      for (std::size_t i = 5; i < 4 + folded; ++i) std::copy_n(rows.value(4), 64, rows.value(i));
      check(rows, folded, bounded_compensation(mean_compensation{}), softcap);  // equal rows
    }
  }
  std::printf("largest bound where the summary is exact: %.1e\n", most);
}

TEST(certificate, is_0_where_nothing_has_left) {
  const model_shape shape{1, 4, 2, 8, 0};
  const tokens rows = headwise::test::random_tokens(shape, 60, 12);
  head_plan plan(shape);
  plan.set({0, 1}, head_role::retrieval);
  auto cache =
      headwise::make_cache<headwise::float16>(plan, fixed_budget{20}, bounded_compensation(mean_compensation{}));
  append(cache, rows, 0, 60);
  for (const std::optional<double>& bound : certificate(cache, 0, rows.queries(0, 60))) EXPECT_EQ(bound, 0.0);
  cache.compress();
  const bounds found = certificate(cache, 0, rows.queries(59, 1));
  EXPECT_GT(found[0], 0.0);
  EXPECT_GT(found[1], 0.0);
  EXPECT_EQ(found[2], 0.0);  // the retrieval head's
  EXPECT_EQ(found[3], 0.0);
}

TEST(certificate, says_none_where_nothing_is_known) {
  const tokens rows = headwise::test::random_tokens({1, 2, 1, 8, 0}, 60, 13);
  const auto expect_none = [&](const auto& compensation) {
    const auto cache = compressed<headwise::float32>(rows, 60, 4, 20, compensation);
    for (const std::optional<double>& bound : certificate(cache, 0, rows.queries(50, 10)))
      EXPECT_FALSE(bound.has_value());
  };
  expect_none(no_compensation{});  // dropped
  expect_none(bounded_compensation(no_compensation{}));
  expect_none(bounded_compensation(any_compensation(no_compensation{})));
  expect_none(mean_compensation{});  // no bounds
  expect_none(any_compensation(moment_compensation{}));
}

TEST(certificate, says_none_where_a_number_is_not_finite) {
  const model_shape shape{1, 1, 1, 8, 0};
  for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t token : sizes{0, 30, 59})  // a sink, a folded row, the newest
      for (std::vector<float> tokens::*const part : {&tokens::k, &tokens::v, &tokens::q}) {
        tokens rows = headwise::test::random_tokens(shape, 60, 14);
        (rows.*part)[token * 8 + 3] = odd;
        const auto cache = compressed<headwise::float32>(rows, 60, 4, 20, bounded_compensation(mean_compensation{}));
        const bool unseen = part == &tokens::q && token != 59;
        EXPECT_EQ(certificate(cache, 0, rows.queries(59, 1))[0].has_value(), unseen) << odd << " in row " << token;
      }
}

/// With keys and values at two ends, and one kept row on the far side, the bound is the error itself: so a range that
/// is too narrow by one part in ten million would make it wrong, and these tests would say so.
struct narrow_compensation : bounded_compensation<mean_compensation> {
  void fold(summary& s, const float* keys, const float* values, std::size_t rows) const noexcept {
    for (std::size_t i = 0; i < rows; ++i) {
      const float key = keys[i] == 0.0F ? 0.0F : std::nextafter(keys[i], 0.0F);
      const float value = values[i] == 0.0F ? 0.0F : std::nextafter(values[i], 0.0F);
      bounded_compensation::fold(s, &key, &value, 1);
    }
  }
};

TEST(certificate, is_the_error_itself_in_the_worst_case_so_that_narrow_ranges_show) {
  const model_shape shape{1, 1, 1, 1, 0};
  for (const float query : {0.5F, 1.0F, 4.0F}) {
    tokens rows(shape, 30);
    for (std::size_t i = 0; i < 30; ++i) {
      rows.k[i] = rows.v[i] = i < 29 && i % 3 == 0 ? 1.0F : 0.0F;
      rows.q[i] = query;
    }
    rows.v[29] = -2.0F;
    attention_params params;
    params.scale = 1.0F;
    const auto cache = compressed<headwise::float32>(rows, 30, 0, 1, bounded_compensation(mean_compensation{}));
    const auto narrow = compressed<headwise::float32>(rows, 30, 0, 1, narrow_compensation{});
    const exact_outputs exact = exact_outputs_of(cache, rows, 29, 0, params);
    const double error = distance(exact.ours, exact.full);
    const double bound = certificate(cache, 0, rows.queries(29, 1), params)[0].value();
    EXPECT_GE(bound, error);
    EXPECT_LE(bound, error * (1.0 + 1e-10));
    EXPECT_LT(certificate(narrow, 0, rows.queries(29, 1), params)[0].value(), error);
  }
}

/// A mask that begins behind all rows that left: nothing is missing. One that begins among them: attend refuses it.
TEST(certificate, looks_where_the_mask_looks) {
  const tokens rows = headwise::test::random_tokens({1, 1, 1, 8, 0}, 60, 15);
  const auto cache = compressed<headwise::float32>(rows, 60, 4, 20, no_compensation{});
  const auto bounded = compressed<headwise::float32>(rows, 60, 4, 20, bounded_compensation(mean_compensation{}));
  const auto at = [&](const auto& of, std::size_t position, const auto& mask) {
    attention_params params;
    params.first_position = position;
    return certificate(of, 0, rows.queries(position, 1), params, mask)[0];
  };
  EXPECT_EQ(at(cache, 59, headwise::windowed{20}), 0.0);
  EXPECT_EQ(at(cache, 59, headwise::windowed{21}), std::nullopt);
  EXPECT_EQ(at(bounded, 59, headwise::windowed{20}), 0.0);
  EXPECT_EQ(at(bounded, 59, headwise::windowed{21}), std::nullopt);
  EXPECT_EQ(at(bounded, 59, headwise::windowed{60}), at(bounded, 59, headwise::causal{}));
  EXPECT_GT(at(bounded, 39, headwise::causal{}), 0.0);  // sees the sinks and the summary
  EXPECT_EQ(at(bounded, 38, headwise::causal{}), std::nullopt);
}

/// Rows that the model's own window hides are nothing lost.
TEST(certificate, is_0_in_a_windowed_layer) {
  const tokens rows = headwise::test::random_tokens({1, 2, 1, 8, 0}, 60, 20);
  head_plan plan(rows.shape);
  plan.set_window(0, 16);
  auto cache = headwise::make_cache<headwise::float16>(plan, fixed_budget{20}, mean_compensation{});
  append(cache, rows, 0, 60);
  cache.compress();
  ASSERT_GT(cache.head(0, 0).dropped(), 0U);
  for (const std::optional<double>& bound : certificate(cache, 0, rows.queries(59, 1))) EXPECT_EQ(bound, 0.0);
}

/// After retain(), with the rows that it did not keep folded or dropped, and after truncate() has put some back.
TEST(certificate, holds_after_retain_and_truncate) {
  const model_shape shape{1, 4, 2, 16, 0};
  const tokens rows = headwise::test::random_tokens(shape, 120, 19);
  headwise::cache_options options;
  options.rollback_reserve = 20;
  auto cache = headwise::make_cache<headwise::float16>(head_plan(shape), fixed_budget{20},
                                                       bounded_compensation(moment_compensation{}),
                                                       when_to_compress::after_prompt, {}, options);
  append(cache, rows, 0, 100);
  cache.compress();
  ASSERT_GT(cache.head(0, 0).folded(), 0U);
  expect_holds(cache, rows, 100, 3, {}, "compressed");
  ASSERT_TRUE(cache.truncate(90));
  expect_holds(cache, rows, 90, 3, {}, "rolled back");
  std::vector<std::size_t> some;
  for (const std::size_t position : cache.kept_positions(0, 0))
    if (position % 3 == 0 || position > 85) some.push_back(position);
  auto dropped = cache;
  cache.retain(0, 0, some, headwise::other_rows::fold);
  expect_holds(cache, rows, 90, 3, {}, "retained");
  dropped.retain(0, 0, some, headwise::other_rows::drop);
  const bounds found = certificate(dropped, 0, rows.queries(89, 1));
  EXPECT_FALSE(found[0].has_value());
  EXPECT_TRUE(found[2].has_value());
}

/// A chunk is its queries one by one, in whatever type and strides they come.
TEST(certificate, of_a_chunk_is_that_of_each_query) {
  const model_shape shape{1, 4, 2, 8, 0};
  const tokens rows = headwise::test::random_tokens(shape, 60, 16);
  const auto cache = compressed<headwise::float16>(rows, 60, 4, 20, bounded_compensation(mean_compensation{}));
  const bounds chunk = certificate(cache, 0, rows.queries(52, 8));
  for (std::size_t token = 0; token < 8; ++token) {
    attention_params params;
    params.first_position = 52 + token;
    const bounds single = certificate(cache, 0, rows.queries(52 + token, 1), params);
    for (std::size_t head = 0; head < 4; ++head) EXPECT_EQ(single[head], chunk[token * 4 + head]);
  }
  const headwise::test::tensor strided(8, 4, 8, {rows.q.begin() + 52 * 32, rows.q.end()}, headwise::element_type::f32,
                                       headwise::test::order::heads_first);
  EXPECT_EQ(certificate(cache, 0, strided.view()), chunk);
  EXPECT_TRUE(certificate(cache, 0, rows.queries(60, 0)).empty());
}

TEST(certificate, refuses_what_does_not_fit) {
  const tokens rows = headwise::test::random_tokens({1, 2, 1, 8, 0}, 30, 17);
  const tokens wrong = headwise::test::random_tokens({1, 3, 1, 8, 0}, 40, 17);
  const auto cache = compressed<headwise::float32>(rows, 30, 4, 20, bounded_compensation(mean_compensation{}));
  EXPECT_REFUSED(certificate(cache, 1, rows.queries(29, 1)), "certificate", "no layer 1");
  EXPECT_REFUSED(certificate(cache, 0, wrong.queries(0, 1)), "certificate", "3 heads");
  EXPECT_REFUSED(certificate(cache, 0, headwise::packed_rows(wrong.q.data(), 31, 2, 8)), "31", "30 tokens");
  attention_params params;
  params.first_position = 25;
  EXPECT_REFUSED(certificate(cache, 0, rows.queries(24, 6), params), "25", "30 tokens");
  params.softcap = -1.0F;
  EXPECT_REFUSED(certificate(cache, 0, rows.queries(29, 1), params), "softcap");
}

TEST(certificate, costs_two_rows_of_float32_a_head_where_it_is_asked_for) {
  const model_shape shape{1, 2, 2, 64, 0};
  const tokens rows = headwise::test::random_tokens(shape, 60, 18);
  const auto plain = compressed<headwise::float16>(rows, 60, 4, 20, mean_compensation{}).report();
  const auto bounded =
      compressed<headwise::float16>(rows, 60, 4, 20, bounded_compensation(mean_compensation{})).report();
  EXPECT_EQ(bounded.summary_bytes - plain.summary_bytes, 2 * (2 * (64 + 64) * sizeof(float) + 16));
}

}  // namespace
