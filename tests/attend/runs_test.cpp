// SPDX-License-Identifier: MIT
// What attends need not be our cache: anything that offers runs will do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/policy/compensation.hpp"
#include "support/random.hpp"

namespace {

constexpr std::size_t dim = 12;

/// One head of hand-made runs: each a list of rows with one bias.
struct handmade {
  struct part {
    std::size_t position;
    std::vector<float> keys, values;
    float bias;
  };
  std::vector<part> parts;
  std::size_t seen = 0;
  std::size_t left_until = 0;

  headwise::model_shape shape() const { return {1, 2, 1, dim, 0}; }
  const handmade& head(std::size_t, std::size_t) const { return *this; }
  std::size_t length() const { return seen; }
  std::size_t runs() const { return parts.size(); }
  headwise::run run_at(std::size_t i) const {
    const part& p = parts[i];
    return {p.position, p.keys.size() / dim, reinterpret_cast<const std::byte*>(p.keys.data()),
            reinterpret_cast<const std::byte*>(p.values.data()), p.bias};
  }
  headwise::float32 format() const { return {}; }
  std::size_t folded() const { return 0; }
  std::size_t kept_from() const { return left_until; }
  headwise::summary_logit evaluate(const float*, const headwise::attention_params&, float*) const { return {}; }
};

std::vector<float> repeated(const std::vector<float>& row, std::size_t times) {
  std::vector<float> rows;
  for (; times > 0; --times) rows.insert(rows.end(), row.begin(), row.end());
  return rows;
}

std::vector<float> attended(const handmade& cache, const std::vector<float>& q,
                            const headwise::attention_params& params = {}) {
  const std::size_t tokens = q.size() / (2 * dim);
  std::vector<float> out(q.size(), 1e30F);
  headwise::attend_schedule schedule;
  headwise::attend(cache, 0, headwise::packed_rows(q.data(), tokens, 2, dim),
                   headwise::packed_output(out.data(), tokens, 2, dim), schedule, headwise::serial{}, params);
  return out;
}

TEST(runs, one_row_with_bias_ln_count_equals_that_many_equal_rows) {
  headwise::test::random_numbers random(1);
  for (const float softcap : {0.0F, 2.0F})
    for (std::size_t count = 1; count <= 60; count += 7) {
      const std::vector<float> first_key = random.gaussians(dim);
      const std::vector<float> first_value = random.gaussians(dim);
      const std::vector<float> last_keys = random.gaussians(10 * dim);
      const std::vector<float> last_values = random.gaussians(10 * dim);
      handmade equal;
      equal.seen = 74;
      equal.parts.push_back({0, repeated(first_key, count), repeated(first_value, count), 0.0F});
      equal.parts.push_back({64, last_keys, last_values, 0.0F});
      handmade merged = equal;
      merged.parts[0] = {0, first_key, first_value, std::log(static_cast<float>(count))};
      headwise::attention_params params;
      params.softcap = softcap;
      const std::vector<float> q = random.gaussians(3 * 2 * dim);
      const std::vector<float> a = attended(equal, q, params);
      const std::vector<float> b = attended(merged, q, params);
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 3e-6F) << count;
    }
}

TEST(runs, rows_may_be_split_into_runs_in_any_way) {
  headwise::test::random_numbers random(2);
  const std::vector<float> keys = random.gaussians(128 * dim);
  const std::vector<float> values = random.gaussians(128 * dim);
  const std::vector<float> q = random.gaussians(20 * 2 * dim);
  const auto split = [&](std::size_t most) {
    handmade cache;
    cache.seen = 128;
    for (std::size_t first = 0, rows = 0; first < 128; first += rows) {
      rows = 1 + random.below(most);
      if (rows > 64 - first % 64) rows = 64 - first % 64;
      const auto begin = static_cast<std::ptrdiff_t>(first * dim);
      const auto end = static_cast<std::ptrdiff_t>((first + rows) * dim);
      cache.parts.push_back(
          {first, {keys.begin() + begin, keys.begin() + end}, {values.begin() + begin, values.begin() + end}, 0.0F});
    }
    return cache;
  };
  const std::vector<float> whole = attended(split(64), q);
  for (const std::size_t most : {std::size_t{1}, std::size_t{3}, std::size_t{20}}) {
    const std::vector<float> found = attended(split(most), q);
    for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(found[i], whole[i], 3e-6F) << most;
  }
}

TEST(runs, a_head_without_rows_gives_zeros) {  // SOFT-01
  handmade cache;
  cache.seen = 5;
  EXPECT_EQ(attended(cache, std::vector<float>(2 * 2 * dim, 1.0F)), std::vector<float>(2 * 2 * dim, 0.0F));
}

}  // namespace
