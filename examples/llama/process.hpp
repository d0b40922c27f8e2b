// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headwise_llama {

/// A file without a name: it is gone when the last process that holds it is, however that ends.
class nameless_file {
 public:
  nameless_file();
  int descriptor() const noexcept;

 private:
  struct close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, close> file_;
};

/// Bytes at an offset of an open file, all of them: pread and pwrite, so that processes that share it do not disturb
/// each other's position. Refuse what cannot be read or written in full.
void read_at(int descriptor, void* data, std::size_t bytes, std::size_t offset);
void write_at(int descriptor, const void* data, std::size_t bytes, std::size_t offset);
/// How many bytes it has.
std::size_t size_of(int descriptor);

/// This program once more, as a process of its own: for figures that belong to one process (its peak of memory) or
/// are read from the environment when it starts (how OpenMP waits).
struct self_call {
  std::string what;                    ///< begins the message when it fails: "stock, 2 threads"
  std::vector<std::string> arguments;  ///< without the program's name
  std::vector<std::pair<std::string, std::string>> environment;  ///< set beside what we have; "": unset
  int input = -1;  ///< becomes its standard input; other open files keep their numbers
};

/// Runs it to its end and returns what it printed on standard output. A non-zero exit, a signal, or a program that
/// cannot start becomes one line in words.
std::string run_self(const self_call& call);

/// The most memory this process has had in use at any time (resident pages, those of mapped files included).
std::size_t peak_memory();

}  // namespace headwise_llama
