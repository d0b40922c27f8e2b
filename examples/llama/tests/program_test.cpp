// SPDX-License-Identifier: MIT
// headwise-llama as people run it: its files, its words, and what it does with bad input. HEADWISE_LLAMA is the
// program, HEADWISE_MODEL the small model, HEADWISE_TEST_DIR where files go.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "headwise/policy/head_selection.hpp"
#include "headwise/profile/profile_file.hpp"
#include "tiny_model.hpp"

namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct result {
  int status = -1;
  std::string words;  // standard output, then standard error
};

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The cells of a TSV below its column names, which must begin with `columns`.
std::vector<std::vector<std::string>> rows_of(const fs::path& path, const std::string& columns) {
  std::istringstream text(slurp(path));
  std::vector<std::vector<std::string>> rows;
  std::string line;
  bool named = false;
  while (std::getline(text, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (!named) {
      EXPECT_EQ(line.substr(0, columns.size()), columns) << path;
      named = true;
      continue;
    }
    std::vector<std::string> row(1);
    for (const char c : line) {
      if (c == '\t')
        row.emplace_back();
      else
        row.back() += c;
    }
    rows.push_back(row);
  }
  return rows;
}

class program : public testing::Test {
 protected:
  void SetUp() override {
    if (variable("HEADWISE_LLAMA").empty() || variable("HEADWISE_MODEL").empty())
      GTEST_SKIP() << "HEADWISE_LLAMA and HEADWISE_MODEL name no program and no model";
    const std::string chosen = variable("HEADWISE_TEST_DIR");
    large_ = chosen.empty() ? fs::temp_directory_path() / "headwise_llama_test" : fs::path(chosen);
    folder_ = large_ / ("program_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::string model() const { return variable("HEADWISE_MODEL"); }

  /// Runs the program; arguments are quoted by the caller where they need it.
  result run(const std::string& arguments) const {
    const std::string out = file("stdout"), err = file("stderr");
    const std::string command = variable("HEADWISE_LLAMA") + " " + arguments + " >" + out + " 2>" + err;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, slurp(out) + slurp(err)};
  }

  /// The program says no in one line that has all `parts` in it, and leaves nothing behind.
  void refuses(const std::string& arguments, const std::vector<std::string>& parts) const {
    const auto before = listing();
    const result said = run(arguments);
    EXPECT_NE(said.status, 0) << arguments;
    EXPECT_LT(said.status, 128) << arguments;
    const std::string words = slurp(file("stderr"));
    EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 1) << arguments << "\n" << words;
    for (const std::string& part : parts) EXPECT_NE(words.find(part), std::string::npos) << part << "\n" << words;
    EXPECT_EQ(listing(), before) << arguments;
  }

  /// A profile of two short copies of a block, and a plan from it.
  void make_plan(const std::string& more = "--min-recent 32 --divisor 0") const {
    const result profile = run("profile -q -m " + model() + " --block 40 --repeats 2 -o " + file("out"));
    ASSERT_EQ(profile.status, 0) << profile.words;
    const result plan = run("plan -p " + file("out/profile.tsv") + " " + more + " -o " + file("plan.tsv"));
    ASSERT_EQ(plan.status, 0) << plan.words;
  }

  fs::path large_;
  fs::path folder_;

 private:
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (entry.path().filename() != "stdout" && entry.path().filename() != "stderr")
        names.push_back(entry.path().string() + (entry.is_regular_file() ? slurp(entry.path()) : ""));
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(program, EachCommandWritesTheTablesThatOthersRead) {
  make_plan();
  const auto scores = rows_of(file("out/profile.tsv"), "layer\tkv_head\tquery_head\techo\tinduction");
  EXPECT_EQ(scores.size(), 270U);
  EXPECT_TRUE(fs::exists(file("out/heads.png")));
  EXPECT_EQ(rows_of(file("plan.tsv"), "layer\tkv_head\trole").size(), 90U);

  const result needle = run("needle -q -m " + model() + " -p " + file("plan.tsv") +
                            " --length 700 --depths 2 --keys 1,2 --methods full,razor,local -o " + file("out"));
  ASSERT_EQ(needle.status, 0) << needle.words;
  const auto needles =
      rows_of(file("out/needle.tsv"),
              "method\tlength\tkeys\ttrials\texact\texact_low\texact_high\tdigits\tnll\tkl\tbytes\tdense_bytes");
  ASSERT_EQ(needles.size(), 6U);
  EXPECT_EQ(needles[0][0], "full");
  EXPECT_EQ(needles[0][9], "0.0000");                                     // the full cache does not differ from itself
  EXPECT_LT(std::stod(needles[1][10]), 0.8 * std::stod(needles[1][11]));  // 700 rows of few heads, 36 of the others,
                                                                          // and their pages
  EXPECT_TRUE(fs::exists(file("out/needle.png")));

  const result text =
      run("text -q -m " + model() + " -p " + file("plan.tsv") +
          " --length 200 --tokens 20 --contexts 2 --methods razor,none --compensation moment -o " + file("out"));
  ASSERT_EQ(text.status, 0) << text.words;
  const auto texts = rows_of(file("out/text.tsv"), "method\tlength\ttokens\tnll\tkl\tbytes\tdense_bytes");
  ASSERT_EQ(texts.size(), 3U);
  EXPECT_GT(std::stod(texts[1][4]), 0.0);  // something was lost

  const result seen = run("needle -q -m " + model() + " -p " + file("plan.tsv") +
                          " --query-seen --rows bf16 --length 300 --depths 1 --methods razor -o " + file("seen"));
  ASSERT_EQ(seen.status, 0) << seen.words;
  EXPECT_NE(seen.words.find("question seen before compression"), std::string::npos) << seen.words;
}

TEST_F(program, CertificatesHoldOnTheModel) {
  make_plan();
  const std::string command =
      "certificate -q -m " + model() + " -p " + file("plan.tsv") + " --length 300 --tokens 20 --contexts 2 -o ";
  const std::string columns =
      "heads\toutputs\toutput_median\terror_median\terror_90\terror_max\tbound_median\tbound_90\tbound_max\t"
      "ratio_median\tratio_90\tratio_max\texceeded\tnone";
  for (const char* compensation : {"mean", "moment"}) {
    const result said = run(command + file(compensation) + " --compensation " + compensation);
    ASSERT_EQ(said.status, 0) << said.words;
    const auto rows = rows_of(file(compensation) + "/certificate.tsv", columns);
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0][0], "retrieval");
    EXPECT_EQ(rows[1][0], "local");
    EXPECT_EQ(std::stoi(rows[0][1]) + std::stoi(rows[1][1]), 30 * 9 * 20 * 2);  // every head of every query
    EXPECT_EQ(rows[0][8], "0.000");
    EXPECT_EQ(rows[0][11], "-");  // no error at all
    EXPECT_GT(std::stod(rows[1][3]), 0.0);
    EXPECT_GE(std::stod(rows[1][6]), std::stod(rows[1][3]));
    EXPECT_GE(std::stod(rows[1][8]), std::stod(rows[1][5]));
    for (const auto& row : rows) {
      EXPECT_EQ(row[12], "0") << "a bound that does not hold";
      EXPECT_EQ(row[13], "0");
    }
  }
  const result none = run(command + file("none") + " --compensation none");
  ASSERT_EQ(none.status, 0) << none.words;
  const auto rows = rows_of(file("none/certificate.tsv"), columns);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1][13], rows[1][1]);  // nothing is known of rows that were dropped
  EXPECT_EQ(rows[1][6], "-");
}

