// SPDX-License-Identifier: MIT
#include "headwise/profile/plan_file.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "profile/sample_files.hpp"
#include "support/comma_locale.hpp"
#include "support/random.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace headwise::test;
using headwise::head_plan;
using headwise::head_role;
using headwise::model_shape;
using headwise::plan_file;
using headwise::razor_budget;
using headwise::read_plan;
using headwise::write_plan;

TEST(plan_file, is_written_as_its_header_says) {
  const temporary_folder folder;
  write_plan(folder.file("p"), sample_plan(), {{"model", "tiny"}, {"seed", "1"}});
  EXPECT_EQ(content(folder.file("p")), sample_plan_text);
  EXPECT_TRUE(same(read_plan(folder.file("p"), &sample_shape), sample_plan()));
}

TEST(plan_file, roles_sinks_and_budget_come_back) {
  const temporary_folder folder;
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  random_numbers random(3);
  const model_shape shapes[] = {{1, 1, 1, 1, 0}, {30, 9, 3, 64, 0}, {24, 14, 2, 64, 64}, {2, 8, 8, 192, 128}};
  for (const model_shape& shape : shapes)
    for (const std::size_t number : {std::size_t{0}, std::size_t{1}, std::size_t{40}, std::size_t{1000000}, most}) {
      plan_file file{head_plan(shape, head_role::local, number), razor_budget{most - number, number / 2}};
      for (std::size_t layer = 0; layer < shape.layers; ++layer)
        for (std::size_t head = 0; head < shape.kv_heads; ++head)
          if (random.bits() % 3 == 0) file.plan.set({layer, head}, head_role::retrieval);
      write_plan(folder.file("p"), file);
      EXPECT_TRUE(same(read_plan(folder.file("p"), &shape), file)) << to_string(shape) << ", " << number;
    }
}

TEST(plan_file, the_locale_changes_neither_what_is_written_nor_what_is_read) {
  const temporary_folder folder;
  const comma_locale commas;
  plan_file file = sample_plan();
  file.budget.min_recent = 1000000;
  write_plan(folder.file("p"), file);
  EXPECT_NE(content(folder.file("p")).find("# min_recent: 1000000\n"), std::string::npos);
  EXPECT_TRUE(same(read_plan(folder.file("p")), file));
}

TEST(plan_file, budget_and_sinks_are_whole_numbers_that_must_be_there) {
  const temporary_folder folder;
  const std::string path = folder.file("p");
  for (const char* line : {"# sinks: 6\n", "# min_recent: 700\n", "# divisor: 9\n"}) {
    const std::string key = std::string(line).substr(2, std::string(line).find(':') - 2);
    put(path, with(sample_plan_text, line, ""));
    EXPECT_REFUSED(read_plan(path), "no metadata line", key.c_str());
    for (const char* bad :
         {"", "-1", "+1", "01", "1.0", "1e3", "0x10", " 4", "4 ", "four", "18446744073709551616", "1,000"}) {
      put(path, with(sample_plan_text, line, "# " + key + ": " + bad + "\n"));
      const std::string found = "found '" + std::string(bad) + "'";
      EXPECT_REFUSED(read_plan(path), path.c_str(), key.c_str(), found.c_str(), "whole number");
    }
  }
}

TEST(plan_file, a_role_is_retrieval_or_local) {
  const temporary_folder folder;
  for (const char* role : {"", "Local", "retrieval ", "full", "0", "1.0", "retrieva", "locals", "sliding"}) {
    put(folder.file("p"), with(sample_plan_text, "0\t1\tretrieval", "0\t1\t" + std::string(role)));
    const std::string found = "found '" + std::string(role) + "'";
    EXPECT_REFUSED(read_plan(folder.file("p")), "p:14", "role", found.c_str(), "retrieval, local or windowed");
  }
}

TEST(plan_file, windows_of_layers_come_back) {
  const temporary_folder folder;
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  plan_file file{head_plan({4, 4, 2, 8, 0}, head_role::local, 4), razor_budget{}};
  file.plan.set_window(0, 1);
  file.plan.set({1, 1}, head_role::retrieval);
  file.plan.set_window(2, 1024);
  file.plan.set_window(3, most);
  write_plan(folder.file("p"), file);
  EXPECT_NE(content(folder.file("p")).find("2\t1\twindowed:1024\n"), std::string::npos);
  EXPECT_TRUE(same(read_plan(folder.file("p")), file));

  const std::string good = content(folder.file("p"));
  for (const char* wrong : {"windowed:1025", "windowed:0", "windowed:", "windowed", "windowed:-1", "windowed:01024",
                            "windowed:18446744073709551616", "local", "retrieval"}) {
    std::string text = good;
    text.replace(text.find("2\t1\twindowed:1024") + 4, std::string("windowed:1024").size(), wrong);
    headwise::write_text_file(folder.file("q"), text);
    EXPECT_THROW(read_plan(folder.file("q")), headwise::error) << wrong;
  }
}

TEST(plan_file, columns_are_these_three) {
  const temporary_folder folder;
  for (const char* columns :
       {"layer\trole\tkv_head", "layer\tkv_head", "layer\tkv_head\trole\tmore", "layer\thead\trole"}) {
    put(folder.file("p"), with(sample_plan_text, "layer\tkv_head\trole", columns));
    EXPECT_REFUSED(read_plan(folder.file("p")), "p:12", "columns", "layer, kv_head, role");
  }
}

TEST(plan_file, metadata_that_repeats_a_key_is_not_written) {
  const temporary_folder folder;
  for (const char* key : {"sinks", "layers", "min_recent", "divisor"})
    EXPECT_REFUSED(write_plan(folder.file("p"), sample_plan(), {{key, "4"}}), key, "not there yet");
  EXPECT_EQ(folder.files(), 0U);
}

}  // namespace
