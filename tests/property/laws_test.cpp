// SPDX-License-Identifier: MIT
// What holds for every length, sink count, window, chunking and policy.

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "headwise/element/format_variant.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "support/counted_memory.hpp"
#include "support/counting_new.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

using any_budget = std::function<std::size_t(head_id, std::size_t)>;
using any_cache = kv_cache<any_format, any_budget, any_compensation>;

constexpr when_to_compress every_when[] = {when_to_compress::after_prompt, when_to_compress::every_append,
                                           when_to_compress::frozen};

struct named_budget {
  const char* name;
  any_budget budget;
};
std::vector<named_budget> budgets() {
  return {{"fixed 7", fixed_budget{7}},
          {"fixed 0", fixed_budget{0}},
          {"fixed 64", fixed_budget{64}},
          {"share", razor_budget{5, 3}},
          {"unlimited", unlimited_budget{}},
          {"by head", [](head_id head, std::size_t) { return 3 + 20 * head.kv_head + head.layer; }},
          {"shrinking", [](head_id, std::size_t seen) { return seen < 200 ? 100 - seen / 2 : std::size_t{0}; }},
          {"to and fro", [](head_id, std::size_t seen) { return seen % 40 < 20 ? std::size_t{50} : std::size_t{5}; }}};
}

struct named_compensation {
  const char* name;
  any_compensation compensation;
};
std::vector<named_compensation> compensations() {
  return {{"mean", mean_compensation{}}, {"none", no_compensation{}}, {"moment", moment_compensation{}}};
}

/// Two layers of two KV heads, one of them a retrieval head.
head_plan small_plan(std::size_t sinks = 4) {
  head_plan plan(model_shape{2, 4, 2, 8, 6}, head_role::local, sinks);
  plan.set({1, 0}, head_role::retrieval);
  return plan;
}

TEST(laws, the_counting_probe_gives_half_the_position) {
  constexpr std::size_t n = 150;
  const tokens rows = counting_tokens(one_head(), n);
  for (const std::size_t sinks : {0U, 1U, 4U, 63U, 64U, 65U})
    for (const std::size_t window : {1U, 2U, 8U, 63U, 64U, 65U})
      for (const auto when : every_when)
        for (const std::size_t chunk : {1U, 3U, 64U, 150U})
          for (const any_compensation& compensation :
               {any_compensation(mean_compensation{}), any_compensation(moment_compensation{})}) {
            kv_cache<float32, fixed_budget, any_compensation> cache(one_local(sinks), fixed_budget{window},
                                                                    compensation, when);
            for (std::size_t first = 0; first < n; first += chunk) {
              const auto found = feed(cache, rows, first, std::min(chunk, n - first));
              for (std::size_t i = 0; i < found.size(); ++i)
                ASSERT_NEAR(found[i], static_cast<double>(first + i) / 2.0, 1e-5 * static_cast<double>(first + i))
                    << sinks << " sinks, window " << window << ", chunks of " << chunk << ", row " << first + i;
              if (first / 70 != (first + chunk) / 70) cache.compress();  // now and then
            }
            ASSERT_NEAR(answer(cache), 74.5, 74.5e-5);
          }
}

TEST(laws, equal_folded_keys_give_full_attention) {
  for (std::size_t folded = 1; folded <= 130; ++folded)
    for (const float softcap : {0.0F, 2.0F}) {
      const std::size_t n = folded + 9;
      tokens rows = random_tokens(one_head(16), n, static_cast<unsigned>(folded));
      for (std::size_t i = 4; i < 3 + folded; ++i) std::copy_n(rows.key(3), 16, rows.key(i));
      attention_params params;
      params.softcap = softcap;
      auto full = make_cache<float32>(one_retrieval(16));
      append(full, rows, 0, n);
      const auto expected = attended(full, 0, rows.queries(n - 1, 1), serial{}, params);
      const auto check = [&](auto compensation) {
        auto local = make_cache<float32>(one_local(3, 16), fixed_budget{6}, compensation);
        append(local, rows, 0, n);
        local.compress();
        ASSERT_EQ(local.report().folded, folded);
        const auto found = attended(local, 0, rows.queries(n - 1, 1), serial{}, params);
        for (std::size_t i = 0; i < 16; ++i) ASSERT_NEAR(found[i], expected[i], 1e-6) << folded << " folded";
      };
      check(mean_compensation{});
      check(moment_compensation{});
    }
}

