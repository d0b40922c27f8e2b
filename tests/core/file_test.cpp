// SPDX-License-Identifier: MIT
#include "headwise/core/file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/no_trace.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

#if defined(__linux__)
#include <sys/syscall.h>

// The two steps that make a file the new one, as this program calls them: noted, and made to fail on request.
namespace {
std::mutex steps_mutex;
std::vector<std::string> steps;  // "sync file", "rename", "sync folder"
std::string failing_step;
int failing_with = 0;

bool fails(const std::string& step) {
  const std::lock_guard<std::mutex> lock(steps_mutex);
  steps.push_back(step);
  if (step != failing_step) return false;
  errno = failing_with;
  return true;
}
}  // namespace

extern "C" int fsync(int file) {
  struct stat status;
  const bool folder = ::fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
  return fails(folder ? "sync folder" : "sync file") ? -1 : static_cast<int>(::syscall(SYS_fsync, file));
}
extern "C" int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return fails("rename") ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
}
#endif

namespace {

using namespace headwise::test;
using headwise::file_sink;
using headwise::file_source;
using headwise::read_text_file;
using headwise::write_text_file;
namespace fs = std::filesystem;

std::string many_bytes(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 7 + i / 300);
  return bytes;
}

TEST(text_file, bytes_come_back_as_they_were_and_replace_what_was_there) {
  const temporary_folder folder;
  for (const std::string& text : {many_bytes(100000), std::string("short"), std::string(), std::string(4096, 'x'),
                                  std::string(65536, 'y'), std::string(1, '\0')}) {
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
  fs::permissions(folder.file("f"), fs::perms::none);
  const ordinary_user user;
  if (user.is_one()) {
    EXPECT_REFUSED(read_text_file(folder.file("f")), "cannot be opened", "denied");
  }
}

TEST(text_file, one_larger_than_the_limit_is_refused) {
  const temporary_folder folder;
  put(folder.file("f"), "12345");
  EXPECT_EQ(read_text_file(folder.file("f"), 5), "12345");
  EXPECT_REFUSED(read_text_file(folder.file("f"), 4), "larger than 4 bytes");
  fs::resize_file(folder.file("f"), (std::uintmax_t{64} << 20) + 1);  // a hole: no disk is filled
  EXPECT_REFUSED(read_text_file(folder.file("f")), "larger than 67108864 bytes");
  if (fs::exists("/dev/zero")) EXPECT_REFUSED(read_text_file("/dev/zero"), "larger than");  // has no end
}

TEST(file_sink, takes_bytes_in_any_parts) {
  const temporary_folder folder;
  const std::string bytes = many_bytes(300000);
  for (const std::size_t part : {1U, 1000U, 65535U, 65536U, 65537U, 300000U}) {
    file_sink sink(folder.file("f"));
    sink.write(nullptr, 0);
    for (std::size_t at = 0; at < bytes.size(); at += part)
      sink.write(bytes.data() + at, std::min(part, bytes.size() - at));
    sink.commit();
    EXPECT_EQ(content(folder.file("f")), bytes) << part;
    EXPECT_EQ(folder.files(), 1U);
  }
  const std::string mixed[] = {many_bytes(10), many_bytes(65530), many_bytes(7), many_bytes(200000), many_bytes(1)};
  file_sink sink(folder.file("f"));
  std::string all;
  for (const std::string& part : mixed) {
    sink.write(part.data(), part.size());
    all += part;
  }
  sink.commit();
  EXPECT_EQ(content(folder.file("f")), all);
}

TEST(file_sink, without_commit_the_old_file_stays_and_nothing_is_left_over) {
  const temporary_folder folder;
  put(folder.file("f"), "old");
  for (const char* name : {"f", "new"}) {
    {
      file_sink sink(folder.file(name));
      const std::string bytes = many_bytes(100000);
      sink.write(bytes.data(), bytes.size());
      EXPECT_EQ(folder.files(), 2U);
      EXPECT_EQ(content(folder.file("f")), "old");
    }
    EXPECT_EQ(folder.files(), 1U);
    EXPECT_EQ(content(folder.file("f")), "old");
  }
}

TEST(file_sink, takes_nothing_after_commit) {
  const temporary_folder folder;
  file_sink sink(folder.file("f"));
  sink.write("new", 3);
  sink.commit();
  EXPECT_REFUSED(sink.write("more", 4), "cannot be written", "committed");
  EXPECT_REFUSED(sink.commit(), "cannot be written", "committed");
  EXPECT_EQ(content(folder.file("f")), "new");
}

TEST(file_sink, works_in_the_folder_at_hand_and_in_a_folder_that_is_renamed_meanwhile) {
  const temporary_folder folder;
  fs::create_directory(folder.file("a"));
  const fs::path before = fs::current_path();
  fs::current_path(folder.file("a"));
  write_text_file("f", "here");
  fs::current_path(before);
  EXPECT_EQ(content(folder.file("a/f")), "here");

  file_sink sink(folder.file("a/f"));
  sink.write("there", 5);
  fs::rename(folder.file("a"), folder.file("b"));
  sink.commit();
  EXPECT_EQ(content(folder.file("b/f")), "there");
  EXPECT_EQ(folder.files(), 1U);
}

TEST(file_sink, what_cannot_be_written_leaves_everything_as_it_was) {
  const temporary_folder folder;
  put(folder.file("file"), "old");
  fs::create_directory(folder.file("empty"));
  fs::create_directory(folder.file("folder"));
  put(folder.file("folder/inside"), "old");
  const auto each = [&](const std::string& name, const char* word) {
    SCOPED_TRACE(name);
    expect_no_trace(
        folder.file(name), folder, [](const std::string& path) { write_text_file(path, "new"); }, word);
  };
  each("missing/file", "No such file");
  each("file/file", "Not a directory");
  each("folder", "directory");
  each("empty", "directory");
  each("", "");
  each(std::string(300, 'n'), "too long");
  EXPECT_EQ(content(folder.file("folder/inside")), "old");

  fs::permissions(folder.file(""), fs::perms(0755));
  fs::permissions(folder.file("folder"), fs::perms(0555));
  {
    const ordinary_user user;
    if (user.is_one()) {
      each("folder/inside", "denied");
      each("folder/new", "denied");
    }
  }
  fs::permissions(folder.file("folder"), fs::perms::owner_all);
}

TEST(file_sink, a_disk_that_fills_up_on_the_way_leaves_the_old_file) {
  const temporary_folder folder;
  put(folder.file("f"), "old");
  const full_disk disk(5000);
  for (const char* name : {"f", "g"})
    for (const std::size_t bytes : {20000U, 200000U})  // found out at commit() or while writing
      expect_no_trace(
          folder.file(name), folder, [&](const std::string& to) { write_text_file(to, std::string(bytes, 'x')); }, "");
  file_sink sink(folder.file("f"));
  const std::string bytes(200000, 'x');
  EXPECT_REFUSED(sink.write(bytes.data(), bytes.size()), "cannot be written");
  EXPECT_EQ(folder.files(), 1U);
  EXPECT_REFUSED(sink.write("x", 1), "writing it failed");  // a gap must not be committed
  EXPECT_REFUSED(sink.commit(), "writing it failed");
  EXPECT_EQ(content(folder.file("f")), "old");
}

#if defined(__linux__)
TEST(file_sink, replaces_a_file_only_after_the_new_one_is_on_disk_and_syncs_the_folder_last) {
  const temporary_folder folder;
  put(folder.file("f"), "old");
  steps.clear();
  write_text_file(folder.file("f"), "new");
  EXPECT_EQ(steps, (std::vector<std::string>{"sync file", "rename", "sync folder"}));
  EXPECT_EQ(content(folder.file("f")), "new");

  for (const char* step : {"sync file", "rename"}) {
    failing_step = step, failing_with = EIO;
    expect_no_trace(
        folder.file("f"), folder, [](const std::string& to) { write_text_file(to, "newer"); }, "error");
    EXPECT_EQ(steps.back(), step);
  }
  failing_step = "sync folder";
  EXPECT_REFUSED(write_text_file(folder.file("f"), "newer"), folder.file("f").c_str(), "folder cannot be synced");
  EXPECT_EQ(content(folder.file("f")), "newer");
  failing_with = EINVAL;  // this file system does not know how
  write_text_file(folder.file("f"), "newest");
  EXPECT_EQ(content(folder.file("f")), "newest");
  EXPECT_EQ(folder.files(), 1U);
  failing_step.clear();
}
#endif

TEST(file_sink, two_writers_of_one_file_do_not_meet) {
  const temporary_folder folder;
  put(folder.file("f"), "old");
  {
    file_sink first(folder.file("f")), second(folder.file("f")), third(folder.file("f"));
    first.write("one", 3);
    second.write("two", 3);
    third.write("three", 5);
    EXPECT_EQ(folder.files(), 4U);
    second.write(" and more", 9);
    second.commit();
    EXPECT_EQ(content(folder.file("f")), "two and more");
    first.commit();
    EXPECT_EQ(content(folder.file("f")), "one");
  }
  EXPECT_EQ(content(folder.file("f")), "one");
  EXPECT_EQ(folder.files(), 1U);

  std::vector<std::thread> writers;
  for (char letter = 'a'; letter < 'e'; ++letter)
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 20; ++i) write_text_file(folder.file("f"), std::string(100000, letter));
    });
  for (std::thread& writer : writers) writer.join();
  const std::string last = content(folder.file("f"));
  EXPECT_EQ(last, std::string(100000, last.at(0)));
  EXPECT_EQ(folder.files(), 1U);
}

