// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "headwise/config.hpp"
#include "headwise/core/error.hpp"

namespace headwise {
namespace detail {

/// An open file or folder, closed with the handle.
class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() { close(); }

  bool is_open() const noexcept { return number_ >= 0; }
  int get() const noexcept { return number_; }
  void set(int number) noexcept { number_ = number; }  // nothing is open
  bool close() noexcept { return !is_open() || ::close(std::exchange(number_, -1)) == 0; }
  bool sync() const noexcept {
    while (::fsync(number_) != 0)
      if (errno != EINTR) return false;
    return true;
  }

 private:
  int number_;
};

inline constexpr std::size_t file_buffer_bytes = std::size_t{64} << 10;
inline constexpr std::size_t most_at_once = std::size_t{1} << 30;  // systems refuse 2^31 bytes and more in one call

/// Of a path, with the slash.
inline std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

}  // namespace detail

/// A file that is written from front to back, as a whole or not at all: into a temporary beside it, which commit()
/// syncs, renames over what was there, and syncs the folder. After a crash or a loss of power there is the old file or
/// the new one, never a part. Without commit(), or after an error, the old file is there still and no temporary is
/// left. Writers of the same file do not meet: each has a temporary of its own, and the last commit() stays. A process
/// that is killed leaves its temporary, <path>.partial or <path>.partial-<number>, which nobody reads and which hinders
/// nobody. A byte sink (core/byte_stream.hpp).
class file_sink {
 public:
  explicit file_sink(std::string path)
      : path_(std::move(path)),
        folder_(::open(detail::folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
        file_(-1) {
    if (!folder_.is_open()) give_up();
    buffer_.reserve(detail::file_buffer_bytes);
    name_ = path_.substr(path_.rfind('/') + 1);
    for (int number = 0; !file_.is_open(); ++number) {
      std::string name = number == 0 ? name_ + ".partial" : detail::join(name_, ".partial-", number);
      file_.set(::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (file_.is_open())
        temporary_ = std::move(name);
      else if (errno != EEXIST || number == most_temporaries)
        give_up();
    }
  }
  file_sink(const file_sink&) = delete;
  file_sink& operator=(const file_sink&) = delete;
  ~file_sink() { discard(); }

  void write(const void* data, std::size_t bytes) {
    require_open();
    if (bytes == 0) return;
    if (bytes > detail::file_buffer_bytes - buffer_.size()) flush();
    if (bytes < detail::file_buffer_bytes)
      buffer_.append(static_cast<const char*>(data), bytes);
    else
      put(static_cast<const char*>(data), bytes);
  }

  /// Makes it the file. Nothing can be written afterwards.
  void commit() {
    require_open();
    flush();
    if (!file_.sync() || !file_.close()) give_up();
    if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) give_up();
    temporary_.clear();
    if (folder_.sync() || errno == EINVAL) return;  // EINVAL: a file system that has nothing to sync there
    detail::fail(path_, ": written, but its folder cannot be synced: ", std::strerror(errno),
                 "; a loss of power may bring the old file back");
  }

 private:
  static constexpr int most_temporaries = 1000;

  void require_open() const {
    if (!file_.is_open()) detail::fail(path_, ": cannot be written: it has been committed, or writing it failed");
  }

  void flush() {
    put(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  void put(const char* data, std::size_t bytes) {
    while (bytes != 0) {
      const auto written = ::write(file_.get(), data, (std::min)(bytes, detail::most_at_once));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) give_up();
      data += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void discard() noexcept {
    file_.close();
    if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
    temporary_.clear();
  }
  [[noreturn]] HEADWISE_COLD void give_up() {
    const int reason = errno;
    discard();
    detail::fail(path_, ": cannot be written: ", std::strerror(reason));
  }

  std::string path_;
  detail::descriptor folder_;  // all names are relative to it, should it be moved meanwhile
  detail::descriptor file_;
  std::string name_;       // in the folder
  std::string temporary_;  // likewise; empty before it exists and once it has been renamed
  std::string buffer_;
};

/// A file that is read from front to back. Refuses what is no regular file, whose size nobody knows. A byte source
/// (core/byte_stream.hpp).
class file_source {
 public:
  explicit file_source(std::string path)
      : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {  // awaits no pipe
    if (!file_.is_open()) detail::fail(path_, ": cannot be opened: ", std::strerror(errno));
    struct stat status;
    if (::fstat(file_.get(), &status) != 0) detail::fail(path_, ": cannot be read: ", std::strerror(errno));
    if (!S_ISREG(status.st_mode))
      detail::fail(path_, ": cannot be read: found ", S_ISDIR(status.st_mode) ? "a folder" : "a pipe or device",
                   ", expected a file");
    remaining_ = static_cast<std::size_t>(status.st_size);
  }

  void read(void* data, std::size_t bytes) {
    if (bytes > remaining_) detail::fail(path_, ": found ", remaining_, " bytes, expected ", bytes, " more");
    char* to = static_cast<char*>(data);
    while (bytes != 0) {
      if (held_ == 0 && bytes >= detail::file_buffer_bytes) {
        get(to, bytes);
        remaining_ -= bytes;
        return;
      }
      if (held_ == 0) {
        buffer_.resize((std::min)(detail::file_buffer_bytes, remaining_));
        get(buffer_.data(), buffer_.size());
        held_ = buffer_.size();
      }
      const std::size_t part = (std::min)(bytes, held_);
      std::memcpy(to, buffer_.data() + (buffer_.size() - held_), part);
      held_ -= part;
      remaining_ -= part;
      to += part;
      bytes -= part;
    }
  }
  std::size_t remaining() const noexcept { return remaining_; }

 private:
  void get(char* to, std::size_t bytes) {
    while (bytes != 0) {
      const auto count = ::read(file_.get(), to, (std::min)(bytes, detail::most_at_once));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) detail::fail(path_, ": cannot be read: ", std::strerror(errno));
      if (count == 0) detail::fail(path_, ": ended while it was read, expected ", bytes, " bytes more");
      to += count;
      bytes -= static_cast<std::size_t>(count);
    }
  }

  std::string path_;
  detail::descriptor file_;
  std::size_t remaining_ = 0;
  std::string buffer_;
  std::size_t held_ = 0;  // bytes at the buffer's end that have not been given out
};

/// The bytes of a file. Refuses one that is not there, cannot be read, or is larger than `limit`, which no profile is.
inline std::string read_text_file(const std::string& path, std::size_t limit = std::size_t{64} << 20) {
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

/// Writes a file as a whole or not at all, as file_sink does.
inline void write_text_file(const std::string& path, std::string_view text) {
  file_sink file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace headwise