TEST(laws, kept_folded_and_dropped_rows_are_the_tokens_seen_and_what_left_stays_away) {
  const std::size_t steps[] = {1, 1, 30, 1, 64, 2, 1, 1, 65, 1, 40, 1, 1};
  for (const named_budget& b : budgets())
    for (const named_compensation& c : compensations())
      for (const auto when : every_when) {
        SCOPED_TRACE(std::string(b.name) + ", " + c.name + ", " + std::to_string(static_cast<int>(when)));
        const tokens rows = random_tokens(small_plan().shape(), 210, 3);
        any_cache cache(small_plan(), b.budget, c.compensation, when, float16{});
        std::vector<std::size_t> left(4);
        const auto check = [&] {
          const cache_report report = cache.report();
          std::size_t totals[3] = {};
          for (std::size_t i = 0; i < 4; ++i) {
            const head_report& head = report.heads[i];
            ASSERT_EQ(head.rows + head.folded + head.dropped, cache.length());
            ASSERT_EQ(head.rows, cache.kept_positions(head.head.layer, head.head.kv_head).size());
            ASSERT_GE(head.folded + head.dropped, left[i]);
            ASSERT_TRUE(head.folded == 0 || head.dropped == 0);
            left[i] = head.folded + head.dropped;
            totals[0] += head.rows;
            totals[1] += head.folded;
            totals[2] += head.dropped;
          }
          ASSERT_EQ(left[2], 0U);  // the retrieval head
          ASSERT_EQ(report.rows, totals[0]);
          ASSERT_EQ(report.folded, totals[1]);
          ASSERT_EQ(report.dropped, totals[2]);
        };
        std::size_t seen = 0;
        for (const std::size_t step : steps) {
          append(cache, rows, seen, step);
          seen += step;
          ASSERT_NO_FATAL_FAILURE(check());
          if (seen % 3 == 0) cache.compress();
          ASSERT_NO_FATAL_FAILURE(check());
        }
      }
}

/// Feeds the same to two caches and wants the same bits back: outputs of every layer, kept rows, lengths.
void expect_same_bits(any_cache a, any_cache b, const tokens& rows, std::size_t n, std::size_t chunk) {
  for (std::size_t first = 0; first < n; first += chunk) {
    const std::size_t count = std::min(chunk, n - first);
    append(a, rows, first, count);
    append(b, rows, first, count);
    for (std::size_t layer = 0; layer < a.shape().layers; ++layer)
      ASSERT_EQ(attended(a, layer, rows.queries(first, count)), attended(b, layer, rows.queries(first, count)));
    a.compress();
  }
  ASSERT_EQ(a.report().rows, a.shape().heads() * n);
  ASSERT_TRUE(visible_state(a) == visible_state(b));
}

TEST(laws, a_full_budget_is_dense_attention_and_so_is_any_below_its_threshold) {
  const model_shape shape = small_plan().shape();
  const tokens rows = random_tokens(shape, 150, 4);
  for (const any_format& format : {any_format(float32{}), any_format(float16{}), any_format(bfloat16{})})
    for (const std::size_t chunk : {1U, 5U, 20U, 150U})
      for (const auto when : every_when) {
        const any_cache dense(head_plan(shape, head_role::retrieval), unlimited_budget{}, mean_compensation{},
                              when_to_compress::after_prompt, format);
        const auto check = [&](std::size_t sinks, any_budget budget, any_compensation compensation, std::size_t n) {
          const any_cache local(head_plan(shape, head_role::local, sinks), std::move(budget), std::move(compensation),
                                when, format);
          expect_same_bits(local, dense, rows, n, chunk);
        };
        check(4, unlimited_budget{}, mean_compensation{}, 150);
        check(0, fixed_budget{150}, moment_compensation{}, 150);
        // N <= S + W
        check(4, fixed_budget{60}, mean_compensation{}, 64);
        check(64, fixed_budget{1}, moment_compensation{}, 65);
        check(9, razor_budget{100, 5}, no_compensation{}, 109);
      }
}

