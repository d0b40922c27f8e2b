// SPDX-License-Identifier: MIT
// Random operations on caches, each compared with a plain list of rows (support/row_model.hpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "headwise/element/format_variant.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/row_model.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

using cache_type = kv_cache<any_format, row_model::budget, any_compensation>;

/// What happened in all trials: a test that never folds or never refuses would prove little.
struct tally {
  std::size_t operations = 0, rows_left = 0, folds = 0, refusals = 0, no_memory = 0, no_budget = 0, copies = 0,
              with_done = 0, with_refused = 0, outputs = 0;
};

class trial {
 public:
  trial(unsigned seed, tally& counts) : bits_(seed), counts_(counts), shape_(random_shape()), format_(random_format()) {
    const when_to_compress ways[] = {when_to_compress::after_prompt, when_to_compress::every_append,
                                     when_to_compress::frozen};
    const when_to_compress when = ways[below(3)];
    const policies p = random_policies();
    pairs_.push_back(
        {cache_type(p.plan, p.budget, p.compensation, when, format_), row_model(p.plan, p.budget, p.kind, when)});
  }

  void run(std::size_t operations) {
    for (std::size_t i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      ++counts_.operations;
      operation(pairs_[below(pairs_.size())]);
      if (::testing::Test::HasFatalFailure()) return;
      if (i % 16 == 0)  // what one did must not show in the others
        for (const pair& each : pairs_) compare(each);
    }
  }

