// SPDX-License-Identifier: MIT
// Failures that others have reported about head scores and head tables, one test per case. What concerns the files of
// other projects comes with their readers; here our own profiles and plans meet the same damage.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/cache/kv_cache.hpp"
#include "headwise/policy/head_selection.hpp"
#include "headwise/probe/head_scorer.hpp"
#include "headwise/profile/plan_file.hpp"
#include "headwise/profile/profile_file.hpp"
#include "support/comma_locale.hpp"
#include "support/pattern_head.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace headwise;
using headwise::test::content;
using headwise::test::pattern_scores;
using headwise::test::put;
using headwise::test::temporary_folder;
using rows = std::vector<std::size_t>;

repeated_tokens probe_of_eight(std::size_t repeats) {
  return repeated_tokens::from_block({10, 11, 12, 13, 14, 15, 16, 17}, repeats);
}

/// Looks `lag` rows back, at itself where there is no such row.
auto looks_back(std::size_t lag) {
  return [lag](std::size_t i) { return rows{i >= lag ? i - lag : i}; };
}

TEST(prof, PROF_01_scores_mean_a_fraction_of_attention) {
  const repeated_tokens probe = probe_of_eight(2);
  const auto half_half = [](std::size_t i) { return i >= 8 ? rows{i - 8, i - 7} : rows{i}; };
  const struct {
    const char* head;
    head_scores found;
    double echo, induction;
  } cases[] = {
      {"echo", pattern_scores(probe, looks_back(8)), 1.0, 0.0},
      {"induction", pattern_scores(probe, looks_back(7)), 0.0, 1.0},
      {"previous token", pattern_scores(probe, looks_back(1)), 0.0, 0.0},
      {"one too far", pattern_scores(probe, looks_back(9)), 0.0, 0.0},
      {"half and half", pattern_scores(probe, half_half), 0.5, 0.5},
  };
  for (const auto& c : cases) {
    EXPECT_NEAR(c.found.at("echo", 0, 0), c.echo, 1e-6) << c.head;
    EXPECT_NEAR(c.found.at("induction", 0, 0), c.induction, 1e-6) << c.head;
  }
}

TEST(prof, PROF_03_rows_without_an_earlier_copy_are_not_in_the_mean_and_all_copies_count) {
  const auto at_everything = [](std::size_t) { return rows{}; };
  const head_scores uniform = pattern_scores(probe_of_eight(2), at_everything);
  EXPECT_NEAR(uniform.at("echo", 0, 0), 0.0828590, 1e-6);  // the mean of 1/9 .. 1/16
  EXPECT_NEAR(uniform.at("induction", 0, 0), 0.0828590, 1e-6);

  const repeated_tokens four = probe_of_eight(4);
  const auto evenly = [](std::size_t shift) {
    return [shift](std::size_t i) {
      rows copies;
      for (std::size_t back = 8; back <= i; back += 8) copies.push_back(i - back + shift);
      return copies;
    };
  };
  EXPECT_NEAR(pattern_scores(four, evenly(0)).at("echo", 0, 0), 1.0, 1e-6);
  EXPECT_NEAR(pattern_scores(four, evenly(1)).at("induction", 0, 0), 1.0, 1e-6);
  double expected = 0.0;  // row i sees i + 1 rows, floor(i / 8) of them earlier copies
  for (int i = 8; i < 32; ++i) expected += static_cast<double>(i / 8) / (i + 1) / 24;
  EXPECT_NEAR(pattern_scores(four, at_everything).at("echo", 0, 0), expected, 1e-6);
}

TEST(prof, PROF_04_sinks_and_recent_rows_cannot_be_swapped_unseen) {
  // A plan takes sinks behind a role, a budget takes recent rows, and nothing takes both as two plain numbers.
  static_assert(!std::is_constructible_v<head_plan, model_shape, std::size_t, std::size_t>);
  static_assert(!std::is_constructible_v<head_plan, model_shape, std::size_t>);
  static_assert(!std::is_convertible_v<std::size_t, head_role>);
  razor_budget budget;
  budget.min_recent = 256;
  head_plan plan({1, 1, 1, 1, 0});
  plan.set_sinks(64);

  auto cache = make_cache<float32>(plan, budget, mean_compensation{});
  const std::vector<float> ones(1000, 1.0F);
  cache.append(0, packed_rows(ones.data(), 1000, 1, 1), packed_rows(ones.data(), 1000, 1, 1));
  cache.compress();
  rows kept(64 + 256);
  std::iota(kept.begin(), kept.begin() + 64, std::size_t{0});
  std::iota(kept.begin() + 64, kept.end(), std::size_t{744});
  EXPECT_EQ(cache.kept_positions(0, 0), kept);
  EXPECT_EQ(cache.head(0, 0).folded(), 680U);

  const temporary_folder folder;  // the printed configuration names both
  write_plan(folder.file("plan.tsv"), {plan, budget});
  EXPECT_NE(content(folder.file("plan.tsv")).find("# sinks: 64\n# min_recent: 256\n"), std::string::npos);
}

