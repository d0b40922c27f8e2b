// SPDX-License-Identifier: MIT
// Random operations on caches, each compared with a plain list of rows (support/row_model.hpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "headwise/cache/gather.hpp"
#include "headwise/cache/snapshot.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/element/format_variant.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/counting_resource.hpp"
#include "support/row_model.hpp"
#include "support/sanitized.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

/// A budget of any kind; a number of its own tells a saved cache which it was.
struct numbered_budget {
  row_model::budget rows;
  std::size_t number = 0;

  std::size_t operator()(head_id head, std::size_t seen) const { return rows(head, seen); }
  static const char* name() { return "numbered"; }
  std::vector<std::size_t> parameters() const { return {number}; }
};
using cache_type = kv_cache<any_format, numbered_budget, any_compensation>;

/// What happened in all trials: a test that never folds or never refuses would prove little.
struct tally {
  std::size_t operations = 0, rows_left = 0, folds = 0, refusals = 0, no_memory = 0, no_budget = 0, outputs = 0,
              copies = 0, page_copies = 0, deep_copies = 0, gathered = 0, with_done = 0, with_refused = 0, lists = 0,
              truncated = 0, truncated_across_a_fold = 0, truncations_refused = 0, failed_steps = 0, loads = 0,
              loads_refused = 0;
};

class trial {
 public:
  trial(unsigned seed, tally& counts)
      : bits_(seed),
        counts_(counts),
        shape_(random_shape()),
        format_(one_of<any_format>({float32{}, float16{}, bfloat16{}})),
        takes_back_(below(5) != 0),
        rows_(random_tokens(shape_, 300, seed)) {
    there_.equal = &there_too_;
    there_too_.equal = &there_;
    const auto when =
        one_of({when_to_compress::after_prompt, when_to_compress::every_append, when_to_compress::frozen});
    cache_options options;
    options.rollback_reserve = one_of<std::size_t>({0, 1, 7, 64, 64});
    options.memory = one_of<std::pmr::memory_resource*>({nullptr, &here_});
    const policies p = random_policies();
    pairs_.push_back({cache_type(p.plan, p.budget, p.compensation, when, format_, options),
                      row_model(p.plan, p.budget, p.kind, when, options.rollback_reserve), options.memory});
  }

  void run(std::size_t operations) {
    for (std::size_t i = 0; i < operations; ++i) {
      SCOPED_TRACE(testing::Message() << "operation " << i);
      ++counts_.operations;
      operation(pairs_[below(pairs_.size())]);
      if (testing::Test::HasFailure()) return;
      if (i % 64 == 63)  // what one did must not show in the others
        for (const pair& each : pairs_) {
          compare(each);
          attend_to_newest(each);
        }
    }
    pairs_.clear();
    EXPECT_EQ(here_.live + there_.live + there_too_.live, 0U);
  }

 private:
  static constexpr std::size_t longest = 260;

  struct pair {
    cache_type cache;
    row_model model;
    std::pmr::memory_resource* memory;  // where the cache's rows come from
  };
  struct policies {
    head_plan plan;
    numbered_budget budget;
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

