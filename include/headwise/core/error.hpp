// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "headwise/config.hpp"

namespace headwise {

/// What every refusal throws: a wrong shape, a wrong argument, a damaged file. The message names what was found and
/// what was expected. Nothing has changed when it is thrown.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where refusals go in a program built without exceptions. It must not return; the default prints and aborts.
using error_handler = void (*)(const char* message);

/// The handler in force, to be replaced by assignment before other threads use the library.
inline error_handler& on_error() noexcept {
  static error_handler handler = [](const char* message) {
    std::fprintf(stderr, "headwise: %s\n", message);
    std::abort();
  };
  return handler;
}

namespace detail {

inline void append_part(std::string& text, std::string_view part) { text.append(part); }

template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
void append_part(std::string& text, Number number) {
  char digits[64];  // to_chars: the same text in every locale
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text.append(digits, end);
}

/// The parts of a message, numbers included, as one text.
template <class... Parts>
std::string join(const Parts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

/// Text of a file as a message shows it: one short line, whatever the file holds.
inline std::string printable(std::string_view text) {
  constexpr std::size_t most = 80;
  std::string shown(text.substr(0, most));
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = c == '\t' ? ' ' : '?';
  return text.size() > most ? shown + "..." : shown;
}

[[noreturn]] HEADWISE_COLD inline void raise(const std::string& message) {
#if HEADWISE_EXCEPTIONS
  throw error(message);
#else
  on_error()(message.c_str());
  std::abort();
#endif
}

template <class... Parts>
[[noreturn]] HEADWISE_COLD void fail(const Parts&... parts) {
  raise(join(parts...));
}

}  // namespace detail
}  // namespace headwise