/// A profile of `layers` x `heads` equal query heads on `kv_heads` KV heads, as text, row by row.
std::string profile_text(std::size_t layers, std::size_t heads, std::size_t kv_heads,
                         std::size_t short_row = SIZE_MAX) {
  std::string text =
      "# headwise profile 1\n# layers: 32\n# query_heads: 8\n# kv_heads: 8\n# head_dim: 1\n# value_dim: 1\n"
      "layer\tkv_head\tquery_head\techo\n";
  for (std::size_t i = 0; i < layers * heads; ++i)
    text += headwise::detail::join(i / heads, "\t", i % heads / (heads / kv_heads), "\t", i % heads,
                                   i == short_row ? "" : "\t0.5", "\n");
  return text;
}

TEST(prof, PROF_05_a_table_of_another_layout_is_refused_with_its_row_and_column) {
  const temporary_folder folder;
  const std::string path = folder.file("p.tsv");
  const auto read = [&](const std::string& text) {
    put(path, text);
    return read_profile(path);
  };
  EXPECT_NO_THROW(read(profile_text(32, 8, 8)));
  EXPECT_REFUSED(read(profile_text(32, 32, 8)), "p.tsv:9: kv_head: found '0', expected 1");  // query heads for KV heads
  EXPECT_REFUSED(read(profile_text(31, 8, 8)), "p.tsv:255: ", "after 248 rows, expected 256");
  EXPECT_REFUSED(read(profile_text(33, 8, 8)), "p.tsv:264: ", "more rows");
  EXPECT_REFUSED(read(profile_text(32, 8, 8, 100)), "p.tsv:108: found 3 fields, expected 4");

  const std::pair<const char*, double> numbers[] = {
      {"9.726562500000000000e-01", 0.97265625},
      {"1.0e+00", 1},
      {"0.0e+00", 0},
      {"9.960937500000000000e-01", 0.99609375},
      {"1.0000001", 1.0000001},
      {"-0.1", -0.1}};  // outside 0..1: a user's rule may score as it likes
  for (const auto& [written, number] : numbers) {
    const head_scores found = read(
        "# headwise profile 1\n# layers: 1\n# query_heads: 1\n# kv_heads: 1\n# head_dim: 1\n"
        "# value_dim: 1\nlayer\tkv_head\tquery_head\tmine\n0\t0\t0\t" +
        std::string(written) + "\n");
    EXPECT_EQ(found.at("mine", 0, 0), number);
  }
}

TEST(prof, PROF_07_a_comma_locale_changes_no_file) {
  const temporary_folder folder;
  head_scores scores(model_shape{1, 3, 1, 1000, 1000000});
  scores.add("echo", {0.25, 0.5, 1234567.5});
  plan_file plan{head_plan(scores.shape(), head_role::local, 1000), {1000000, 5}};
  write_profile(folder.file("profile"), scores);
  write_plan(folder.file("plan"), plan);
  const std::string profile_before = content(folder.file("profile")), plan_before = content(folder.file("plan"));
  EXPECT_NE(profile_before.find("# value_dim: 1000000\n"), std::string::npos);
  EXPECT_NE(profile_before.find("\t0.25\n"), std::string::npos);
  EXPECT_NE(plan_before.find("# min_recent: 1000000\n"), std::string::npos);

  const headwise::test::comma_locale commas;
  write_profile(folder.file("profile"), scores);
  write_plan(folder.file("plan"), plan);
  EXPECT_EQ(content(folder.file("profile")), profile_before);
  EXPECT_EQ(content(folder.file("plan")), plan_before);
  const head_scores found = read_profile(folder.file("profile"));
  for (std::size_t head = 0; head < 3; ++head) EXPECT_EQ(found.at("echo", 0, head), scores.at("echo", 0, head));
  EXPECT_EQ(read_plan(folder.file("plan")).budget.min_recent, 1000000U);
  EXPECT_REFUSED(combined_heads(1.5).plan(scores), "found 1.5");  // messages, too
}