TEST_F(program, GenerateSaysWhatItHolds) {
  make_plan();
  std::string prompt = "Repeat the word apple.";
  for (int i = 0; i < 40; ++i) prompt += " The sky is blue and the grass is green.";
  std::ofstream(file("prompt.txt")) << prompt;
  const result small =
      run("generate -q -m " + model() + " -p " + file("plan.tsv") + " -f " + file("prompt.txt") + " -n 5");
  ASSERT_EQ(small.status, 0) << small.words;
  for (const char* part : {"bytes held", "rows kept", "rows folded", "tokens/s"})
    EXPECT_NE(small.words.find(part), std::string::npos) << part << "\n" << small.words;
  // With a window longer than the prompt nothing is folded: the same answer as with the full cache.
  make_plan("--min-recent 4000");
  const auto answer = [](const result& r) { return r.words.substr(0, r.words.find("bytes held")); };
  const result same = run("generate -q -m " + model() + " -p " + file("plan.tsv") + " 'Name three colours.' -n 12");
  const result full = run("generate -q -m " + model() + " --full 'Name three colours.' -n 12");
  ASSERT_EQ(same.status, 0) << same.words;
  EXPECT_EQ(answer(same), answer(full));
}

/// A model with sliding windows goes through every command, and its plans say where the windows are.
TEST_F(program, WindowedLayersAreInProfilesAndPlans) {
  const headwise_llama::test::tiny_model tiny;
  const std::string model = tiny.write("program_windows").string();
  const result profile = run("profile -q -m " + model + " --block 60 --repeats 3 -o " + file("out"));
  ASSERT_EQ(profile.status, 0) << profile.words;
  EXPECT_NE(slurp(file("out/profile.tsv")).find("\n# windows: 48 48 0 48 48 0\n"), std::string::npos);
  EXPECT_NE(profile.words.find("4 layers"), std::string::npos) << profile.words;
  const result plan =
      run("plan -p " + file("out/profile.tsv") + " --share 0.25 --min-recent 16 --divisor 0 -o " + file("plan.tsv"));
  ASSERT_EQ(plan.status, 0) << plan.words;
  EXPECT_NE(plan.words.find("1 of 4 KV heads"), std::string::npos) << plan.words;
  const auto roles = rows_of(file("plan.tsv"), "layer\tkv_head\trole");
  ASSERT_EQ(roles.size(), 12U);
  for (const auto& row : roles) EXPECT_EQ(row[2] == "windowed:48", row[0] != "2" && row[0] != "5") << row[0];

  const std::string with_plan = " -q -m " + model + " -p " + file("plan.tsv");
  const result needle = run("needle" + with_plan + " --length 500 --depths 1 -o " + file("out"));
  ASSERT_EQ(needle.status, 0) << needle.words;
  EXPECT_EQ(rows_of(file("out/needle.tsv"), "method").size(), 6U);
  const result text = run("text" + with_plan + " --length 300 --tokens 20 --contexts 1 -o " + file("out"));
  ASSERT_EQ(text.status, 0) << text.words;
  const std::string prompt = " -n 30 'one two three one two three one two three one two three one two three one two'";
  const result plain = run("generate" + with_plan + prompt);
  const result drafted = run("generate" + with_plan + " --draft 8" + prompt);
  ASSERT_EQ(plain.status, 0) << plain.words;
  ASSERT_EQ(drafted.status, 0) << drafted.words;
  EXPECT_EQ(plain.words.substr(0, plain.words.find("bytes held")),
            drafted.words.substr(0, drafted.words.find("bytes held")));
  const result bench = run("bench" + with_plan + " --threads 1 --length 300 --decode 4 --rounds 1 -o " + file("out"));
  ASSERT_EQ(bench.status, 0) << bench.words;

  headwise_llama::test::tiny_model other;
  other.pattern = {2};
  const std::string wrong = other.write("program_windows_2").string();
  refuses("generate -q -m " + wrong + " -p " + file("plan.tsv") + " hello",
          {"plan.tsv", "another model", "window of 48", "layer 1", "expected 0"});
  refuses("plan --auto -q -m " + wrong + " -p " + file("out/profile.tsv") + " -o " + file("auto.tsv"),
          {"profile.tsv", "another model", "layer 1"});
}