TEST(file_sink, a_temporary_left_by_a_killed_process_is_no_obstacle_and_is_not_followed) {
  const temporary_folder folder;
  put(folder.file("f"), "old");
  const pid_t child = ::fork();
  if (child == 0) {
    file_sink sink(folder.file("f"));
    const std::string bytes = many_bytes(100000);
    sink.write(bytes.data(), bytes.size());
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(content(folder.file("f")), "old");
  EXPECT_EQ(content(folder.file("f.partial")), many_bytes(100000).substr(0, content(folder.file("f.partial")).size()));
  put(folder.file("other"), "untouched");
  fs::create_symlink(folder.file("other"), folder.file("f.partial-1"));

  write_text_file(folder.file("f"), "new");
  EXPECT_EQ(content(folder.file("f")), "new");
  EXPECT_EQ(content(folder.file("other")), "untouched");
  EXPECT_EQ(folder.files(), 4U);
}

TEST(file_source, gives_the_bytes_in_any_parts_and_says_how_many_are_left) {
  const temporary_folder folder;
  const std::string bytes = many_bytes(300000);
  put(folder.file("f"), bytes);
  for (const std::size_t part : {1U, 1000U, 65535U, 65536U, 65537U, 300000U}) {
    file_source source(folder.file("f"));
    std::string found(bytes.size(), '?');
    for (std::size_t at = 0; at < bytes.size(); at += part) {
      EXPECT_EQ(source.remaining(), bytes.size() - at);
      source.read(found.data() + at, std::min(part, bytes.size() - at));
    }
    EXPECT_EQ(found, bytes) << part;
    EXPECT_EQ(source.remaining(), 0U);
    source.read(nullptr, 0);
  }
  file_source source(folder.file("f"));
  std::string found(bytes.size(), '?');
  std::size_t at = 0;
  for (const std::size_t part : {10U, 65526U, 7U, 200000U, 1U, 34456U}) {
    source.read(found.data() + at, part);
    at += part;
  }
  ASSERT_EQ(at, bytes.size());
  EXPECT_EQ(found, bytes);
}

TEST(file_source, a_short_file_is_refused_before_anything_is_read) {
  const temporary_folder folder;
  put(folder.file("f"), "abc");
  file_source source(folder.file("f"));
  char found[5] = "????";
  EXPECT_REFUSED(source.read(found, 4), folder.file("f").c_str(), "found 3 bytes, expected 4");
  const volatile std::size_t huge = static_cast<std::size_t>(-1);  // else gcc sees a memcpy of so many bytes
  EXPECT_REFUSED(source.read(found, huge), "found 3 bytes");
  EXPECT_STREQ(found, "????");
  source.read(found, 3);
  EXPECT_STREQ(found, "abc?");
  EXPECT_REFUSED(source.read(found, 1), "found 0 bytes, expected 1");
}

TEST(file_source, one_that_becomes_shorter_is_refused) {
  const temporary_folder folder;
  put(folder.file("f"), many_bytes(300000));
  for (const std::size_t part : {10U, 200000U}) {
    put(folder.file("f"), many_bytes(300000));
    file_source source(folder.file("f"));
    std::string found(part, '?');
    fs::resize_file(folder.file("f"), 5);
    EXPECT_REFUSED(source.read(found.data(), part), folder.file("f").c_str(), "ended while it was read");
  }
}

TEST(file_source, refuses_what_is_no_file) {
  const temporary_folder folder;
  EXPECT_REFUSED(file_source(folder.file("missing")), folder.file("missing").c_str(), "cannot be opened");
  EXPECT_REFUSED(file_source(""), "cannot be opened");
  EXPECT_REFUSED(file_source(folder.file("")), "found a folder, expected a file");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_REFUSED(file_source(folder.file("pipe")), "found a pipe or device, expected a file");
  EXPECT_REFUSED(file_source("/dev/null"), "found a pipe or device, expected a file");
}

}  // namespace
