// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "headwise/core/error.hpp"

namespace headwise {

/// The bytes of a file. Refuses one that is not there, cannot be read, or is larger than any profile can be.
inline std::string read_text_file(const std::string& path) {
  constexpr std::size_t limit = std::size_t{64} << 20;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) detail::fail(path, ": cannot be opened: ", std::strerror(errno));
  std::string text;
  char buffer[4096];
  std::size_t count = 0;
  while (text.size() <= limit && (count = std::fread(buffer, 1, sizeof buffer, file)) != 0) text.append(buffer, count);
  const bool failed = std::ferror(file) != 0;
  const int reason = errno;
  std::fclose(file);
  if (failed) detail::fail(path, ": cannot be read: ", std::strerror(reason));
  if (text.size() > limit) detail::fail(path, ": larger than ", limit, " bytes");
  return text;
}

/// Writes a file as a whole or not at all: to a temporary beside it, synced, then renamed over it. On an error what
/// was there before is there still, and no temporary is left.
inline void write_text_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".partial";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) detail::fail(path, ": cannot be written: ", std::strerror(errno));
  bool good = true;
  while (good && !text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    good = written > 0;
    if (good) text.remove_prefix(static_cast<std::size_t>(written));
  }
  good = good && ::fsync(file) == 0;
  int reason = errno;
  if (::close(file) != 0 && good) {
    good = false;
    reason = errno;
  }
  if (good && std::rename(temporary.c_str(), path.c_str()) != 0) {
    good = false;
    reason = errno;
  }
  if (good) return;
  std::remove(temporary.c_str());
  detail::fail(path, ": cannot be written: ", std::strerror(reason));
}

}  // namespace headwise
