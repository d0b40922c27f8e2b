// SPDX-License-Identifier: MIT
// Cases BUILD: workers, memory, lengths given by the caller.

#include <gtest/gtest.h>

#include <cstddef>
#include <memory_resource>
#include <new>
#include <thread>
#include <vector>

#include "support/counted_memory.hpp"
#include "support/counting_map.hpp"
#include "support/counting_new.hpp"
#include "support/threads.hpp"
#include "support/tokens.hpp"

namespace headwise::test {
namespace {

TEST(build, BUILD_06_the_number_of_workers_does_not_change_a_bit) {
  const model_shape shape{5, 9, 3, 8, 0};
  head_plan plan(shape);
  for (std::size_t layer = 0; layer < 5; ++layer) plan.set({layer, layer % 3}, head_role::retrieval);
  const tokens rows = random_tokens(shape, 5000, 6);
  auto cache = make_cache<float16>(plan, fixed_budget{1000});
  append(cache, rows, 0, 5000);
  cache.compress();

  std::vector<std::vector<float>> alone;
  for (std::size_t layer = 0; layer < 5; ++layer) alone.push_back(attended(cache, layer, rows.queries(4998, 2)));
  for (std::size_t repeat = 0; repeat < 50; ++repeat)
    for (const std::size_t workers : {1U, 2U, 3U, 5U, 7U, 8U, 16U, 61U})
      ASSERT_EQ(attended(cache, repeat % 5, rows.queries(4998, 2), threads{workers}), alone[repeat % 5])
          << workers << " workers";
#if defined(_OPENMP)
  for (std::size_t layer = 0; layer < 5; ++layer)
    for (const int workers : {2, 7})
      ASSERT_EQ(attended(cache, layer, rows.queries(4998, 2), openmp{workers}), alone[layer]);
#endif
}

TEST(build, BUILD_06_two_caches_at_once_and_two_layers_at_once) {
  const model_shape shape{2, 4, 2, 16, 0};
  const tokens rows = random_tokens(shape, 400, 66);
  const auto one_layer = [&](auto& cache, std::size_t layer) {
    std::vector<float> out;
    for (std::size_t i = 0; i < 400; ++i) {
      cache.append(layer, rows.keys(i, 1), rows.values(i, 1));
      const auto found = attended(cache, layer, rows.queries(i, 1));
      out.insert(out.end(), found.begin(), found.end());
    }
    return out;
  };
  const auto fresh = [&] {
    return make_cache<float16>(head_plan(shape), fixed_budget{20}, mean_compensation{}, when_to_compress::every_append);
  };
  auto reference = fresh();
  const auto expected = one_layer(reference, 0);
  auto a = fresh(), b = fresh();
  std::vector<std::vector<float>> found(3);
  std::thread first([&] { found[0] = one_layer(a, 0); });
  std::thread second([&] { found[1] = one_layer(a, 1); });
  std::thread third([&] { found[2] = one_layer(b, 0); });
  first.join();
  second.join();
  third.join();
  for (const auto& out : found) EXPECT_EQ(out, expected);
}

TEST(build, BUILD_07_reported_bytes_are_the_bytes_that_were_taken) {
  // Documented slack: at most two pages of 64 rows a head are partly empty
  // at each edge, and what a head needs besides its rows. Documented spare: gaps of 2 % between rows, and of each of
  // the two arenas about one chunk of 2 MiB.
  constexpr std::size_t n = 100000, chunk = 500, kept = 4 + 20000;
  const model_shape shape{1, 8, 8, 64, 0};
  head_plan plan(shape);
  plan.set({0, 3}, head_role::retrieval);
  tokens rows(shape, chunk);
  rows.v.assign(rows.v.size(), 0.5F);

  const auto in_use = [] { return memory().live_bytes + memory().mapped_bytes; };
  const std::size_t before = in_use();
  {
    auto cache = make_cache<float16>(plan, razor_budget{}, mean_compensation{}, when_to_compress::every_append);
    for (std::size_t i = 0; i < n; i += chunk) append(cache, rows, 0, chunk);
    cache.compress();
    const cache_report report = cache.report();
    EXPECT_EQ(report.rows, n + 7 * kept);
    EXPECT_EQ(report.folded, 7 * (n - kept));
    EXPECT_EQ(report.row_bytes, report.rows * 256);
    EXPECT_EQ(report.dense_bytes, 8 * n * 256);
    EXPECT_LE(report.slack_bytes, 8 * 4 * 64 * 256);
    EXPECT_LE(report.spare_bytes, report.row_bytes / 40 + 2 * 3 * (std::size_t{1} << 20));
    EXPECT_GT(report.summary_bytes, 0U);

    const std::size_t taken = in_use() - before - report.heads.capacity() * sizeof(head_report);
    EXPECT_GE(taken, report.held_bytes());
    EXPECT_LE(static_cast<double>(taken), 1.01 * static_cast<double>(report.held_bytes()));
    const double estimate = 256.0 * static_cast<double>(n + 7 * kept);  // what a user computes before the run
    EXPECT_NEAR(static_cast<double>(report.held_bytes() - report.spare_bytes), estimate, 0.05 * estimate);

    head_report sum;
    for (const head_report& head : report.heads) {
      EXPECT_EQ(head.rows + head.folded + head.dropped, n);
      sum.row_bytes += head.row_bytes;
      sum.slack_bytes += head.slack_bytes;
      sum.summary_bytes += head.summary_bytes;
    }
    EXPECT_EQ(sum.row_bytes + sum.slack_bytes + report.spare_bytes + sum.summary_bytes, report.held_bytes());
    ASSERT_TRUE(cache.truncate(0));
    EXPECT_LE(cache.report().held_bytes(), 2 * (std::size_t{2} << 20));  // a spare chunk of each arena
    EXPECT_EQ(cache.report().row_bytes + cache.report().slack_bytes + cache.report().summary_bytes, 0U);
  }
  EXPECT_EQ(in_use(), before);
}

TEST(build, BUILD_07_a_limit_on_memory_is_heeded_by_the_call_that_exceeds_it) {
  struct limited : std::pmr::memory_resource {
    std::size_t left = std::size_t{1} << 20;

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      if (bytes > left) throw std::bad_alloc();
      left -= bytes;
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
      left += bytes;
      std::pmr::new_delete_resource()->deallocate(block, bytes, alignment);
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
  } budget;
  const model_shape shape{1, 2, 2, 64, 0};
  const tokens rows = counting_tokens(shape, 64);
  {
    cache_options options;
    options.memory = &budget;
    auto cache = make_cache<float16>(head_plan(shape), fixed_budget{500}, mean_compensation{},
                                     when_to_compress::after_prompt, float16{}, options);
    std::size_t n = 0;
    std::vector<head_state> state;
    EXPECT_THROW(
        for (; n < 100000; n += 64) {
          state = visible_state(cache);
          append(cache, rows, 0, 64);
        },
        std::bad_alloc);
    EXPECT_GT(n, 1000U);
    EXPECT_LT(n, 2048U);  // 2 heads x 256 bytes a token in 1 MiB
    EXPECT_TRUE(visible_state(cache) == state);
    cache.compress();  // needs none of that memory, and gives some back
    append(cache, rows, 0, 64);
    EXPECT_EQ(cache.length(), n + 64);
  }
  EXPECT_EQ(budget.left, std::size_t{1} << 20);
}

TEST(build, BUILD_09_lengths_given_by_the_caller_are_checked) {
  const model_shape shape{2, 4, 2, 8, 4};
  const tokens rows = random_tokens(shape, 40, 9);
  auto cache = make_cache<float32>(head_plan(shape), fixed_budget{6});
  append(cache, rows, 0, 30);
  cache.compress();
  const auto before = visible_state(cache);

  const auto changed = [](auto view, auto&& change) {
    change(view);
    return view;
  };
  const token_view k = rows.keys(30, 3), v = rows.values(30, 3), q = rows.queries(30, 3);
  const std::vector<token_view> bad_keys = {
      changed(k, [](token_view& w) { w.tokens = static_cast<std::size_t>(-1); }),
      changed(k, [](token_view& w) { w.tokens = std::size_t{1} << 31; }),
      changed(k, [](token_view& w) { w.tokens = 4; }),  // not as many as values
      changed(k, [](token_view& w) { w.extent -= 1; }),
      changed(k, [](token_view& w) { w.data = nullptr; }),
      changed(k, [](token_view& w) { w.head_stride = 7; }),
      changed(k, [](token_view& w) { w.token_stride = 7; }),
      changed(k,
              [](token_view& w) { w.token_stride = (std::numeric_limits<std::size_t>::max)() / 2; }),  // must not wrap
      changed(k, [](token_view& w) { w.heads = 4; }),
      changed(k, [](token_view& w) { w.dim = 4; })};
  for (const token_view& bad : bad_keys) EXPECT_THROW(cache.append(0, bad, v), error);
  EXPECT_THROW(cache.append(0, k, changed(v, [](token_view& w) { w.extent -= 1; })), error);
  EXPECT_THROW(cache.append(0, k, changed(v, [](token_view& w) { w.data = nullptr; })), error);
  EXPECT_THROW(cache.append(0, k, k), error);
  EXPECT_THROW(cache.append(2, k, v), error);
  EXPECT_THROW(cache.compress(2), error);
  EXPECT_THROW(cache.head(2, 0), error);
  EXPECT_THROW(cache.head(0, 2), error);
  EXPECT_THROW(cache.kept_positions(0, 2), error);
  EXPECT_THROW(cache.layer_length(2), error);
  EXPECT_TRUE(visible_state(cache) == before);

  append(cache, rows, 30, 3);
  const auto fed = visible_state(cache);
  std::vector<float> out(3 * 4 * 4, -7.0F);
  output_view o = packed_output(out.data(), 3, 4, 4);
  o.extent = out.size();
  attend_schedule schedule;
  const auto refused = [&](std::size_t layer, const token_view& queries, const output_view& output,
                           const attention_params& params = {}) {
    EXPECT_THROW(attend(cache, layer, queries, output, schedule, serial{}, params), error);
  };
  refused(0, q, changed(o, [](output_view& w) { w.extent -= 1; }));
  refused(0, q, changed(o, [](output_view& w) { w.head_stride = 3; }));
  refused(0, q, changed(o, [](output_view& w) { w.tokens = 2; }));
  refused(0, q, changed(o, [](output_view& w) { w.data = nullptr; }));
  refused(0, q, changed(o, [](output_view& w) { w.dim = 8; }));
  refused(0, changed(q, [](token_view& w) { w.extent -= 1; }), o);
  refused(0, changed(q, [](token_view& w) { w.tokens = std::size_t{1} << 31; }), o);
  refused(0, changed(q, [](token_view& w) { w.heads = 2; }), o);
  refused(2, q, o);
  attention_params params;
  params.first_position = 31;  // the last of three queries would be at 33
  refused(0, q, o, params);
  params.first_position = 10;  // the rows it could see have left
  refused(0, q, o, params);
  params = {};
  params.softcap = -1.0F;
  refused(0, q, o, params);
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float x) { return x == -7.0F; }));
  EXPECT_TRUE(visible_state(cache) == fed);

  attend(cache, 0, q, o, schedule);  // and the same arguments without a fault are fine
  EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float x) { return x == -7.0F; }));
}

}  // namespace
}  // namespace headwise::test