  policies random_policies() {
    head_plan plan(shape_, head_role::local, one_of<std::size_t>({0, 1, 2, 4, 4, 63, 64, 65}));
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::size_t head = 0; head < shape_.kv_heads; ++head)
        if (below(4) == 0) plan.set({layer, head}, head_role::retrieval);
      if (below(6) == 0) plan.set_window(layer, one_of<std::size_t>({1, 3, 16, 64, 100}));
    }
    const std::size_t window = one_of<std::size_t>({0, 1, 2, 5, 16, 63, 64, 65, 100});
    row_model::budget budget;
    switch (below(6)) {
      case 0: budget = razor_budget{window, 3}; break;
      case 1: budget = [window](head_id head, std::size_t) { return window + 7 * head.kv_head; }; break;
      case 2: budget = [](head_id, std::size_t seen) { return seen < 150 ? 75 - seen / 2 : std::size_t{0}; }; break;
      case 3:
        if (!takes_back_) {  // D falls, so nobody can tell later how many rows had left
          budget = [](head_id, std::size_t seen) { return seen % 30 < 15 ? std::size_t{40} : std::size_t{3}; };
          break;
        }
        [[fallthrough]];
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
      case 0: return {plan, {budget, ++budgets_}, no_compensation{}, row_model::summary::none};
      case 1: return {plan, {budget, ++budgets_}, mean_compensation{}, row_model::summary::mean};
      default: return {plan, {budget, ++budgets_}, moment_compensation{}, row_model::summary::moment};
    }
  }

  /// Runs `change`, sometimes with a budget that refuses or with too little memory. True if it was done; else nothing
  /// may have changed.
  template <class Change>
  bool attempt(Change&& change) {
    const std::size_t fault = below(16);
    bool done = true;
    try {
      if (fault == 0) memory().allow = static_cast<long>(below(4));
      *refuses_ = fault == 1;
      change();
    } catch (const std::bad_alloc&) {
      done = false;
      ++counts_.no_memory;
    } catch (const no_budget&) {
      done = false;
      ++counts_.no_budget;
    }
    memory().allow = -1;
    *refuses_ = false;
    return done;
  }
  template <class Call>
  void expect_error(Call&& call) {
    EXPECT_THROW(call(), error);
    ++counts_.refusals;
  }

  void operation(pair& of) {
    const std::size_t choice = below(100);
    if (choice < 36) return append_and_attend(of, 1);
    if (choice < 48) return append_and_attend(of, one_of<std::size_t>({2, 3, 5, 12, 31, 64, 65}));
    if (choice < 56) return compress(of);
    if (choice < 64) return copy(of);
    if (choice < 67) return with(of);
    if (choice < 71) return refused(of);
    if (choice < 85) return truncate(of);
    if (choice < 88) return failed_step(of);
    if (choice < 93) return retain(of);
    if (choice < 96) return beams();
    if (choice < 98) return deep_copy(of);
    save_and_load(of);
  }

  void append_and_attend(pair& of, std::size_t n) {
    const std::size_t first = below(rows_.count - n + 1), left_before = of.model.rows_left();
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      const std::size_t length = of.model.length(layer);
      if (length + n > longest) return truncate_to(of, takes_back_ ? below(of.model.length() + 1) : 0);
      const std::size_t position = below(2) == 0 ? length : cache_type::next;
      const newest_pages before(of.cache, layer);
      if (!attempt([&] { of.cache.append(layer, rows_.keys(first, n), rows_.values(first, n), position); }))
        continue;  // the layers now differ, as after a step that failed half-way
      of.model.append(layer, rows_, first, n, format_);
      counts_.page_copies += before.copied(of.cache);
      attend_to(of, layer, first, n);
    }
    count_left(of, left_before);
    compare(of);
  }

  /// The page that a head's next row goes to, as far as there is one.
  class newest_pages {
   public:
    newest_pages(const cache_type& cache, std::size_t layer) : layer_(layer), length_(cache.layer_length(layer)) {
      for (std::size_t head = 0; head < cache.shape().kv_heads; ++head)
        places_.push_back({place(cache, head), cache.head(layer, head).rows().shared_bytes()});
    }
    /// How many have been copied by an append: none that no other cache has.
    std::size_t copied(const cache_type& cache) const {
      std::size_t copies = 0;
      for (std::size_t head = 0; head < places_.size(); ++head)
        if (places_[head].first != nullptr && place(cache, head) != places_[head].first) {
          EXPECT_GT(places_[head].second, 0U) << "a row moved";
          ++copies;
        }
      return copies;
    }

   private:
    /// Of the page with the row at length_ - 1, if the head keeps that row or the next, in pages.
    const std::byte* place(const cache_type& cache, std::size_t index) const {
      const auto& head = cache.head(layer_, index);
      if (length_ % 64 == 0) return nullptr;
      for (std::size_t i = head.runs(); i > 0; --i) {
        const headwise::run part = head.run_at(i - 1);
        if (part.position < head.kept_from()) break;
        if (part.position / 64 == length_ / 64) return part.keys - part.position % 64 * head.rows().key_bytes();
      }
      return nullptr;
    }

    std::size_t layer_, length_;
    std::vector<std::pair<const std::byte*, std::size_t>> places_;
  };

  /// A few queries of the n tokens that were appended last, whose rows begin at rows_[row]; sometimes all, and
  /// sometimes one from further back.
  void attend_to(const pair& of, std::size_t layer, std::size_t row, std::size_t n) {
    attention_params params;
    if (below(4) == 0) params.scale = 0.3F;
    if (below(8) == 0) params.softcap = 3.0F;
    const std::size_t queries = below(16) == 0 ? n : std::min(n, 1 + below(3)), length = of.model.length(layer);
    std::size_t first = length - (below(2) == 0 ? n : queries);
    if (queries == 1 && below(3) == 0) first = below(length);
    if (first + queries != length || below(2) == 0) params.first_position = first;
    if (!can_be_seen(of.model, layer, first, queries))
      return expect_error([&] { attended(of.cache, layer, rows_.queries(row, queries), serial{}, params); });
    const auto out = attended(of.cache, layer, rows_.queries(row, queries), serial{}, params);
    for (const std::size_t query : {below(queries), queries - 1}) {
      const std::size_t head = below(shape_.query_heads);
      const auto expected =
          of.model.attention(layer, head, first + query,
                             rows_.q.data() + ((row + query) * shape_.query_heads + head) * shape_.key_size(), params);
      for (std::size_t j = 0; j < expected.size(); ++j)
        ASSERT_NEAR(static_cast<double>(out[(query * shape_.query_heads + head) * expected.size() + j]), expected[j],
                    3e-5 * (1.0 + std::fabs(expected[j])))
            << "layer " << layer << ", query head " << head << ", position " << first + query;
      ++counts_.outputs;
    }
  }
  /// Whether no query asks for what has left: one from before it, or through a window that begins there - but for what
  /// a list has dropped.
  bool can_be_seen(const row_model& model, std::size_t layer, std::size_t first, std::size_t queries) const {
    const std::size_t window = model.plan().window(layer);
    for (std::size_t position = first; position < first + queries; ++position)
      for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
        const std::size_t begin = window != 0 && position + 1 > window ? position + 1 - window : 0;
        const row_model::head_list& of = model.head({layer, head});
        const bool list_alone = of.folded.empty() && of.recent_from == of.list_from && position + 1 >= of.list_length;
        if (begin < of.recent_from && (begin != 0 || position + 1 < of.recent_from) && !list_alone) return false;
      }
    return true;
  }
  void attend_to_newest(const pair& of) {
    for (std::size_t layer = 0; layer < shape_.layers; ++layer)
      if (of.model.length(layer) != 0) attend_to(of, layer, below(rows_.count), 1);
  }

  void compress(pair& of) {
    const std::size_t left_before = of.model.rows_left();
    const std::size_t only = below(2 * shape_.layers);
    if (only >= shape_.layers) {
      if (attempt([&] { of.cache.compress(); }))
        for (std::size_t layer = 0; layer < shape_.layers; ++layer) of.model.compress(layer);
    } else if (attempt([&] { of.cache.compress(only); })) {
      of.model.compress(only);
    }
    count_left(of, left_before);
    compare(of);
  }

  /// Another cache beside those there are, or instead of one.
  void add(cache_type cache, const row_model& model, std::pmr::memory_resource* memory) {
    pair added{std::move(cache), model, memory};  // `model` lives in pairs_
    if (pairs_.size() < 3)
      pairs_.push_back(std::move(added));
    else
      std::swap(pairs_[below(3)], added);
  }
  void copy(const pair& of) {
    std::optional<cache_type> copied;
    if (attempt([&] { copied.emplace(of.cache); })) {
      ++counts_.copies;
      add(std::move(*copied), of.model, of.memory);
    }
    compare(pairs_.back());
  }
  /// Goes on from what was saved: in a copy that may have gone back first, and in others that it does not fit.
  void save_and_load(pair& of) {
    memory_sink sink;
    save(of.cache, sink);
    const auto load_into = [&](cache_type& target) {
      memory_source source(sink.bytes().data(), sink.bytes().size());
      load(target, source);
      EXPECT_EQ(source.remaining(), 0U);
    };
    {
      cache_type target = of.cache;
      EXPECT_TRUE(below(2) == 0 || target.truncate(0));
      if (attempt([&] { load_into(target); })) {
        of.cache = std::move(target);
        ++counts_.loads;
      }
    }
    compare(of);
    const policies p = random_policies();
    cache_type other(p.plan, p.budget, p.compensation, when_to_compress::after_prompt, format_);
    expect_error([&] { load_into(other); });
    EXPECT_EQ(other.length(), 0U);
    ++counts_.loads_refused;
  }
  void deep_copy(const pair& of) {
    counting_resource* const memory = one_of<counting_resource*>({&here_, &there_, &there_too_});
    const bool deep = of.memory == nullptr || !memory->is_equal(*of.memory);
    const std::size_t live = memory->live;
    std::optional<cache_type> copied;
    if (attempt([&] { copied.emplace(of.cache, memory); })) {
      ++counts_.deep_copies;
      EXPECT_TRUE(deep ? copied->report().shared_bytes == 0 : memory->live == live);
      EXPECT_TRUE(!deep || memory->live > live || of.model.length() == 0);
      add(std::move(*copied), of.model, deep ? memory : of.memory);
    } else {
      EXPECT_EQ(memory->live, live);
    }
    compare(pairs_.back());
  }
  void beams() {
    std::vector<cache_type> sequences;
    for (const pair& each : pairs_) sequences.push_back(each.cache);
    std::vector<std::size_t> indices(1 + below(3));
    for (std::size_t& index : indices) index = below(sequences.size());
    if (below(8) == 0) {
      indices.back() = sequences.size() + below(2);
      return expect_error([&] { static_cast<void>(gather(sequences, indices)); });
    }
    std::vector<cache_type> next;
    if (!attempt([&] { next = gather(sequences, indices); })) return;
    ++counts_.gathered;
    sequences.clear();
    std::vector<pair> chosen;
    for (std::size_t i = 0; i < next.size(); ++i)
      chosen.push_back({std::move(next[i]), pairs_[indices[i]].model, pairs_[indices[i]].memory});
    pairs_ = std::move(chosen);
    for (const pair& each : pairs_) compare(each);
  }

  void with(pair& of) {
    const policies p = random_policies();
    if (!of.model.can_change_to(p.plan)) {
      expect_error([&] { static_cast<void>(of.cache.with(p.plan, p.budget, p.compensation)); });
      ++counts_.with_refused;
    } else if (attempt([&] { of.cache = of.cache.with(p.plan, p.budget, p.compensation); })) {
      of.model = of.model.with(p.plan, p.budget, p.kind);
      ++counts_.with_done;
    }
    compare(of);
  }

  void refused(pair& of) {
    const std::size_t layer = below(shape_.layers);
    const std::size_t length = of.model.length(layer);
    token_view k = rows_.keys(0, 2);
    const token_view v = rows_.values(0, 2);
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
    expect_error([&] { of.cache.append(where, k, v, position); });
    compare(of);
  }

  void retain(pair& of) {
    const head_id id{below(shape_.layers), below(shape_.kv_heads)};
    const std::vector<std::size_t> kept = of.model.kept_positions(id);
    const std::size_t share = below(5);  // 0: all
    std::vector<std::size_t> positions;
    for (const std::size_t position : kept)
      if (share == 0 || below(share) == 0 || position + below(30) >= of.model.length(id.layer))
        positions.push_back(position);
    bool folds = below(2) == 0;
    if (folds && of.model.plan().role(id) == head_role::windowed) {
      expect_error([&] { of.cache.retain(id.layer, id.kv_head, positions); });
      folds = false;
    }
    if (below(4) == 0) {
      std::vector<std::size_t> wrong = positions;
      wrong.push_back(below(2) == 0 && !wrong.empty() ? wrong.back() : of.model.length(id.layer));
      expect_error([&] { of.cache.retain(id.layer, id.kv_head, wrong, other_rows::drop); });
    }
    const other_rows others = folds ? other_rows::fold : other_rows::drop;
    if (attempt([&] { of.cache.retain(id.layer, id.kv_head, positions, others); })) {
      of.model.retain(id, positions, folds);
      ++counts_.lists;
    }
    compare(of);
  }

  void truncate(pair& of) {
    const std::size_t length = of.model.length(), back = below(6);
    if (!takes_back_ || back == 0) return truncate_to(of, length + below(2));
    if (back == 1) return truncate_to(of, below(length + 1));
    truncate_to(of, length - std::min(length, below(back < 5 ? of.model.reserve() + 2 : 30)));
  }
  void truncate_to(pair& of, std::size_t length) {
    const row_model::answer expected = of.model.truncates(length);
    bool done = false;
    if (attempt([&] { done = of.cache.truncate(length); })) {
      ASSERT_TRUE(done ? expected != row_model::answer::no : expected != row_model::answer::yes)
          << "truncate(" << length << ") of " << of.model.length() << ", " << (done ? "done" : "refused");
      if (!done) {
        ++counts_.truncations_refused;
        ++counts_.refusals;
      } else {
        const auto came_back =
            of.model.truncate(length, [&](head_id id) { return of.cache.head(id.layer, id.kv_head).rows().kept(); });
        ASSERT_TRUE(came_back.has_value()) << "truncate(" << length << ")";
        ++counts_.truncated;
        counts_.truncated_across_a_fold += *came_back != 0;
      }
    }
    compare(of);
  }
  /// A step that gets no further than some layer, and is taken back.
  void failed_step(pair& of) {
    const std::size_t n = one_of<std::size_t>({1, 1, 3, 20}), first = below(rows_.count - n + 1);
    const std::size_t length = of.model.length();
    bool even = length + n <= longest;
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) even = even && of.model.length(layer) == length;
    if (!even) return truncate_to(of, length);
    for (std::size_t layer = 0; layer + 1 < shape_.layers; ++layer) {
      of.cache.append(layer, rows_.keys(first, n), rows_.values(first, n));
      of.model.append(layer, rows_, first, n, format_);
      attend_to(of, layer, first, n);
    }
    compare(of);
    ASSERT_EQ(of.model.truncates(length), row_model::answer::yes);
    truncate_to(of, length);
    ++counts_.failed_steps;
  }

  void count_left(const pair& of, std::size_t before) {
    const std::size_t left = of.model.rows_left();
    ASSERT_GE(left, before);
    counts_.rows_left += left - before;
    counts_.folds += left != before;
  }

  /// Lengths, kept positions, the bits of kept rows, the report, and the means bit for bit.
  void compare(const pair& of) const {
    const cache_report report = of.cache.report();
    ASSERT_EQ(of.cache.length(), of.model.length());
    for (const head_report& found : report.heads) {
      const auto& head = of.cache.head(found.head.layer, found.head.kv_head);
      const row_model::head_list& list = of.model.head(found.head);
      ASSERT_EQ(head.length(), list.length());
      ASSERT_EQ(found.role, of.model.plan().role(found.head));
      ASSERT_EQ(found.rows, list.kept());
      ASSERT_EQ(found.folded, list.folded.size());
      ASSERT_EQ(found.dropped, list.length() - found.rows - found.folded);
      const std::size_t row_bytes = head.rows().key_bytes() + head.rows().value_bytes();
      ASSERT_EQ(found.row_bytes, found.rows * row_bytes);
      ASSERT_LE(found.reserve_bytes, (of.model.reserve() + 2 * of.model.block(found.head) - 2) * row_bytes);
      if (pairs_.size() == 1) {
        ASSERT_EQ(found.shared_bytes, 0U);
      }
      ASSERT_TRUE(same_rows(head, list)) << "KV head " << found.head.layer << "." << found.head.kv_head;
      if (found.folded != 0) {
        ASSERT_TRUE(same_means(head, list));
      }
    }
  }
  /// The runs hold the kept rows, in order, and cross no boundary.
  template <class Head>
  static bool same_rows(const Head& head, const row_model::head_list& list) {
    const std::size_t key_bytes = head.rows().key_bytes(), value_bytes = head.rows().value_bytes();
    const auto kept = [&](std::size_t position) { return list.fates[position] == row_model::fate::kept; };
    std::size_t position = 0;
    for (std::size_t i = 0; i < head.runs(); ++i) {
      const headwise::run part = head.run_at(i);
      const std::size_t end = part.position + part.rows;
      if (part.rows == 0 || end > list.length() || part.position / 64 != (end - 1) / 64) return false;
      for (; position < part.position; ++position)
        if (kept(position)) return false;
      for (; position < end; ++position)
        if (!kept(position)) return false;
      if (std::memcmp(part.keys, list.key_bytes.data() + part.position * key_bytes, part.rows * key_bytes) != 0 ||
          std::memcmp(part.values, list.value_bytes.data() + part.position * value_bytes, part.rows * value_bytes) != 0)
        return false;
    }
    for (; position < list.length(); ++position)
      if (kept(position)) return false;
    return true;
  }
  template <class Head>
  static bool same_means(const Head& head, const row_model::head_list& list) {
    const auto found = folded_means(head);
    const auto same = [&](const std::vector<float>& means, const std::vector<float>& rows) {
      std::vector<double> sums(means.size());
      for (const std::size_t position : list.folded)
        for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += static_cast<double>(rows[position * sums.size() + j]);
      for (std::size_t j = 0; j < sums.size(); ++j)
        if (means[j] != static_cast<float>(sums[j] / static_cast<double>(list.folded.size()))) return false;
      return true;
    };
    return same(found.first, list.keys) && same(found.second, list.values);
  }

  std::mt19937 bits_;
  tally& counts_;
  std::shared_ptr<bool> refuses_ = std::make_shared<bool>(false);
  counting_resource here_, there_, there_too_;
  model_shape shape_;
  any_format format_;
  std::size_t budgets_ = 0;
  bool takes_back_;  // truncates, which not every budget allows
  tokens rows_;      // whose rows are appended, from anywhere
  std::vector<pair> pairs_;
};