TEST(laws, one_by_one_equals_a_block_in_the_state_and_where_nothing_is_folded_in_the_outputs) {
  const tokens rows = random_tokens(small_plan().shape(), 180, 5);
  for (const named_compensation& c : compensations())
    for (const std::size_t window : {1U, 9U, 64U, 200U}) {
      const auto fresh = [&](when_to_compress when) {
        return any_cache(small_plan(), fixed_budget{window}, c.compensation, when, float16{});
      };
      any_cache block = fresh(when_to_compress::after_prompt);
      const auto block_out = feed(block, rows, 0, 180);
      block.compress();

      any_cache exact = fresh(when_to_compress::after_prompt);  // one by one, compressed at the end
      const auto exact_out = feed_in_chunks(exact, rows, 0, 180, 1);
      for (std::size_t i = 0; i < block_out.size(); ++i) ASSERT_NEAR(exact_out[i], block_out[i], 1e-5);
      exact.compress();
      any_cache rolling = fresh(when_to_compress::every_append);  // one by one, compressed on the way
      for (std::size_t i = 0; i < 180; ++i) append(rolling, rows, i, 1);
      for (const any_cache* other : {&exact, &rolling}) {
        ASSERT_TRUE(visible_state(*other) == visible_state(block)) << c.name << ", window " << window;
        for (std::size_t layer = 0; layer < 2; ++layer)
          ASSERT_EQ(attended(*other, layer, rows.queries(179, 1)), attended(block, layer, rows.queries(179, 1)));
      }
    }
}

TEST(laws, one_worker_equals_many) {
  struct call {
    std::size_t dim, tokens, queries;
  };
  const auto check = [](const call& c, auto compensation) {
    const model_shape shape{1, 64, 32, c.dim, 0};
    head_plan plan(shape);
    for (const std::size_t head : {0U, 3U, 7U}) plan.set({0, head}, head_role::retrieval);
    const tokens rows = random_tokens(shape, c.tokens, 6);
    auto cache = make_cache<float32>(plan, fixed_budget{c.tokens / 2}, compensation);
    append(cache, rows, 0, c.tokens - c.queries);
    cache.compress();
    append(cache, rows, c.tokens - c.queries, c.queries);

    attend_schedule schedule;
    std::vector<float> alone(c.queries * 64 * c.dim), found(alone.size());
    const auto run = [&](std::vector<float>& out, const auto& executor) {
      attend(cache, 0, rows.queries(c.tokens - c.queries, c.queries), packed_output(out.data(), c.queries, 64, c.dim),
             schedule, executor);
    };
    run(alone, serial{});
    ASSERT_GE(schedule.tasks(), 64U);
    for (const std::size_t workers : {2U, 7U, 64U}) {
      run(found, threads{workers});
      ASSERT_EQ(found, alone) << workers << " workers, " << c.queries << " queries";
    }
    run(found, [](std::size_t count, auto&& task) {  // backwards
      while (count-- > 0) task(count);
    });
    ASSERT_EQ(found, alone);
#if defined(_OPENMP)
    run(found, openmp{5});
    ASSERT_EQ(found, alone);
#endif
  };
  // Ranges of rows to merge; then many blocks of queries.
  for (const call& c : {call{64, 6000, 1}, {64, 6000, 7}, {16, 1000, 250}}) check(c, mean_compensation{});
  check({64, 6000, 1}, moment_compensation{});
}

