// SPDX-License-Identifier: MIT
// A program that runs itself again: what comes back, and what is said when it dies. The other process is this test
// program, told to run one of the disabled tests.

#include "process.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "headwise/core/error.hpp"

namespace {

using headwise_llama::nameless_file;
using headwise_llama::run_self;
using headwise_llama::self_call;

self_call calling(const std::string& test, const nameless_file& input) {
  self_call call;
  call.what = "the other one";
  call.arguments = {"--gtest_also_run_disabled_tests", "--gtest_filter=process.DISABLED_" + test};
  call.input = input.descriptor();
  return call;
}

std::string failure_of(const std::string& test) {
  const nameless_file nothing;
  try {
    return "it said " + run_self(calling(test, nothing));
  } catch (const headwise::error& failed) {
    return failed.what();
  }
}

TEST(process, DISABLED_Repeats) {
  char text[6] = {};
  headwise_llama::read_at(STDIN_FILENO, text, 5, 3);
  const char* const word = std::getenv("HEADWISE_TEST_WORD");
  std::printf("<%s %s>", text, word != nullptr ? word : "unset");
}
TEST(process, DISABLED_Complains) {
  std::fprintf(stderr, "headwise-llama: no room\nfor anything\n");
  std::_Exit(3);
}
TEST(process, DISABLED_SaysNothing) { std::_Exit(1); }
TEST(process, DISABLED_Dies) { std::raise(SIGKILL); }

TEST(process, ReadsItsInputAndItsEnvironmentAndIsHeard) {
  const nameless_file input;
  headwise_llama::write_at(input.descriptor(), "...hello...", 11, 0);
  EXPECT_EQ(headwise_llama::size_of(input.descriptor()), 11U);
  self_call call = calling("Repeats", input);
  call.environment = {{"HEADWISE_TEST_WORD", "world"}};
  EXPECT_NE(run_self(call).find("<hello world>"), std::string::npos);
  call.environment = {{"HEADWISE_TEST_WORD", "again"}};
  EXPECT_NE(run_self(call).find("<hello again>"), std::string::npos);
  setenv("HEADWISE_TEST_WORD", "ours", 1);
  EXPECT_NE(run_self(call).find("<hello again>"), std::string::npos);
  call.environment = {};
  EXPECT_NE(run_self(call).find("<hello ours>"), std::string::npos);
  call.environment = {{"HEADWISE_TEST_WORD", ""}};
  EXPECT_NE(run_self(call).find("<hello unset>"), std::string::npos);
}

TEST(process, ItsFailureIsOneLineInWords) {
  EXPECT_EQ(failure_of("Complains"), "the other one: no room");
  EXPECT_EQ(failure_of("SaysNothing"), "the other one: its process failed without a word");
  EXPECT_EQ(failure_of("Dies"), "the other one: its process died of signal 9 (Killed, out of memory?)");
}

TEST(process, AFileThatIsTooShortIsRefused) {
  const nameless_file file;
  char text[4];
  EXPECT_THROW(headwise_llama::read_at(file.descriptor(), text, 4, 0), headwise::error);
}

TEST(process, PeakMemoryCoversWhatWasTouched) {
  constexpr std::size_t bytes = 64 << 20;
  const std::string touched(bytes, 'x');
  EXPECT_GT(headwise_llama::peak_memory(), bytes);
}

}  // namespace