TEST_F(program, APromptThatWasSavedGoesOnInAnotherProcess) {
  make_plan("--min-recent 24 --divisor 0");
  std::string prompt = "Repeat the word apple.";
  for (int i = 0; i < 40; ++i) prompt += " The sky is blue and the grass is green.";
  std::ofstream(file("prompt.txt")) << prompt;
  const std::string generate = "generate -q -m " + model() + " -p " + file("plan.tsv");
  const auto answer = [](const result& r) { return r.words.substr(0, r.words.find("bytes held")); };
  for (const std::string& options : {std::string(" -n 24 "), std::string(" -n 24 --compensation moment --draft 4 ")}) {
    const result before = run(generate + options + "-f " + file("prompt.txt") + " --save " + file("prompt.hw"));
    ASSERT_EQ(before.status, 0) << before.words;
    const result after = run(generate + options + "--load " + file("prompt.hw"));
    ASSERT_EQ(after.status, 0) << after.words;
    EXPECT_EQ(answer(after), answer(before));
    const auto line = [](const result& r, const char* name) {
      const std::size_t at = r.words.find(name);
      return r.words.substr(at, r.words.find('\n', at) - at);
    };
    EXPECT_EQ(line(after, "rows folded"), line(before, "rows folded"));
    EXPECT_NE(line(after, "rows folded").find_first_of("123456789"), std::string::npos);
    EXPECT_EQ(after.words.find("\nprompt:"), std::string::npos) << "the prompt ran again";
  }

  const std::string load = " -n 4 --load " + file("prompt.hw");
  refuses(generate + load, {"prompt.hw", "moment", "mean"});
  refuses(generate + " --compensation moment --rows f32" + load, {"prompt.hw", "format", "'f16'", "'f32'"});
  refuses(generate + " --compensation moment --reserve 8" + load, {"prompt.hw", "reserve", "64", "8"});
  refuses("generate -q -m " + model() + " --full" + load, {"prompt.hw"});
  refuses(generate + load + " hello", {"expected a prompt"});
  refuses(generate + " -n 4 --load " + file("prompt.txt"), {"prompt.txt", "not a prompt"});
  refuses(generate + " -n 4 --load " + file("none.hw"), {"none.hw"});
  const std::string tiny = headwise_llama::test::tiny_model{}.write("program_other").string();
  refuses("generate -q --full -m " + tiny + load, {"prompt.hw", "another model"});
  const std::string good = slurp(file("prompt.hw"));
  const auto damaged = [&](std::string bytes) {
    std::ofstream(file("bad.hw"), std::ios::binary) << bytes;
    refuses(generate + " --compensation moment -n 4 --load " + file("bad.hw"), {"bad.hw"});
  };
  for (const std::size_t place : {9UL, 30UL, 200UL, 5000UL, good.size() / 2, good.size() - 3}) {
    std::string bytes = good;
    bytes[place] = static_cast<char>(bytes[place] ^ 4);
    damaged(bytes);
  }
  for (const std::size_t length : {0UL, 8UL, 40UL, 2000UL, good.size() / 2, good.size() - 1})
    damaged(good.substr(0, length));
  damaged(good + "x");
  refuses(generate + " -n 4 --save " + file("no/prompt.hw") + " hello", {"no/prompt.hw"});
}

