// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "headwise/core/error.hpp"

namespace headwise::test {

/// Expects headwise::error with a message that holds every one of the words: what was found, what was expected.
template <class Action>
void expect_refused(Action&& action, std::initializer_list<const char*> words, const char* file, int line) {
  testing::ScopedTrace trace(file, line, "expect_refused");
  try {
    action();
  } catch (const headwise::error& refusal) {
    const std::string message = refusal.what();
    for (const char* word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
    return;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "refused with another type: " << other.what();
    return;
  }
  ADD_FAILURE() << "accepted";
}

}  // namespace headwise::test

/// EXPECT_REFUSED(expression, "word", ...)
#define EXPECT_REFUSED(action, ...) \
  ::headwise::test::expect_refused([&] { static_cast<void>(action); }, {__VA_ARGS__}, __FILE__, __LINE__)
