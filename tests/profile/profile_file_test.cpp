// SPDX-License-Identifier: MIT
#include "headwise/profile/profile_file.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "profile/sample_files.hpp"
#include "support/comma_locale.hpp"
#include "support/random.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace headwise::test;
using headwise::head_scores;
using headwise::metadata;
using headwise::model_shape;
using headwise::read_profile;
using headwise::write_profile;

using limits = std::numeric_limits<double>;

/// Doubles of every kind, then random bit patterns.
std::vector<double> odd_numbers(std::size_t count) {
  std::vector<double> numbers = {0.0,
                                 -0.0,
                                 0.1,
                                 1.0 / 3,
                                 -2.5e-7,
                                 1e22,
                                 123456789.125,
                                 limits::min(),
                                 limits::max(),
                                 -limits::max(),
                                 1e6,
                                 1.0,
                                 1.0 + limits::epsilon(),
                                 limits::denorm_min(),
                                 limits::min() - limits::denorm_min(),
                                 9007199254740993.0};
  random_numbers random(17);
  while (numbers.size() < count) {
    const std::uint64_t bits = std::uint64_t{random.bits()} << 32 | random.bits();
    double number;
    std::memcpy(&number, &bits, sizeof number);
    if (number - number == 0.0) numbers.push_back(number);  // finite
  }
  numbers.resize(count);
  return numbers;
}

TEST(profile_file, is_written_as_its_header_says) {
  const temporary_folder folder;
  write_profile(folder.file("p"), sample_scores(), {{"model", "tiny"}});
  EXPECT_EQ(content(folder.file("p")), sample_profile_text);
  EXPECT_TRUE(same(read_profile(folder.file("p"), &sample_shape), sample_scores()));
}

TEST(profile_file, every_double_comes_back_with_the_same_bits) {
  const temporary_folder folder;
  const model_shape shape{16, 64, 8, 128, 0};
  head_scores scores(shape);
  scores.add("odd", odd_numbers(1024));
  write_profile(folder.file("p"), scores);
  EXPECT_TRUE(same(read_profile(folder.file("p"), &shape), scores));
}

TEST(profile_file, columns_and_shapes_of_every_kind_come_back) {
  const temporary_folder folder;
  const model_shape shapes[] = {
      {1, 1, 1, 1, 0}, {3, 1, 1, 64, 32}, {2, 8, 8, 80, 0}, {1, 7, 1, 64, 64}, {5, 6, 3, 2, 3}};
  for (const model_shape& shape : shapes)
    for (const std::size_t columns : {1U, 2U, 7U}) {
      head_scores scores(shape);
      for (std::size_t c = 0; c < columns; ++c) {
        std::vector<double> values(shape.layers * shape.query_heads);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * columns + c);
        scores.add("score " + std::to_string(c) + ": # a", std::move(values));
      }
      write_profile(folder.file("p"), scores, {{"model", "x"}, {"note", "a: b # c\td"}, {"", ""}});
      EXPECT_TRUE(same(read_profile(folder.file("p"), &shape), scores)) << to_string(shape);
    }
}

TEST(profile_file, windows_of_the_model_come_back) {
  const temporary_folder folder;
  const model_shape shape{3, 2, 1, 64, 0};
  head_scores scores(shape);
  scores.add("echo", {1, 2, 0, 0, 5, 6});
  scores.set_window(1, 512);
  write_profile(folder.file("p"), scores, {{"model", "x"}});
  const std::string good = content(folder.file("p"));
  EXPECT_NE(good.find("# windows: 0 512 0\n# model: x\n"), std::string::npos) << good;
  EXPECT_TRUE(same(read_profile(folder.file("p"), &shape), scores));
  for (const char* wrong : {"0 512", "0 512 0 0", "0", "1 2 3 4 5 6"}) {
    put(folder.file("p"), with(good, "0 512 0", wrong));
    EXPECT_REFUSED(read_profile(folder.file("p")), "windows", "expected one for each of 3 layers");
  }
  for (const char* wrong :
       {"", "0 512 -1", "0 512  0", " 0 512 0", "0 512 0 ", "0 512 none", "0\t512\t0", "0 18446744073709551616 0"}) {
    put(folder.file("p"), with(good, "0 512 0", wrong));
    EXPECT_REFUSED(read_profile(folder.file("p")), "p:7", "windows", "expected whole numbers");
  }
  EXPECT_REFUSED(write_profile(folder.file("p"), scores, {{"windows", "1 1 1"}}), "windows", "not there yet");
}

TEST(profile_file, the_locale_changes_neither_what_is_written_nor_what_is_read) {
  const temporary_folder folder;
  const comma_locale commas;
  write_profile(folder.file("p"), sample_scores(), {{"model", "tiny"}});
  EXPECT_EQ(content(folder.file("p")), sample_profile_text);
  EXPECT_TRUE(same(read_profile(folder.file("p")), sample_scores()));
  put(folder.file("q"), with(sample_profile_text, "0.001515", "0,001515"));
  EXPECT_REFUSED(read_profile(folder.file("q")), "q:12", "echo", "'0,001515'", "finite number");
}

