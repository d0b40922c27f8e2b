// SPDX-License-Identifier: MIT
// Profiles and plans where files cannot be read or written; the same for any file: core/file_test.cpp.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "profile/sample_files.hpp"
#include "support/no_trace.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace headwise::test;
namespace fs = std::filesystem;

template <class Kind>
class writing : public testing::Test {};
struct kind_name {
  template <class Kind>
  static std::string GetName(int) {
    return Kind::name;
  }
};
using kinds = testing::Types<profile_kind, plan_kind>;
TYPED_TEST_SUITE(writing, kinds, kind_name);

TYPED_TEST(writing, what_cannot_be_read_is_refused) {
  const temporary_folder folder;
  EXPECT_REFUSED(TypeParam::read(folder.file("")), "cannot be read");
  EXPECT_REFUSED(TypeParam::read(folder.file("missing")), folder.file("missing").c_str(), "cannot be opened");
}

TYPED_TEST(writing, a_file_larger_than_any_profile_is_refused) {
  const temporary_folder folder;
  const std::uintmax_t limit = std::uintmax_t{64} << 20;
  put(folder.file("f"), "");
  fs::resize_file(folder.file("f"), limit + 1);  // a hole: no disk is filled
  EXPECT_REFUSED(TypeParam::read(folder.file("f")), "larger than 67108864 bytes");
  fs::resize_file(folder.file("f"), limit);
  EXPECT_REFUSED(TypeParam::read(folder.file("f")), "f:1: ", "cut");
}

TYPED_TEST(writing, what_cannot_be_written_leaves_everything_as_it_was) {
  const temporary_folder folder;
  TypeParam::write(folder.file("file"));
  fs::create_directory(folder.file("folder"));
  const auto write = [](const std::string& path) { TypeParam::write(path); };
  expect_no_trace(folder.file("missing/file"), folder, write, "No such file");
  expect_no_trace(folder.file("file/file"), folder, write, "Not a directory");
  expect_no_trace(folder.file("folder"), folder, write, "directory");
  expect_no_trace(folder.file(std::string(300, 'n')), folder, write, "too long");
  const full_disk disk(100);
  expect_no_trace(folder.file("file"), folder, write, "");
  expect_no_trace(folder.file("new"), folder, write, "");
  EXPECT_TRUE(same(TypeParam::read(folder.file("file")), TypeParam::sample()));
}

TYPED_TEST(writing, a_temporary_left_by_a_killed_process_is_no_obstacle) {
  const temporary_folder folder;
  put(folder.file("f.partial"), std::string(1000, 'x'));
  TypeParam::write(folder.file("f"));
  EXPECT_TRUE(same(TypeParam::read(folder.file("f")), TypeParam::sample()));
}

}  // namespace