TEST(laws, attend_allocates_nothing_once_it_has_seen_the_largest_call) {
  const tokens rows = random_tokens(small_plan().shape(), 400, 7);
  any_cache cache(small_plan(), fixed_budget{20}, moment_compensation{}, when_to_compress::after_prompt, float16{});
  append(cache, rows, 0, 200);
  attend_schedule schedule;
  std::vector<float> out(200 * 4 * 6);
  attend(cache, 0, rows.queries(0, 200), packed_output(out.data(), 200, 4, 6), schedule);
  cache.compress();
  append(cache, rows, 200, 1);
  attend(cache, 0, rows.queries(200, 1), packed_output(out.data(), 1, 4, 6), schedule);
  std::size_t allocations = 0;
  for (std::size_t i = 201; i < 400; ++i) {
    append(cache, rows, i, 1);
    const std::size_t before = memory().allocations;
    for (std::size_t layer = 0; layer < 2; ++layer)
      attend(cache, layer, rows.queries(i, 1), packed_output(out.data(), 1, 4, 6), schedule);
    allocations += memory().allocations - before;
  }
  EXPECT_EQ(allocations, 0U);
}

TEST(laws, with_equals_a_cache_built_with_those_policies) {
  const tokens rows = random_tokens(small_plan().shape(), 200, 8);
  const auto dense = make_cache<float16>(head_plan(small_plan().shape(), head_role::retrieval));
  for (const named_budget& b : budgets())
    for (const std::size_t sinks : {0U, 4U, 70U}) {
      const auto check = [&](auto compensation) {
        auto source = dense;
        append(source, rows, 0, 130);
        const auto before = visible_state(source);
        auto changed = source.with(small_plan(sinks), b.budget, compensation);
        EXPECT_TRUE(visible_state(source) == before);
        auto built = make_cache<float16>(small_plan(sinks), b.budget, compensation);
        append(built, rows, 0, 130);
        for (const bool compressed : {false, true}) {
          if (compressed) {
            changed.compress();
            built.compress();
          }
          ASSERT_TRUE(visible_state(changed) == visible_state(built)) << b.name;
          ASSERT_EQ(changed.report().held_bytes(), built.report().held_bytes());
          ASSERT_EQ(changed.plan(), built.plan());
          for (std::size_t layer = 0; layer < 2; ++layer)
            ASSERT_EQ(attended(changed, layer, rows.queries(129, 1)), attended(built, layer, rows.queries(129, 1)));
        }
        for (std::size_t i = 130; i < 200; ++i)  // and goes on like it
          ASSERT_EQ(feed(changed, rows, i, 1), feed(built, rows, i, 1)) << b.name;
        EXPECT_TRUE(visible_state(source) == before);

        // Refused once a row has left any head.
        const auto state = visible_state(changed);
        if (changed.report().rows != 4 * 200) {
          EXPECT_THROW(changed.with(small_plan(), fixed_budget{9}, no_compensation{}), error);
        }
        EXPECT_TRUE(visible_state(changed) == state);
      };
      check(mean_compensation{});
      check(no_compensation{});
      check(moment_compensation{});
    }
  head_plan other(model_shape{2, 4, 2, 8, 5});
  EXPECT_THROW(dense.with(other, fixed_budget{9}, mean_compensation{}), error);
}

TEST(laws, a_copy_that_diverges_leaves_the_other_alone) {
  const tokens rows = random_tokens(small_plan().shape(), 200, 9);
  const tokens others = random_tokens(small_plan().shape(), 200, 99);
  for (const named_compensation& c : compensations())
    for (const std::size_t common : {0U, 1U, 63U, 64U, 130U}) {
      const auto fresh = [&] {
        return any_cache(small_plan(), fixed_budget{9}, c.compensation, when_to_compress::every_append, float32{});
      };
      any_cache a = fresh(), lone = fresh(), assigned = fresh();
      for (std::size_t i = 0; i < common; ++i) append(a, rows, i, 1);
      const auto state = visible_state(a);
      any_cache b = a;
      append(assigned, others, 0, 77);
      assigned = a;
      for (std::size_t i = common; i < 200; ++i) append(b, others, i, 1);
      EXPECT_TRUE(visible_state(a) == state);
      EXPECT_TRUE(visible_state(assigned) == state);
      for (std::size_t i = common; i < 200; ++i) append(a, rows, i, 1);
      for (std::size_t i = 0; i < 200; ++i) append(lone, i < common ? rows : others, i, 1);
      EXPECT_TRUE(visible_state(b) == visible_state(lone)) << c.name << " after " << common;
      EXPECT_TRUE(visible_state(assigned) == state);
    }
}