TEST(prof, PROF_09_a_missing_score_is_refused_and_none_is_ever_ranked) {
  const temporary_folder folder;
  const std::string path = folder.file("p.tsv");
  for (const char* score : {"", "nan", "NaN", "null", "\"NaN\"", "[]", "-"}) {
    put(path,
        "# headwise profile 1\n# layers: 1\n# query_heads: 2\n# kv_heads: 2\n# head_dim: 1\n# value_dim: 1\n"
        "layer\tkv_head\tquery_head\techo\n0\t0\t0\t0.2\n0\t1\t1\t" +
            std::string(score) + "\n");
    const std::string found = "p.tsv:9: echo: found '" + std::string(score) + "', expected a finite number";
    EXPECT_REFUSED(read_profile(path), found.c_str());
  }
  // 1000 heads with 5 NaNs: no order exists, so no sort may see them.
  const model_shape shape{100, 10, 10, 1, 0};
  for (const std::size_t place : {0U, 1U, 500U, 995U}) {
    std::vector<double> spoiled(1000);
    for (std::size_t i = 0; i < 1000; ++i) spoiled[i] = static_cast<double>(i * 7919 % 1000);
    for (std::size_t i = 0; i < 5; ++i) spoiled[place + i] = std::numeric_limits<double>::quiet_NaN();
    head_scores scores(shape);
    scores.add("echo", std::vector<double>(1000, 0.5));
    scores.add("induction", spoiled);
    const std::string head = detail::join(place / 10, ".", place % 10, " is ");
    EXPECT_REFUSED(retrieval_heads{}.plan(scores), "query head", head.c_str(), "nan");
    EXPECT_REFUSED(combined_heads{}.plan(scores), "query head", head.c_str(), "nan");
  }
  // A probe in which a rule finds no row to score is refused, not divided by 0.
  head_scorer scorer(model_shape{1, 1, 1, 1, 0}, probe_of_eight(2));
  EXPECT_REFUSED(scorer.scores(), "0 of the probe's 16 tokens");
}

head_scores equal_scores(std::size_t heads) {
  head_scores scores(model_shape{heads, 1, 1, 1, 0});
  scores.add("echo", std::vector<double>(heads, 0.5));
  scores.add("induction", std::vector<double>(heads, 0.5));
  return scores;
}

TEST(prof, PROF_11_a_share_of_the_heads_kept_becomes_one_count_whatever_the_ties) {
  const head_scores ten = equal_scores(10);
  const std::pair<double, std::size_t> counts[] = {{0.15, 2}, {0.25, 3}, {0.0, 0},      {1.0, 10},
                                                   {1e-9, 0}, {0.05, 1}, {0.999999, 10}};
  for (const auto& [share, count] : counts)
    for (int run = 0; run < 3; ++run) {
      const std::vector<head_id> chosen = combined_heads(share).plan(ten).retrieval_heads();
      ASSERT_EQ(chosen.size(), count) << share;
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(chosen[i].layer, i);  // the lowest first
    }
  for (const double share : {std::numeric_limits<double>::quiet_NaN(), 1.5, -0.1})
    EXPECT_REFUSED(combined_heads(share).plan(ten), "0..1");

  // 1 % echo and 14 % induction of 1024 heads: 10 and 143, of which 5 are in both lists.
  std::vector<double> echo(1024, 0.0), induction(1024, 0.0);
  for (std::size_t i = 0; i < 143; ++i) induction[i] = 1.0;
  for (std::size_t i = 138; i < 148; ++i) echo[i] = 1.0;
  head_scores scores(model_shape{128, 8, 8, 1, 0});
  scores.add("echo", echo);
  scores.add("induction", induction);
  for (int run = 0; run < 3; ++run) {
    const head_plan plan = retrieval_heads{}.plan(scores);
    EXPECT_EQ(plan.retrieval_heads().size(), 10U + 143U - 5U);
    for (std::size_t i = 0; i < 148; ++i) EXPECT_EQ(plan.role({i / 8, i % 8}), head_role::retrieval);
  }
}

TEST(prof, PROF_12_odd_numbers_are_read_as_json_reads_them_or_refused) {
  const temporary_folder folder;
  const std::string path = folder.file("p.tsv");
  const std::string before =
      "# headwise profile 1\n# layers: 1\n# query_heads: 2\n# kv_heads: 2\n# head_dim: 1\n# value_dim: 1\n"
      "layer\tkv_head\tquery_head\techo\n0\t0\t0\t";
  const std::string after = "\n0\t1\t1\t0.75\n";
  const auto read = [&](const std::string& text) {
    put(path, text);
    return read_profile(path).at("echo", 0, 0);
  };
  const std::pair<const char*, double> good[] = {
      {"1e-3", 1e-3}, {"1E+2", 100}, {"0.0", 0}, {"-0", 0}, {"-2.5e-1", -0.25}};
  for (const auto& [written, number] : good) EXPECT_EQ(read(before + written + after), number) << written;
  EXPECT_TRUE(std::signbit(read(before + "-0" + after)));
  for (const char* bad :
       {"1e999", "-1e999", "1e-400", ".5", "5.", "01", "+1", "1e", "NaN", "inf", "0x1", "1,", "1 // one"})
    EXPECT_REFUSED(read(before + bad + after), "p.tsv:8: echo: found '", bad);
  const std::string whole = before + "0.5" + after;
  EXPECT_EQ(read(whole), 0.5);
  for (const char* rest : {"x", "\n", "}", "# end\n", "\t", "\v"}) EXPECT_REFUSED(read(whole + rest), "p.tsv:10: ");
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_REFUSED(headwise::detail::parse_profile(path, whole.substr(0, length), nullptr), "p.tsv:");
}

}  // namespace