TEST_F(program, BenchMeasuresEachEngineInAProcessOfItsOwn) {
  make_plan("--min-recent 8 --divisor 0");
  const std::string command = "bench -q -m " + model() + " -p " + file("plan.tsv") + " --threads 1 ";
  const result bench = run(command + "--length 64 --decode 6 --rounds 1 -o " + file("out"));
  ASSERT_EQ(bench.status, 0) << bench.words;
  for (const char* part : {"each at the faster", "in headwise", "overhead"})
    EXPECT_NE(bench.words.find(part), std::string::npos) << part << "\n" << bench.words;
  const auto rows = rows_of(file("out/bench.tsv"),
                            "engine\tlength\tthreads\tprompt_tps\tdecode_tps\tcache_bytes\tpeak_bytes\tmax_logit_diff");
  ASSERT_EQ(rows.size(), 4U);
  const char* const engines[] = {"stock", "stock_noflash", "full", "compressed"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i][0], engines[i]);
    EXPECT_EQ(rows[i][1], "64");
    EXPECT_EQ(rows[i][2], "1");
    for (const std::size_t column : {3U, 4U, 5U, 6U}) EXPECT_GT(std::stod(rows[i][column]), 0.0) << i << " " << column;
    EXPECT_GT(std::stod(rows[i][6]), 2e7) << "the weights alone are more";
  }
  // Rounding in other orders moves logits by a little; 8 recent rows of 64 move them by more.
  for (const std::size_t i : {0U, 1U, 2U}) EXPECT_LT(std::stod(rows[i][7]), 4.0) << i;
  EXPECT_GT(std::stod(rows[3][7]), std::stod(rows[2][7]));
}

TEST_F(program, BenchTakesEnginesAndPoliciesAndHasNoRatioWithoutStock) {
  make_plan("--min-recent 8 --divisor 0");
  const result bench = run("bench -q -m " + model() + " -p " + file("plan.tsv") +
                           " --engines compressed --threads 1 --when every_append --rows f32 --chunk 16" +
                           " --compensation none --length 40 --decode 3 --rounds 2 -o " + file("out"));
  ASSERT_EQ(bench.status, 0) << bench.words;
  const auto rows = rows_of(file("out/bench.tsv"), "engine\tlength\tthreads");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0][0], "compressed");
  EXPECT_EQ(rows[0][8], "any");  // one thread waits for nobody
  EXPECT_EQ(rows[0][9], "2");
  EXPECT_EQ(rows[0][11], "-");
}

