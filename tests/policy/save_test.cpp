// SPDX-License-Identifier: MIT
// Summaries that are saved and loaded again: the exact bits, also of what is folded afterwards.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/core/byte_stream.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/random.hpp"
#include "support/refused.hpp"
#include "support/sizes.hpp"

namespace {

using namespace headwise;
using headwise::test::random_numbers;

/// A budget and a compensation of one's own are saved with a handful of lines.
struct newest_row {
  struct summary {
    std::vector<float> key, value;
    std::size_t count = 0;
  };
  static summary make_summary(std::size_t keys, std::size_t values) {
    return {std::vector<float>(keys), std::vector<float>(values), 0};
  }
  static void fold(summary& s, const float* key, const float* value) noexcept {
    s.key.assign(key, key + s.key.size());
    s.value.assign(value, value + s.value.size());
    ++s.count;
  }
  static std::size_t folded(const summary& s) noexcept { return s.count; }
  static std::size_t bytes(const summary& s) noexcept { return (s.key.size() + s.value.size()) * sizeof(float); }
  static summary_logit evaluate(const summary& s, const float* query, const attention_params&, float* value) noexcept {
    float logit = 0.0F;
    for (std::size_t i = 0; i < s.key.size(); ++i) logit += query[i] * s.key[i];
    for (std::size_t i = 0; i < s.value.size(); ++i) value[i] = s.value[i];
    return {logit, std::log(static_cast<float>(s.count))};
  }
  static const char* name() noexcept { return "newest_row"; }
  template <class Sink>
  static void save(const summary& s, Sink& sink) {
    sink.write(&s.count, sizeof s.count);
    sink.write(s.key.data(), s.key.size() * sizeof(float));
    sink.write(s.value.data(), s.value.size() * sizeof(float));
  }
  template <class Source>
  static void load(summary& s, Source& source) {
    source.read(&s.count, sizeof s.count);
    source.read(s.key.data(), s.key.size() * sizeof(float));
    source.read(s.value.data(), s.value.size() * sizeof(float));
  }
};

// Who can be saved, and who falls short of it in a single point.
struct no_load : newest_row {
  static void load() {}
};
struct no_save : newest_row {
  static void save() {}
};
struct saves_to_one_sink_only : newest_row {
  static void save(const summary&, memory_sink&) {}
};
struct has_a_hidden_number : newest_row {
  int rows = 0;
};
template <class C>
constexpr bool saveable = headwise::detail::has_identity<C>&& headwise::detail::saves_summaries<C>::value;
static_assert(saveable<newest_row> && saveable<mean_compensation> && saveable<moment_compensation>);
static_assert(saveable<no_compensation> && saveable<any_compensation>);
static_assert(!saveable<no_load> && !saveable<no_save> && !saveable<saves_to_one_sink_only>);
static_assert(!saveable<has_a_hidden_number>);

struct chosen_mean : any_compensation {
  chosen_mean() : any_compensation(mean_compensation{}) {}
};
struct chosen_moment : any_compensation {
  chosen_moment() : any_compensation(moment_compensation{}) {}
};
struct chosen_none : any_compensation {
  chosen_none() : any_compensation(no_compensation{}) {}
};

template <class Compensation>
class saved_summary : public testing::Test {
 protected:
  using summary = typename Compensation::summary;

  std::vector<std::byte> saved(const summary& s) const {
    memory_sink sink;
    compensation_.save(s, sink);
    return sink.bytes();
  }
  summary loaded(const std::vector<std::byte>& bytes, std::size_t keys, std::size_t values) const {
    memory_source source(bytes.data(), bytes.size());
    summary s = compensation_.make_summary(keys, values);
    compensation_.load(s, source);
    EXPECT_EQ(source.remaining(), 0U);
    return s;
  }
  void fold(summary& s, const std::vector<float>& k, const std::vector<float>& v, std::size_t rows) const {
    headwise::detail::fold_into(compensation_, s, k.data(), k.size() / rows, v.data(), v.size() / rows, rows);
  }
  /// What a query gets, as bits: a NaN equals itself.
  std::vector<std::byte> answer(const summary& s, const std::vector<float>& query, std::size_t values) const {
    std::vector<float> out(values, 0.0F);
    if (compensation_.folded(s) != 0) {
      const summary_logit logit = compensation_.evaluate(s, query.data(), {}, out.data());
      out.push_back(logit.mean_logit);
      out.push_back(logit.log_mass);
    }
    std::vector<std::byte> bits(out.size() * sizeof(float));
    std::memcpy(bits.data(), out.data(), bits.size());
    return bits;
  }