/// 10^6 operations in all; fewer where every access to memory is looked at by the thread sanitizer.
constexpr std::size_t share = thread_sanitized ? 25 : 1, trials = 1000 / share, operations = 250;

class random_operations : public testing::TestWithParam<unsigned> {};

TEST_P(random_operations, agree_with_a_list_of_rows) {
  tally counts;
  std::size_t live = 0;
  for (unsigned i = 1; i <= trials; ++i) {
    const unsigned seed = GetParam() * 10000 + i;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    trial(seed, counts).run(operations);
    if (live == 0) live = memory().live_bytes;
    EXPECT_EQ(memory().live_bytes, live);  // caches, their copies and failed attempts have left nothing behind
    if (HasFailure()) return;
  }
  std::printf(
      "%zu operations: %zu folds of %zu rows, %zu outputs, %zu refusals, %zu out of memory, %zu refused by the "
      "budget,\n"
      "%zu copies, %zu pages copied, %zu deep copies, %zu gathered, %zu with (%zu refused), %zu lists,\n"
      "%zu truncated (%zu across a fold, %zu refused), %zu failed steps, %zu loads (%zu refused)\n",
      counts.operations, counts.folds, counts.rows_left, counts.outputs, counts.refusals, counts.no_memory,
      counts.no_budget, counts.copies, counts.page_copies, counts.deep_copies, counts.gathered,
      counts.with_done + counts.with_refused, counts.with_refused, counts.lists, counts.truncated,
      counts.truncated_across_a_fold, counts.truncations_refused, counts.failed_steps, counts.loads,
      counts.loads_refused);
  EXPECT_EQ(counts.operations, trials * operations);
  // Half of what is usual, and more; few trials differ more from each other.
  const auto at_least = [](std::size_t wanted) { return share == 1 ? wanted : wanted / (2 * share); };
  EXPECT_GE(counts.folds, at_least(30000));
  EXPECT_GE(counts.rows_left, at_least(600000));
  EXPECT_GE(counts.outputs, at_least(200000));
  EXPECT_GE(counts.refusals, at_least(40000));
  EXPECT_GE(counts.no_memory, at_least(3000));
  EXPECT_GE(counts.no_budget, at_least(3000));
  EXPECT_GE(counts.copies, at_least(10000));
  EXPECT_GE(counts.page_copies, at_least(20000));
  EXPECT_GE(counts.deep_copies, at_least(2000));
  EXPECT_GE(counts.gathered, at_least(3000));
  EXPECT_GE(counts.with_done, at_least(1000));
  EXPECT_GE(counts.with_refused, at_least(3000));
  EXPECT_GE(counts.lists, at_least(6000));
  EXPECT_GE(counts.truncated, at_least(15000));
  EXPECT_GE(counts.truncated_across_a_fold, at_least(1500));
  EXPECT_GE(counts.truncations_refused, at_least(10000));
  EXPECT_GE(counts.failed_steps, at_least(3000));
  EXPECT_GE(counts.loads, at_least(1200));
  EXPECT_GE(counts.loads_refused, at_least(1200));
}
INSTANTIATE_TEST_SUITE_P(seeds, random_operations, testing::Values(1U, 2U, 3U, 4U));

}  // namespace
}  // namespace headwise::test