 private:
  struct pair {
    cache_type cache;
    row_model model;
  };
  struct policies {
    head_plan plan;
    row_model::budget budget;
    any_compensation compensation;
    row_model::summary kind;
  };
  struct no_budget : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  std::size_t below(std::size_t limit) { return bits_() % limit; }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return *(choices.begin() + below(choices.size()));
  }

  model_shape random_shape() {
    model_shape shape;
    shape.layers = 1 + below(2);
    shape.kv_heads = 1 + below(3);
    shape.query_heads = shape.kv_heads * (1 + below(3));
    shape.head_dim = one_of<std::size_t>({1, 2, 3, 8, 17});
    shape.value_dim = one_of<std::size_t>({0, 1, 4, 9});
    return shape;
  }
  any_format random_format() { return one_of<any_format>({float32{}, float16{}, bfloat16{}}); }

  policies random_policies() {
    head_plan plan(shape_, head_role::local, one_of<std::size_t>({0, 1, 2, 4, 4, 63, 64, 65}));
    for (std::size_t layer = 0; layer < shape_.layers; ++layer)
      for (std::size_t head = 0; head < shape_.kv_heads; ++head)
        if (below(4) == 0) plan.set({layer, head}, head_role::retrieval);
    const std::size_t window = one_of<std::size_t>({0, 1, 2, 5, 16, 63, 64, 65, 100});
    row_model::budget budget;
    switch (below(6)) {
      case 0: budget = razor_budget{window, 3}; break;
      case 1: budget = [window](head_id head, std::size_t) { return window + 7 * head.kv_head; }; break;
      case 2: budget = [](head_id, std::size_t seen) { return seen < 150 ? 75 - seen / 2 : std::size_t{0}; }; break;
      case 3:
        budget = [](head_id, std::size_t seen) { return seen % 30 < 15 ? std::size_t{40} : std::size_t{3}; };
        break;
      case 4:
        if (below(4) == 0) {
          budget = unlimited_budget{};
          break;
        }
        [[fallthrough]];
      default: budget = fixed_budget{window};
    }
    // Every budget can be told to refuse.
    budget = [wrapped = budget, refuses = refuses_](head_id head, std::size_t seen) {
      if (*refuses) throw no_budget("the budget refuses");
      return wrapped(head, seen);
    };
    switch (below(3)) {
      case 0: return {plan, budget, no_compensation{}, row_model::summary::none};
      case 1: return {plan, budget, mean_compensation{}, row_model::summary::mean};
      default: return {plan, budget, moment_compensation{}, row_model::summary::moment};
    }
  }

  float stored(float x) const {
    std::byte bytes[sizeof x];
    format_.encode(&x, bytes, 1);
    format_.decode(bytes, &x, 1);
    return x;
  }

  /// Runs `change` on the cache, sometimes with a budget that refuses or with too little memory. True if it was done;
  /// else nothing may have changed.
  template <class Change>
  bool attempt(pair& of, Change&& change) {
    const std::size_t fault = below(16);
    if (fault > 1) {
      change(of.cache);
      return true;
    }
    const auto before = visible_state(of.cache);
    bool done = true;
    try {
      if (fault == 0) memory().allow = static_cast<long>(below(4));
      *refuses_ = fault == 1;
      change(of.cache);
    } catch (const std::bad_alloc&) {
      done = false;
      ++counts_.no_memory;
    } catch (const no_budget&) {
      done = false;
      ++counts_.no_budget;
    }
    memory().allow = -1;
    *refuses_ = false;
    if (!done) {
      EXPECT_TRUE(visible_state(of.cache) == before);
    }
    return done;
  }

  void operation(pair& of) {
    const std::size_t choice = below(100);
    if (choice < 50) return append_and_attend(of, 1);
    if (choice < 66) return append_and_attend(of, one_of<std::size_t>({2, 3, 5, 12, 31, 64, 65}));
    if (choice < 76) return compress(of);
    if (choice < 84) return copy(of);
    if (choice < 92) return with(of);
    refused(of);
  }

  void append_and_attend(pair& of, std::size_t n) {
    tokens rows = random_tokens(shape_, n, static_cast<unsigned>(bits_()));
    const std::size_t left_before = rows_left(of.model);
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      const std::size_t length = of.model.length(layer);
      if (length + n > 260) return;  // long enough; others go on
      const std::size_t position = below(2) == 0 ? length : cache_type::next;
      const bool done =
          attempt(of, [&](cache_type& c) { c.append(layer, rows.keys(0, n), rows.values(0, n), position); });
      if (!done) continue;  // the layers now differ, as after a step that failed half-way
      of.model.append(layer, rows, 0, n, [this](float x) { return stored(x); });
      attend_to(of, layer, rows, n);
    }
    count_left(of, left_before);
    compare(of);
  }

  /// Some queries of the rows just appended, and sometimes one from further back.
  void attend_to(const pair& of, std::size_t layer, const tokens& rows, std::size_t n) {
    attention_params params;
    if (below(4) == 0) params.scale = 0.3F;
    if (below(4) == 0) params.softcap = 3.0F;
    std::size_t queries = n, first = of.model.length(layer) - n;
    if (below(3) == 0) {
      queries = 1;
      first = below(of.model.length(layer));
      params.first_position = first;
    }
    std::size_t kept_from = 0;
    for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
      const auto& list = of.model.head({layer, head});
      for (std::size_t i = 0; i < list.size(); ++i)
        if (list[i].left) kept_from = std::max(kept_from, i + 1);
    }
    if (first + 1 < kept_from) {
      EXPECT_THROW(attended(of.cache, layer, rows.queries(0, queries), serial{}, params), error);
      ++counts_.refusals;
      return;
    }
    const auto out = attended(of.cache, layer, rows.queries(0, queries), serial{}, params);
    for (const std::size_t query : {std::size_t{0}, below(queries), queries - 1})
      for (std::size_t head = 0; head < shape_.query_heads; ++head) {
        const auto expected =
            of.model.attention(layer, head, first + query,
                               rows.q.data() + (query * shape_.query_heads + head) * shape_.key_size(), params);
        for (std::size_t j = 0; j < expected.size(); ++j)
          ASSERT_NEAR(out[(query * shape_.query_heads + head) * expected.size() + j], expected[j],
                      3e-5 * (1.0 + std::fabs(expected[j])))
              << "layer " << layer << ", query head " << head << ", position " << first + query;
        ++counts_.outputs;
      }
  }

  void compress(pair& of) {
    const std::size_t left_before = rows_left(of.model);
    if (below(2) == 0) {
      if (attempt(of, [](cache_type& c) { c.compress(); }))
        for (std::size_t layer = 0; layer < shape_.layers; ++layer) of.model.compress(layer);
    } else {
      const std::size_t layer = below(shape_.layers);
      if (attempt(of, [&](cache_type& c) { c.compress(layer); })) of.model.compress(layer);
    }
    count_left(of, left_before);
    compare(of);
  }

  void copy(const pair& of) {
    ++counts_.copies;
    if (pairs_.size() < 3) {
      pair copied = of;  // `of` lives in pairs_
      pairs_.push_back(std::move(copied));
    } else {
      pairs_[below(pairs_.size())] = pair(of);
    }
    compare(pairs_.back());
  }

  void with(pair& of) {
    const policies p = random_policies();
    if (of.model.anything_left()) {
      const auto before = visible_state(of.cache);
      EXPECT_THROW(of.cache.with(p.plan, p.budget, p.compensation), error);
      EXPECT_TRUE(visible_state(of.cache) == before);
      ++counts_.with_refused;
      ++counts_.refusals;
      return;
    }
    of.cache = of.cache.with(p.plan, p.budget, p.compensation);
    of.model = of.model.with(p.plan, p.budget, p.kind);
    ++counts_.with_done;
    compare(of);
  }

  void refused(pair& of) {
    const auto before = visible_state(of.cache);
    const tokens rows = random_tokens(shape_, 2, 1);
    const std::size_t layer = below(shape_.layers);
    const std::size_t length = of.model.length(layer);
    token_view k = rows.keys(0, 2);
    const token_view v = rows.values(0, 2);
    std::size_t where = layer, position = cache_type::next;
    switch (below(7)) {
      case 0: k.tokens = 1; break;
      case 1: k.extent -= 1; break;
      case 2: k.data = nullptr; break;
      case 3: k.dim += 1; break;
      case 4: where = shape_.layers; break;
      case 5: position = length + 1; break;
      default: position = length == 0 ? 7 : length - 1;
    }
    EXPECT_THROW(of.cache.append(where, k, v, position), error);
    EXPECT_TRUE(visible_state(of.cache) == before);
    ++counts_.refusals;
  }

  static std::size_t rows_left(const row_model& model) {
    std::size_t left = 0;
    for (std::size_t layer = 0; layer < model.plan().shape().layers; ++layer)
      for (std::size_t head = 0; head < model.plan().shape().kv_heads; ++head) left += model.left({layer, head});
    return left;
  }
  void count_left(const pair& of, std::size_t before) {
    const std::size_t left = rows_left(of.model);
    ASSERT_GE(left, before);
    counts_.rows_left += left - before;
    counts_.folds += left != before;
  }

  /// Lengths, kept positions, the bits of kept rows, the report, and the means bit for bit.
  void compare(const pair& of) const {
    const cache_report report = of.cache.report();
    std::size_t shortest = of.model.length(0);
    for (std::size_t i = 0; i < report.heads.size(); ++i) {
      const head_report& found = report.heads[i];
      const auto& head = of.cache.head(found.head.layer, found.head.kv_head);
      const auto& list = of.model.head(found.head);
      const auto kept = of.model.kept_positions(found.head);
      const std::size_t left = list.size() - kept.size();
      const bool summed = of.model.kind() != row_model::summary::none;
      shortest = std::min(shortest, list.size());
      ASSERT_EQ(head.length(), list.size());
      ASSERT_EQ(of.cache.kept_positions(found.head.layer, found.head.kv_head), kept);
      ASSERT_EQ(found.rows, kept.size());
      ASSERT_EQ(found.folded, summed ? left : 0);
      ASSERT_EQ(found.dropped, summed ? 0 : left);
      ASSERT_EQ(found.role, of.model.plan().role(found.head));

      std::vector<float> keys, values, key(shape_.key_size()), value(shape_.value_size());
      std::vector<double> key_sum(shape_.key_size()), value_sum(shape_.value_size());
      for (const row_model::row& row : list) {
        if (!row.left) {
          keys.insert(keys.end(), row.key.begin(), row.key.end());
          values.insert(values.end(), row.value.begin(), row.value.end());
          continue;
        }
        for (std::size_t j = 0; j < key_sum.size(); ++j) key_sum[j] += row.key[j];
        for (std::size_t j = 0; j < value_sum.size(); ++j) value_sum[j] += row.value[j];
      }
      std::vector<std::byte> rows(head.format().bytes(keys.size()) + head.format().bytes(values.size()));
      head.format().encode(keys.data(), rows.data(), keys.size());
      head.format().encode(values.data(), rows.data() + head.format().bytes(keys.size()), values.size());
      ASSERT_EQ(stored_bytes(head), rows);
      ASSERT_EQ(found.row_bytes, rows.size());
      if (found.folded == 0) continue;
      const auto means = folded_means(head);
      for (std::size_t j = 0; j < key.size(); ++j)
        ASSERT_EQ(means.first[j], static_cast<float>(key_sum[j] / static_cast<double>(left)));
      for (std::size_t j = 0; j < value.size(); ++j)
        ASSERT_EQ(means.second[j], static_cast<float>(value_sum[j] / static_cast<double>(left)));
    }
    ASSERT_EQ(of.cache.length(), shortest);
  }

  std::mt19937 bits_;
  tally& counts_;
  std::shared_ptr<bool> refuses_ = std::make_shared<bool>(false);
  model_shape shape_;
  any_format format_;
  std::vector<pair> pairs_;
};

TEST(random_operations, agree_with_a_list_of_rows) {
  tally counts;
  for (unsigned seed = 1; seed <= 250; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    trial(seed, counts).run(80);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_EQ(counts.operations, 20000U);
  EXPECT_GE(counts.folds, 2800U);  // the moment folds 16 rows at a time
  EXPECT_GE(counts.rows_left, 40000U);
  EXPECT_GE(counts.outputs, 50000U);
  EXPECT_GE(counts.refusals, 2000U);
  EXPECT_GE(counts.no_memory, 60U);
  EXPECT_GE(counts.no_budget, 100U);
  EXPECT_GE(counts.copies, 1000U);
  EXPECT_GE(counts.with_done, 400U);
  EXPECT_GE(counts.with_refused, 500U);
  std::printf(
      "%zu operations: %zu folds of %zu rows, %zu outputs, %zu refusals, %zu out of memory, %zu refused by the "
      "budget, %zu copies, %zu with (%zu refused)\n",
      counts.operations, counts.folds, counts.rows_left, counts.outputs, counts.refusals, counts.no_memory,
      counts.no_budget, counts.copies, counts.with_done + counts.with_refused, counts.with_refused);
}

}  // namespace
}  // namespace headwise::test