TEST_F(program, ABenchThatCannotRunSaysWhy) {
  make_plan();
  const std::string command = "bench -q -m " + model() + " -p " + file("plan.tsv") + " --threads 1 -o " + file("new");
  refuses(command + " --length 8192", {"--length", "8192", "64", "context"});
  refuses(command + " --engines stock,best", {"best", "compressed"});
  refuses("bench -q -m " + file("none.gguf") + " -p " + file("plan.tsv") + " -o " + file("new"), {"none.gguf"});
  refuses("bench -q -m " + model() + " -p " + file("out/profile.tsv") + " -o " + file("new"), {"profile.tsv"});
  std::ofstream(file("short.txt")) << "Too little.";
  refuses(command + " -f " + file("short.txt"), {"text", "tokens", "7964"});
  refuses("bench -q -m " + model() + " -p " + file("plan.tsv") + " --length 8 -o " + file("plan.tsv"),
          {"plan.tsv", "folder"});
  for (const char* nonsense : {" --rounds 0", " --threads -1", " --wait eager", " --decode 0", " --length many"}) {
    const result said = run(command + nonsense);
    EXPECT_NE(said.status, 0) << nonsense;
    EXPECT_LT(said.status, 128) << nonsense;
  }
  EXPECT_FALSE(fs::exists(file("new")));
}

TEST_F(program, NothingFoldedIsSaid) {
  make_plan("--min-recent 4000");
  const result needle = run("needle -q -m " + model() + " -p " + file("plan.tsv") +
                            " --length 300 --depths 1 --methods razor -o " + file("out"));
  ASSERT_EQ(needle.status, 0) << needle.words;
  EXPECT_NE(needle.words.find("nothing is folded"), std::string::npos) << needle.words;
  EXPECT_EQ(rows_of(file("out/needle.tsv"), "method")[1][9], "0.0000");
  refuses("plan -q --auto -m " + model() + " -p " + file("out/profile.tsv") + " --length 300 --trials 1 -o " +
              file("auto.tsv"),
          {"nothing is folded"});
}

