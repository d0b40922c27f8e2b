// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace headwise::test {

/// Writing to `path` in `folder` fails, with `word` in the message: nothing that was there has changed, and nothing is
/// left over.
template <class Write>
void expect_no_trace(const std::string& path, const temporary_folder& folder, Write&& write, const char* word) {
  std::error_code none;  // a name that is too long is an error to ask about, too
  const bool there = std::filesystem::is_regular_file(path, none);
  const std::string before = content(path);
  const std::size_t files = folder.files();
  EXPECT_REFUSED(write(path), path.c_str(), "cannot be written", word);
  EXPECT_EQ(std::filesystem::is_regular_file(path, none), there);
  EXPECT_EQ(content(path), before);
  EXPECT_EQ(folder.files(), files);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial", none));
}

/// A disk that is full after so many bytes of a file, until the end of the block.
class full_disk {
 public:
  explicit full_disk(std::size_t bytes) : signals_(::signal(SIGXFSZ, SIG_IGN)) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) ADD_FAILURE() << "no limit to change";
    struct rlimit small = before_;
    small.rlim_cur = bytes;
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) ADD_FAILURE() << "the limit stays";
  }
  full_disk(const full_disk&) = delete;
  full_disk& operator=(const full_disk&) = delete;
  ~full_disk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signals_);
  }

 private:
  struct rlimit before_;
  void (*signals_)(int);
};

/// Somebody whom permissions stop: root, who may do everything, becomes nobody until the end of the block.
class ordinary_user {
 public:
  ordinary_user() : root_(::geteuid() == 0) {
    if (root_) stopped_ = ::seteuid(65534) == 0;
  }
  ordinary_user(const ordinary_user&) = delete;
  ordinary_user& operator=(const ordinary_user&) = delete;
  ~ordinary_user() {
    if (root_ && ::seteuid(0) != 0) ADD_FAILURE() << "still nobody";
  }
  bool is_one() const { return !root_ || stopped_; }  ///< false where the system has no nobody

 private:
  bool root_;
  bool stopped_ = false;
};

}  // namespace headwise::test