  Compensation compensation_;
};

using compensations = testing::Types<no_compensation, mean_compensation, moment_compensation, newest_row, chosen_none,
                                     chosen_mean, chosen_moment>;
struct names {
  template <class Compensation>
  static std::string GetName(int i) {
    return std::to_string(i) + "_" + Compensation{}.name();
  }
};
TYPED_TEST_SUITE(saved_summary, compensations, names);

TYPED_TEST(saved_summary, has_the_same_bits_and_goes_on_folding_like_the_first) {
  random_numbers random(1);
  for (const std::size_t keys : {1U, 3U, 8U, 64U})
    for (const std::size_t values : {1U, 8U, 40U})
      for (const std::size_t blocks : {0U, 1U, 3U}) {
        auto first = this->compensation_.make_summary(keys, values);
        const std::size_t rows = 16 * blocks;
        if (rows != 0) this->fold(first, random.gaussians(rows * keys), random.gaussians(rows * values), rows);
        const auto bytes = this->saved(first);
        auto second = this->loaded(bytes, keys, values);
        EXPECT_EQ(this->compensation_.folded(second), this->compensation_.folded(first));
        EXPECT_EQ(this->compensation_.bytes(second), this->compensation_.bytes(first));
        EXPECT_EQ(this->saved(second), bytes);
        const auto query = random.gaussians(keys);
        EXPECT_EQ(this->answer(second, query, values), this->answer(first, query, values));

        const auto more_keys = random.gaussians(32 * keys), more_values = random.gaussians(32 * values);
        this->fold(first, more_keys, more_values, 32);
        this->fold(second, more_keys, more_values, 32);
        EXPECT_EQ(this->saved(second), this->saved(first));
        EXPECT_EQ(this->answer(second, query, values), this->answer(first, query, values));
      }
}

TYPED_TEST(saved_summary, keeps_infinities_and_nans_that_rows_brought) {
  random_numbers random(2);
  auto keys = random.gaussians(16 * 8), values = random.gaussians(16 * 8);
  keys[3] = std::numeric_limits<float>::quiet_NaN();
  keys[4] = std::numeric_limits<float>::infinity();
  values[5] = -std::numeric_limits<float>::infinity();
  values[6] = std::numeric_limits<float>::quiet_NaN();
  auto first = this->compensation_.make_summary(8, 8);
  this->fold(first, keys, values, 16);
  const auto bytes = this->saved(first);
  const auto second = this->loaded(bytes, 8, 8);
  EXPECT_EQ(this->saved(second), bytes);
  const auto query = random.gaussians(8);
  EXPECT_EQ(this->answer(second, query, 8), this->answer(first, query, 8));
}

TYPED_TEST(saved_summary, a_part_of_one_is_refused) {
  random_numbers random(3);
  auto first = this->compensation_.make_summary(3, 2);
  this->fold(first, random.gaussians(16 * 3), random.gaussians(16 * 2), 16);
  const auto bytes = this->saved(first);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    auto second = this->compensation_.make_summary(3, 2);
    memory_source source(bytes.data(), length);
    EXPECT_REFUSED(this->compensation_.load(second, source), "bytes, expected");
  }
}

TYPED_TEST(saved_summary, takes_as_many_bytes_as_are_counted) {
  auto first = this->compensation_.make_summary(5, 7);
  counting_sink count;
  this->compensation_.save(first, count);
  EXPECT_EQ(count.bytes(), this->saved(first).size());
}

}  // namespace