TEST_F(program, BadInputIsOneLineAndNothingHalfWritten) {
  make_plan();
  const std::string good = slurp(file("plan.tsv"));
  std::ofstream(file("empty.gguf")).flush();
  std::ofstream(file("text.gguf")) << "this is no model";
  refuses("profile -m " + file("missing.gguf") + " -o " + file("out"), {"missing.gguf"});
  refuses("profile -m " + file("empty.gguf") + " -o " + file("out"), {"empty.gguf"});
  refuses("profile -m " + file("text.gguf") + " -o " + file("out"), {"text.gguf"});
  {
    std::ofstream cut(file("cut.gguf"), std::ios::binary);
    std::ifstream whole(model(), std::ios::binary);
    std::vector<char> part(1 << 20);
    whole.read(part.data(), static_cast<std::streamsize>(part.size()));
    cut.write(part.data(), static_cast<std::streamsize>(part.size()));
  }
  refuses("generate hello --full -m " + file("cut.gguf"), {"cut.gguf"});

  const auto with_plan = [&](const std::string& text) {
    std::ofstream(file("bad.tsv"), std::ios::binary) << text;
    return "needle -q -m " + model() + " --length 300 -p " + file("bad.tsv") + " -o " + file("out");
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  refuses(with_plan(""), {"bad.tsv", "empty"});
  refuses(with_plan(good.substr(0, good.size() / 2)), {"bad.tsv"});
  refuses(with_plan(changed("\tlocal", "\tglobal")), {"bad.tsv", "role", "global", "retrieval, local or windowed"});
  refuses(with_plan(changed("# sinks: 4", "# sinks: four")), {"bad.tsv", "sinks", "four"});
  refuses(with_plan(changed("# head_dim: 64", "# head_dim: 128")), {"bad.tsv", "another model", "128", "64"});
  std::string profile = slurp(file("out/profile.tsv"));
  profile.replace(profile.rfind('\t') + 1, std::string::npos, "nan\n");
  std::ofstream(file("bad_profile.tsv")) << profile;
  refuses("plan -p " + file("bad_profile.tsv") + " -o " + file("new.tsv"), {"bad_profile.tsv", "induction", "nan"});

  std::string words;
  for (int i = 0; i < 9000; ++i) words += " word";
  std::ofstream(file("long.txt")) << words;
  refuses("generate -q --full -m " + model() + " -f " + file("long.txt"), {"prompt", "tokens", "8192"});
  refuses("needle -q -m " + model() + " --length 9000 -p " + file("plan.tsv") + " -o " + file("out"), {"9000", "8192"});
  refuses("text -q -m " + model() + " --length 9000 -p " + file("plan.tsv") + " -o " + file("out"), {"9000", "8192"});
  refuses("certificate -q -m " + model() + " --length 9000 -p " + file("plan.tsv") + " -o " + file("out"),
          {"9000", "8192"});
  refuses("needle -q -m " + model() + " --length 300 --methods full,best -p " + file("plan.tsv") + " -o " + file("out"),
          {"best", "razor"});
  refuses("profile -q -m " + model() + " --block 40 -o " + file("plan.tsv"), {"plan.tsv", "folder"});
  refuses("profile -q -m " + model() + " --block 40 -o /proc/none", {"/proc/none"});
  refuses("plan -p " + file("out/profile.tsv") + " -o " + file("nowhere/plan.tsv"), {"nowhere/plan.tsv"});
  refuses("profile -q -m " + model() + " --tokens " + file("long.txt") + " -o " + file("out"), {"long.txt:1", "word"});
  EXPECT_EQ(slurp(file("plan.tsv")), good);
}

/// Sums over the query heads of a KV head, best first.
std::vector<std::size_t> best_heads(const headwise::head_scores& scores, std::size_t count) {
  const auto sums = headwise::detail::kv_head_scores(scores, {"echo", "induction"}, headwise::head_group::sum);
  std::vector<std::size_t> order(sums.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sums[a] > sums[b]; });
  order.resize(count);
  return order;
}

// known/: the scores that an independent float32 run measured for the tokens beside them.
TEST_F(program, ScoresAreThoseOfAnIndependentRun) {
  const fs::path known = fs::path(__FILE__).parent_path() / "known";
  const auto rows = rows_of(known / "smollm2_scores.tsv", "layer\tquery_head\techo\tinduction");
  std::map<std::string, std::string> models{{"quantised", model()}};
  const fs::path copy = large_ / (fs::path(model()).stem().string() + ".F32.gguf");
  if (!fs::exists(copy)) headwise_llama::write_f32_copy(model(), copy.string());
  models["float32"] = copy.string();
  for (const auto& [kind, path] : models) {
    const std::string out = file(kind);
    const result profile =
        run("profile -q -m " + path + " --tokens " + (known / "smollm2_probe_tokens.txt").string() + " -o " + out);
    ASSERT_EQ(profile.status, 0) << profile.words;
    const headwise::head_scores ours = headwise::read_profile(out + "/profile.tsv");
    headwise::head_scores theirs(ours.shape());
    std::vector<double> echo, induction;
    for (const auto& row : rows) echo.push_back(std::stod(row[2])), induction.push_back(std::stod(row[3]));
    theirs.add("echo", echo);
    theirs.add("induction", induction);
    double largest = 0.0;
    for (std::size_t layer = 0; layer < ours.shape().layers; ++layer)
      for (std::size_t head = 0; head < ours.shape().query_heads; ++head)
        for (const char* name : {"echo", "induction"})
          largest = std::max(largest, std::fabs(ours.at(name, layer, head) - theirs.at(name, layer, head)));
    auto mine = best_heads(ours, 9), other = best_heads(theirs, 9);
    std::sort(mine.begin(), mine.end());
    std::sort(other.begin(), other.end());
    std::vector<std::size_t> shared;
    std::set_intersection(mine.begin(), mine.end(), other.begin(), other.end(), std::back_inserter(shared));
    std::printf("%s model: largest difference of a query head's score %.5f, %zu of the top 9 KV heads shared\n",
                kind.c_str(), largest, shared.size());
    EXPECT_LE(largest, kind == "float32" ? 0.01 : 0.05);
    EXPECT_GE(shared.size(), 8U);
  }
}

}  // namespace
