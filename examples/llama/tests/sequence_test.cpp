// SPDX-License-Identifier: MIT
// What engines do with sequences besides appending, on a real model whose caches have folded: drafts are rolled back,
// a prompt is shared.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "generation.hpp"
#include "model.hpp"
#include "tool.hpp"

namespace {

using namespace headwise_llama;
using namespace headwise_llama::test;

/// The heads that look back in the small model (tests/known); in any other, some heads.
headwise::head_plan plan_of(const headwise::model_shape& shape) {
  headwise::head_plan plan(shape);
  const headwise::head_id heads[] = {{7, 2},  {8, 0},  {14, 1}, {15, 2}, {17, 1}, {18, 2}, {20, 1},
                                     {20, 2}, {21, 2}, {22, 2}, {23, 0}, {23, 2}, {24, 0}};
  for (const headwise::head_id head : heads)
    plan.set({head.layer % shape.layers, head.kv_head % shape.kv_heads}, headwise::head_role::retrieval);
  return plan;
}

/// How much the two most likely tokens differ.
float margin(const float* logits, std::size_t count) {
  float best = logits[0];
  float second = -std::numeric_limits<float>::max();
  for (std::size_t i = 1; i < count; ++i) {
    second = std::max(second, std::min(best, logits[i]));
    best = std::max(best, logits[i]);
  }
  return best - second;
}

struct text {
  std::vector<token> tokens;
  std::vector<float> margins;
  generation_counts counts;
};

class sequences : public ::testing::Test {
 protected:
  static constexpr std::size_t prompt_length = 700;
  static constexpr std::size_t reserve = 64;

  void SetUp() override {
    if (model_path().empty()) GTEST_SKIP() << "HEADWISE_MODEL names no model";
  }

  static runner& f32_runner() {
    static runner model([] {
      common_options options;
      options.model = f32_path();
      options.rows = "f32";
      options.quiet = true;
      return options;
    }());
    return model;
  }

  static any_cache empty_cache(const headwise::any_compensation& compensation, const headwise::razor_budget& budget,
                               std::pmr::memory_resource* memory = nullptr) {
    headwise::cache_options options;
    options.rollback_reserve = reserve;
    options.memory = memory;
    return any_cache(plan_of(f32_runner().shape()), budget, compensation, headwise::when_to_compress::after_prompt,
                     headwise::float32{}, options);
  }