TEST(laws, failed_calls_change_nothing) {
  const tokens rows = random_tokens(small_plan().shape(), 300, 10);
  // A budget that refuses once it is asked for the last local head, after all others were prepared.
  bool refuses = false;
  const any_budget budget = [&refuses](head_id head, std::size_t) -> std::size_t {
    if (refuses && head == head_id{1, 1}) throw std::runtime_error("no budget");
    return 9;
  };
  for (const named_compensation& c : compensations())
    for (const bool rolling : {false, true}) {
      any_cache cache(small_plan(), budget, c.compensation,
                      rolling ? when_to_compress::every_append : when_to_compress::after_prompt, float16{});
      append(cache, rows, 0, 128);  // full pages: the next row needs a new one
      const auto before = visible_state(cache);
      refuses = true;
      EXPECT_THROW(cache.compress(), std::runtime_error);
      EXPECT_TRUE(visible_state(cache) == before) << "compress() of all layers";
      if (rolling) {
        EXPECT_THROW(cache.append(1, rows.keys(128, 1), rows.values(128, 1)), std::runtime_error);
        EXPECT_THROW(cache.append(1, rows.keys(128, 9), rows.values(128, 9)), std::runtime_error);
      }
      refuses = false;
      EXPECT_TRUE(visible_state(cache) == before);

      // Memory that runs out after 0, 1, 2 ... allocations, until the call succeeds.
      const auto starved = [&](any_cache& changed, auto&& call) {
        for (long allowed = 0;; ++allowed) {
          memory().allow = allowed;
          bool failed = false;
          try {
            call();
          } catch (const std::bad_alloc&) {
            failed = true;
          }
          memory().allow = -1;
          if (!failed) return allowed;
          EXPECT_TRUE(visible_state(changed) == before) << "after " << allowed << " allocations";
        }
      };
      EXPECT_GT(starved(cache, [&] { any_cache copy = cache; }), 4);
      if (!rolling) {
        EXPECT_GT(starved(cache, [&] { cache.with(small_plan(), budget, c.compensation); }), 4);
      }
      attend_schedule schedule;
      std::vector<float> out(4 * 6);
      const auto q = rows.queries(127, 1);
      EXPECT_GT(starved(cache, [&] { attend(cache, 0, q, packed_output(out.data(), 1, 4, 6), schedule); }), 2);

      any_cache target = cache, longer = cache;
      append(longer, rows, 128, 70);
      EXPECT_GT(starved(target, [&] { target = longer; }), 4) << "assignment";
      EXPECT_TRUE(visible_state(target) == visible_state(longer));

      any_cache shorter = cache;
      const long summaries = starved(shorter, [&] { shorter.compress(); });
      EXPECT_EQ(shorter.report().rows, 3U * 13U + 128U);
      if (std::string(c.name) != "none") {
        EXPECT_GT(summaries, 0);
      }

      EXPECT_GT(starved(cache, [&] { cache.append(0, rows.keys(128, 1), rows.values(128, 1)); }), 1) << "append";
      EXPECT_EQ(cache.layer_length(0), 129U);
      EXPECT_EQ(cache.length(), 128U);  // layer 1 has not followed yet
      cache.append(1, rows.keys(128, 1), rows.values(128, 1));
      EXPECT_EQ(cache.length(), 129U);
    }
}

}  // namespace
}  // namespace headwise::test