TEST(profile_file, numbers_are_json_numbers_and_nothing_else) {
  const temporary_folder folder;
  const auto put_number = [&](const std::string& number) {
    put(folder.file("p"), with(sample_profile_text, "0.001515", number));
  };
  const std::pair<const char*, double> good[] = {
      {"1e-3", 1e-3},
      {"1E+2", 100},
      {"-0", -0.0},
      {"0.0", 0},
      {"1.0000001", 1.0000001},
      {"-0.1", -0.1},
      {"7", 7},
      {"9.726562500000000000e-01", 0.97265625},
      {"1.0e+00", 1},
      {"5e-324", 5e-324},
      {"1.7976931348623157e308", limits::max()},
      {"0.1000000000000000055511151231257827021181583404541015625", 0.1},
      {"100000000000000000000000", 1e23},
      {"1e022", 1e22},
      {"0e999", 0},
  };
  for (const auto& [text, number] : good) {
    put_number(text);
    const double found = read_profile(folder.file("p")).at("echo", 0, 3);
    EXPECT_EQ(std::memcmp(&found, &number, sizeof found), 0) << text << " read as " << found;
  }
  const char* const bad[] = {
      "",       "nan",   "NaN",  "-nan",  "NAN(1)", "inf",   "Infinity", "-inf", "1e999",
      "-1e999", ".5",    "5.",   "+1",    "01",     "-01",   "00",       "1e",   "1e+",
      "1e-",    "e5",    "-",    "--1",   "0x1p3",  "0x10",  "1,5",      "1 ",   " 1",
      "1_000",  "1'000", "null", "\"1\"", "1f",     "1e5.0", "1.5.2",    "१",    "1e400000000000000000000",
      "true"};
  for (const char* text : bad) {
    put_number(text);
    const std::string found = "'" + std::string(text) + "'";
    EXPECT_REFUSED(read_profile(folder.file("p")), "p:12", "echo", found.c_str(), "a finite number");
  }
}

TEST(profile_file, a_number_too_small_for_a_double_is_0_or_refused_never_garbage) {
  const temporary_folder folder;
  for (const char* text : {"1e-400", "-1e-400", "2e-324", "0.0e-999"}) {
    put(folder.file("p"), with(sample_profile_text, "0.001515", text));
    try {
      EXPECT_EQ(read_profile(folder.file("p")).at("echo", 0, 3), 0.0) << text;
    } catch (const headwise::error&) {
    }
  }
}

TEST(profile_file, what_could_not_be_read_back_is_not_written) {
  const temporary_folder folder;
  const std::string path = folder.file("p");
  const auto with_column = [](const char* name, double value) {
    head_scores scores(model_shape{1, 2, 1, 4, 0});
    scores.add(name, {0.5, value});
    return scores;
  };
  EXPECT_REFUSED(write_profile(path, head_scores(sample_shape)), "p:7", "at least one score");
  EXPECT_REFUSED(write_profile(path, with_column("echo", limits::quiet_NaN())), "p:9", "echo", "nan");
  EXPECT_REFUSED(write_profile(path, with_column("echo", limits::infinity())), "p:9", "echo", "inf");
  for (const char* name : {"", "a\tb", "a\nb", "\t", "\n0\t0\t0\t1"})
    EXPECT_REFUSED(write_profile(path, with_column(name, 1.0)), path.c_str());
  EXPECT_REFUSED(write_profile(path, sample_scores(), {{"layers", "2"}}), "'layers'", "not there yet");
  EXPECT_REFUSED(write_profile(path, sample_scores(), {{"a", "1"}, {"a", "1"}}), "'a'");
  EXPECT_EQ(folder.files(), 0U);

  write_profile(path, sample_scores(), {{"two\nlines", "a\r\nb"}});  // one entry, one line
  EXPECT_NE(content(path).find("# two lines: a  b\n"), std::string::npos);
  EXPECT_TRUE(same(read_profile(path), sample_scores()));
}

TEST(profile_file, columns_are_named_once_and_in_order) {
  const temporary_folder folder;
  const std::string names = "layer\tkv_head\tquery_head\techo\tinduction";
  for (const char* columns :
       {"layer\tquery_head\tkv_head\techo\tinduction", "Layer\tkv_head\tquery_head\techo\tinduction",
        "layer\tkv_head\tquery_head", "layer", "", "layer kv_head query_head echo induction"}) {
    put(folder.file("p"), with(sample_profile_text, names, columns));
    EXPECT_REFUSED(read_profile(folder.file("p")), "p:8", "columns", "layer, kv_head, query_head");
  }
  // The message shows the whole line: the first name alone is often right.
  put(folder.file("p"), with(sample_profile_text, names, "layer\tkv_head\thead\techo\tinduction"));
  EXPECT_REFUSED(read_profile(folder.file("p")), "'layer kv_head head echo induction'");
  put(folder.file("p"), with(sample_profile_text, names, "layer\tkv_head\tquery_head\techo\techo"));
  EXPECT_REFUSED(read_profile(folder.file("p")), "p:8", "'echo'", "name");
  put(folder.file("p"), with(sample_profile_text, names, "layer\tkv_head\tquery_head\techo\t"));
  EXPECT_REFUSED(read_profile(folder.file("p")), "p:8", "''", "name");
  for (const std::string& name :
       {std::string("echo\r"), std::string("\x1b[2J"), std::string(100, 'n'), std::string(1, '\0')}) {
    put(folder.file("p"), with(sample_profile_text, names, "layer\tkv_head\tquery_head\techo\t" + name));
    EXPECT_REFUSED(read_profile(folder.file("p")), "p:8", "columns", "name");
  }
}

}  // namespace