  static text write(any_cache& cache, const std::vector<token>& prompt, const logit_rows& logits, std::size_t tokens,
                    std::size_t draft) {
    text found;
    found.counts = generate(f32_runner(), cache, prompt, logits, {tokens, draft}, [&](token id, const float* row) {
      found.tokens.push_back(id);
      found.margins.push_back(margin(row, f32_runner().model().vocabulary_size()));
    });
    return found;
  }
};

// --- drafts ---------------------------------------------------------------------------------------------------------

TEST_F(sequences, ADraftIsWhatFollowedTheLastWordsBefore) {
  EXPECT_EQ(prompt_lookup({1, 2, 3, 4, 5, 1, 2}).draft(2), (std::vector<token>{3, 4}));
  EXPECT_EQ(prompt_lookup({1, 2, 3, 4, 5, 1, 2}).draft(8), (std::vector<token>{3, 4, 5, 1, 2}));
  EXPECT_EQ(prompt_lookup({1, 2, 7, 9, 1, 2, 8, 1, 2}).draft(1), (std::vector<token>{8}));        // the latest
  EXPECT_EQ(prompt_lookup({6, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2}).draft(1), (std::vector<token>{7}));  // three match
  EXPECT_EQ(prompt_lookup({4, 4, 4}).draft(3), (std::vector<token>{4}));
  prompt_lookup text({1, 2, 3, 1});
  EXPECT_TRUE(text.draft(8).empty());
  text.add(2);
  EXPECT_EQ(text.draft(8), (std::vector<token>{3, 1, 2}));
  EXPECT_TRUE(text.draft(0).empty());
  EXPECT_TRUE(prompt_lookup({}).draft(8).empty());
  EXPECT_TRUE(prompt_lookup({1, 1}).draft(8).empty());
}

/// What stock llama.cpp's own logits change by, on the model as it is, when tokens come nine at a time.
float stock_batch_difference(const engine& model, const std::vector<token>& prompt, const std::vector<token>& tokens) {
  stock_options options;
  options.context = 1024;
  options.flash_attention = false;
  options.format = cache_format::f32;
  stock_session single(model, options);
  stock_session batch(model, options);
  single.decode(prompt, logits_of::none);
  batch.decode(prompt, logits_of::none);
  const token_span all(tokens);
  float largest = 0.0F;
  for (std::size_t first = 0; first < tokens.size(); first += 9) {
    const std::size_t count = std::min<std::size_t>(9, tokens.size() - first);
    const logit_rows together = batch.decode(all.part(first, count), logits_of::all);
    for (std::size_t i = 0; i < count; ++i) {
      const logit_rows alone = single.decode(all.part(first + i, 1));
      largest = std::max(largest, largest_difference(alone[0], together[i], alone.vocabulary));
    }
  }
  return largest;
}

TEST_F(sequences, DraftsGiveTheTextThatTokensOneByOneGive) {
  runner& model = f32_runner();
  const std::vector<token> prompt = story(model.model(), prompt_length);
  struct way {
    const char* name;
    headwise::any_compensation compensation;
    headwise::razor_budget budget;
  };
  const way ways[] = {{"mean, a tenth", headwise::mean_compensation{}, {0, 10}},
                      {"mean, 24 rows", headwise::mean_compensation{}, {24, 0}},
                      {"moment, a tenth", headwise::moment_compensation{}, {0, 10}}};
  std::optional<float> noise;
  for (const way& each : ways) {
    any_cache cache = empty_cache(each.compensation, each.budget);
    const logit_rows logits = model.decode(cache, prompt);
    cache.compress();
    EXPECT_GT(cache.report().folded, 0U);
    any_cache drafting = cache;
    const text plain = write(cache, prompt, logits, 96, 0);
    const text drafted = write(drafting, prompt, logits, 96, 8);
    EXPECT_EQ(plain.counts.drafted, 0U);
    EXPECT_GT(drafted.counts.accepted, 0U);
    EXPECT_LT(drafted.counts.passes, plain.counts.passes);
    // A budget lets at least one of two rows leave, so of these roll-backs some went across a fold.
    const std::size_t refused = drafted.counts.drafted - drafted.counts.accepted;
    EXPECT_GT(refused, drafted.counts.rollbacks);

    if (!noise) noise = stock_batch_difference(model.model(), prompt, plain.tokens);
    const std::size_t count = std::min(plain.tokens.size(), drafted.tokens.size());
    std::size_t same = 0;
    while (same < count && plain.tokens[same] == drafted.tokens[same]) ++same;
    std::printf(
        "%s: %zu of %zu tokens the same; drafted %zu, accepted %zu, %zu passes, %zu rollbacks; stock's batch "
        "against single %.2g, smallest margin %.2g\n",
        each.name, same, plain.tokens.size(), drafted.counts.drafted, drafted.counts.accepted, drafted.counts.passes,
        drafted.counts.rollbacks, static_cast<double>(*noise),
        static_cast<double>(*std::min_element(plain.margins.begin(), plain.margins.end())));
    if (same < plain.tokens.size() || same < drafted.tokens.size()) {
      ASSERT_LT(same, plain.margins.size());
      EXPECT_LE(plain.margins[same], 10.0F * *noise) << "another text from token " << same << " on";
    } else {
      EXPECT_EQ(cache.length(), drafting.length());
      EXPECT_EQ(cache.report().folded, drafting.report().folded);
    }
  }
}

TEST_F(sequences, TakingTokensBackAcrossAFoldLeavesNoTrace) {
  runner& model = f32_runner();
  const std::vector<token> words = story(model.model(), prompt_length + 40);
  const token_span all(words);
  for (const headwise::any_compensation& compensation : {headwise::any_compensation(headwise::mean_compensation{}),
                                                         headwise::any_compensation(headwise::moment_compensation{})}) {
    any_cache cache = empty_cache(compensation, {0, 10});
    model.decode(cache, all.part(0, prompt_length), logits_of::none);
    cache.compress();
    any_cache back = cache;
    model.verify(back, all.part(prompt_length + 5, 20));
    EXPECT_GT(back.report().folded, cache.report().folded);
    ASSERT_TRUE(back.truncate(prompt_length));
    EXPECT_EQ(back.report().folded, cache.report().folded);
    for (std::size_t i = 0; i < 3; ++i) {
      const logit_rows expected = model.decode(cache, all.part(prompt_length + i, 1));
      EXPECT_EQ(model.decode(back, all.part(prompt_length + i, 1)).values, expected.values) << i;
    }
    EXPECT_FALSE(back.truncate(prompt_length - 2 * reserve));  // their rows are gone
  }
}

// --- one prompt, four texts -----------------------------------------------------------------------------------------

/// The system's memory, counted.
class counting_memory : public std::pmr::memory_resource {
 public:
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const memory = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    bytes_ += bytes;
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    bytes_ -= bytes;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::size_t bytes_ = 0;
};

TEST_F(sequences, FourCopiesOfAPromptWriteTheTextsOfFourRunsAndHoldItOnce) {
  runner& model = f32_runner();
  const std::vector<token> prompt = story(model.model(), prompt_length);
  const char* const openings[] = {" Then the king", " Question: who sold the gate?", " 1, 2, 3,", " In Paris, the"};
  constexpr std::size_t copies = 4;
  constexpr std::size_t tokens = 24;
  const auto begun = [&](any_cache& cache, std::size_t i) {
    return model.decode(cache, model.model().tokenize(openings[i], false, false)).best(0);
  };

  std::vector<std::vector<token>> expected(copies);
  for (std::size_t i = 0; i < copies; ++i) {
    any_cache cache = empty_cache(headwise::mean_compensation{}, {64, 0});
    model.decode(cache, prompt, logits_of::none);
    cache.compress();
    token next = begun(cache, i);
    while (expected[i].size() < tokens) {
      expected[i].push_back(next);
      next = model.decode(cache, {next}).best(0);
    }
  }

  counting_memory memory;
  any_cache first = empty_cache(headwise::mean_compensation{}, {64, 0}, &memory);
  model.decode(first, prompt, logits_of::none);
  first.compress();
  EXPECT_GT(first.report().folded, 0U);
  const headwise::cache_report alone = first.report();
  const std::size_t pages_alone = memory.bytes();
  std::vector<any_cache> branches(copies, first);
  EXPECT_EQ(memory.bytes(), pages_alone);  // a copy takes no page
  // In turns of different lengths: a token of one between two or three of another.
  std::vector<std::vector<token>> found(copies);
  std::vector<token> next;
  for (std::size_t i = 0; i < copies; ++i) next.push_back(begun(branches[i], i));
  for (bool done = false; !done;) {
    done = true;
    for (std::size_t i = 0; i < copies; ++i)
      for (std::size_t turn = 0; turn <= i && found[i].size() < tokens; ++turn) {
        found[i].push_back(next[i]);
        next[i] = model.decode(branches[i], {next[i]}).best(0);
        done = false;
      }
  }
  for (std::size_t i = 0; i < copies; ++i) EXPECT_EQ(found[i], expected[i]) << openings[i];
  for (std::size_t i = 1; i < copies; ++i) EXPECT_NE(found[i], found[0]) << "the texts should differ";

  // The prompt is held once: in all, what one holds, and of each other what it has alone, which are the pages of its
  // own tokens. `first` is one of them.
  const headwise::cache_report one = first.report();
  constexpr std::size_t page = 64 * 2 * 64 * sizeof(float);
  constexpr std::size_t sinks = 4096;  // at most, of a head; they lie outside pages and count as each one's own
  std::size_t together = one.held_bytes();
  std::size_t summaries = one.summary_bytes;
  for (const any_cache& branch : branches) {
    const headwise::cache_report each = branch.report();
    EXPECT_GT(each.shared_bytes, each.row_bytes / 2);
    const std::size_t own = each.held_bytes() - each.shared_bytes - each.spare_bytes;
    EXPECT_LE(own - each.summary_bytes, (2 * page + sinks) * model.shape().heads());
    together += own;
    summaries += each.summary_bytes;
  }
  std::printf("one: %zu bytes; it and four copies with %zu tokens each: %zu, in memory %zu and %zu of summaries\n",
              alone.held_bytes(), tokens, together, memory.bytes(), summaries);
  EXPECT_NEAR(static_cast<double>(together), static_cast<double>(memory.bytes() + summaries),
              0.03 * static_cast<double>(together));
}

}  // namespace
