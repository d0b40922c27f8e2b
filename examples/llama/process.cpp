// SPDX-License-Identifier: MIT
#include "process.hpp"

#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "headwise/core/error.hpp"

extern char** environ;

namespace headwise_llama {
namespace {

[[noreturn]] void fail_with(const std::string& what, int reason) {
  headwise::detail::fail(what, ": ", std::strerror(reason));
}

/// Both ends of a pipe, closed at the latest with this object.
struct pipe_ends {
  int ends[2] = {-1, -1};

  pipe_ends() {
    if (pipe(ends) != 0) fail_with("no pipe", errno);
  }
  ~pipe_ends() {
    for (int i = 0; i < 2; ++i) close_end(i);
  }
  pipe_ends(const pipe_ends&) = delete;
  pipe_ends& operator=(const pipe_ends&) = delete;
  void close_end(int i) {
    if (ends[i] >= 0) close(ends[i]);
    ends[i] = -1;
  }
};

/// The list of strings that exec takes; it points into `texts`.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

/// Our environment, with some variables set.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::none_of(changes.begin(), changes.end(), [&](const auto& change) { return change.first == name; }))
      all.emplace_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) all.push_back(name + "=" + value);
  return all;
}

/// The first line somebody printed, without the name of this program in front of it.
std::string first_line(std::string text) {
  const std::string name = "headwise-llama: ";
  text.erase(std::min(text.find('\n'), text.size()));
  return text.compare(0, name.size(), name) == 0 ? text.substr(name.size()) : text;
}

}  // namespace

nameless_file::nameless_file() : file_(std::tmpfile()) {
  if (!file_) fail_with("no temporary file", errno);
}

int nameless_file::descriptor() const noexcept { return fileno(file_.get()); }

void read_at(int descriptor, void* data, std::size_t bytes, std::size_t offset) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got =
        pread(descriptor, static_cast<char*>(data) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with("a temporary file cannot be read", errno);
    if (got == 0) headwise::detail::fail("a temporary file ends at ", offset + done, ", expected ", offset + bytes);
    done += static_cast<std::size_t>(got);
  }
}

void write_at(int descriptor, const void* data, std::size_t bytes, std::size_t offset) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t put =
        pwrite(descriptor, static_cast<const char*>(data) + done, bytes - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_with("a temporary file cannot be written", errno);
    done += static_cast<std::size_t>(put);
  }
}

std::size_t size_of(int descriptor) {
  struct stat about = {};
  if (fstat(descriptor, &about) != 0) fail_with("a temporary file has no size", errno);
  return static_cast<std::size_t>(about.st_size);
}

std::string run_self(const self_call& call) {
  std::error_code unknown;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", unknown).string();
  if (unknown) headwise::detail::fail(call.what, ": cannot find this program to run it again: ", unknown.message());
  std::vector<std::string> arguments = {program};
  arguments.insert(arguments.end(), call.arguments.begin(), call.arguments.end());
  std::vector<std::string> environment = environment_with(call.environment);

  const nameless_file complaints;
  pipe_ends output;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, call.input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, complaints.descriptor(), STDERR_FILENO);
  pid_t child = 0;
  const int refused =
      posix_spawn(&child, program.c_str(), &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (refused != 0) fail_with(call.what + ": a process cannot be started", refused);

  output.close_end(1);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(output.ends[0], buffer, sizeof buffer)) != 0;) {
    if (got > 0)
      text.append(buffer, static_cast<std::size_t>(got));
    else if (errno != EINTR)
      break;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }

  std::string said(size_of(complaints.descriptor()), '\0');
  read_at(complaints.descriptor(), said.data(), said.size(), 0);
  const std::string words = said.empty() ? "" : ": " + first_line(said);
  if (WIFSIGNALED(status))
    headwise::detail::fail(call.what, ": its process died of signal ", WTERMSIG(status), " (",
                           strsignal(WTERMSIG(status)), WTERMSIG(status) == SIGKILL ? ", out of memory?)" : ")", words);
  if (WEXITSTATUS(status) != 0)
    headwise::detail::fail(call.what, said.empty() ? ": its process failed without a word" : words);
  std::fputs(said.c_str(), stderr);
  return text;
}

std::size_t peak_memory() {
  // Not ru_maxrss where it can be helped: Linux hands the parent's peak down through exec.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.compare(0, 6, "VmHWM:") == 0) return std::stoull(line.substr(6)) * 1024;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace headwise_llama
