// SPDX-License-Identifier: MIT
#pragma once

namespace headwise::test {

#if defined(__has_feature)
#define HEADWISE_TEST_FEATURE(name) __has_feature(name)
#else
#define HEADWISE_TEST_FEATURE(name) 0  // g++ 12 has a macro for each
#endif

/// Whether this program is compiled with the thread sanitizer; with that or the address sanitizer. Everything takes ten
/// times as long.
#if defined(__SANITIZE_THREAD__) || HEADWISE_TEST_FEATURE(thread_sanitizer)
inline constexpr bool thread_sanitized = true;
#else
inline constexpr bool thread_sanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || HEADWISE_TEST_FEATURE(address_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = thread_sanitized;
#endif
#undef HEADWISE_TEST_FEATURE

}  // namespace headwise::test
