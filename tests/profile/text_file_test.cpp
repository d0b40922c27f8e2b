// SPDX-License-Identifier: MIT
#include "headwise/profile/text_file.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "profile/sample_files.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace headwise::test;
using headwise::read_text_file;
using headwise::write_text_file;
namespace fs = std::filesystem;

TEST(text_file, bytes_come_back_as_they_were_and_replace_what_was_there) {
  const temporary_folder folder;
  std::string bytes;
  for (int i = 0; i < 100000; ++i) bytes += static_cast<char>(i * 7);
  for (const std::string& text :
       {bytes, std::string("short"), std::string(), std::string(4096, 'x'), std::string(1, '\0')}) {
    write_text_file(folder.file("f"), text);
    EXPECT_EQ(content(folder.file("f")), text);
    EXPECT_EQ(read_text_file(folder.file("f")), text);
    EXPECT_EQ(folder.files(), 1U);
  }
}

TEST(text_file, what_cannot_be_read_is_refused_with_its_name_and_the_reason) {
  const temporary_folder folder;
  EXPECT_REFUSED(read_text_file(folder.file("missing")), folder.file("missing").c_str(), "cannot be opened");
  EXPECT_REFUSED(read_text_file(folder.file("")), "cannot be read");  // a folder
  EXPECT_REFUSED(read_text_file(""), "cannot be opened");
  put(folder.file("f"), "x");
  EXPECT_REFUSED(read_text_file(folder.file("f/g")), "cannot be opened");
  EXPECT_REFUSED(headwise::read_profile(folder.file("")), "cannot be read");
  EXPECT_REFUSED(headwise::read_plan(folder.file("missing")), "cannot be opened");
  if (::geteuid() != 0) {  // root reads everything
    fs::permissions(folder.file("f"), fs::perms::none);
    EXPECT_REFUSED(read_text_file(folder.file("f")), "cannot be opened");
  }
}

TEST(text_file, a_file_larger_than_any_profile_is_refused) {
  const temporary_folder folder;
  const std::uintmax_t limit = std::uintmax_t{64} << 20;
  put(folder.file("f"), "");
  fs::resize_file(folder.file("f"), limit + 1);  // a hole: no disk is filled
  EXPECT_REFUSED(headwise::read_profile(folder.file("f")), "larger than 67108864 bytes");
  fs::resize_file(folder.file("f"), limit);
  EXPECT_REFUSED(headwise::read_profile(folder.file("f")), "f:1: ", "cut");
  if (fs::exists("/dev/zero")) EXPECT_REFUSED(read_text_file("/dev/zero"), "larger than");  // has no end
}

/// Writing fails: nothing that was there has changed, and nothing is left over.
template <class Write>
void expect_no_trace(const std::string& path, const temporary_folder& folder, Write&& write, const char* word) {
  std::error_code none;  // a name that is too long is an error to ask about, too
  const bool there = fs::is_regular_file(path, none);
  const std::string before = content(path);
  const std::size_t files = folder.files();
  EXPECT_REFUSED(write(path), path.c_str(), "cannot be written", word);
  EXPECT_EQ(fs::is_regular_file(path, none), there);
  EXPECT_EQ(content(path), before);
  EXPECT_EQ(folder.files(), files);
  EXPECT_FALSE(fs::exists(path + ".partial", none));
}

TEST(text_file, what_cannot_be_written_leaves_everything_as_it_was) {
  const temporary_folder folder;
  const auto text = [](const std::string& path) { write_text_file(path, "new"); };
  const auto profile = [](const std::string& path) { profile_kind::write(path); };
  const auto plan = [](const std::string& path) { plan_kind::write(path); };
  put(folder.file("file"), "old");
  fs::create_directory(folder.file("empty"));
  fs::create_directory(folder.file("folder"));
  put(folder.file("folder/inside"), "old");
  const auto each = [&](const std::string& name, const char* word) {
    SCOPED_TRACE(name);
    expect_no_trace(folder.file(name), folder, text, word);
    expect_no_trace(folder.file(name), folder, profile, word);
    expect_no_trace(folder.file(name), folder, plan, word);
  };
  each("missing/file", "No such file");
  each("file/file", "Not a directory");
  each("folder", "directory");
  each("empty", "directory");
  each(std::string(300, 'n'), "too long");
  EXPECT_EQ(content(folder.file("folder/inside")), "old");
  if (::geteuid() != 0) {  // root writes everywhere
    fs::permissions(folder.file("folder"), fs::perms::owner_read | fs::perms::owner_exec);
    each("folder/inside", "denied");
    each("folder/new", "denied");
    fs::permissions(folder.file("folder"), fs::perms::owner_all);
  }
}

TEST(text_file, a_disk_that_fills_up_on_the_way_leaves_the_old_file) {
  const temporary_folder folder;
  const std::string path = folder.file("f");
  profile_kind::write(path);
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signals = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 5000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_no_trace(
      path, folder, [](const std::string& to) { write_text_file(to, std::string(20000, 'x')); }, "");
  expect_no_trace(
      folder.file("g"), folder, [](const std::string& to) { write_text_file(to, std::string(20000, 'x')); }, "");
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, signals);
  EXPECT_TRUE(same(headwise::read_profile(path), sample_scores()));
}

TEST(text_file, a_temporary_left_by_a_killed_process_is_no_obstacle) {
  const temporary_folder folder;
  put(folder.file("f.partial"), std::string(1000, 'x'));
  plan_kind::write(folder.file("f"));
  EXPECT_EQ(folder.files(), 1U);
  EXPECT_TRUE(same(headwise::read_plan(folder.file("f")), sample_plan()));
}

}  // namespace
