// SPDX-License-Identifier: MIT
#include "headwise/core/byte_stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "headwise/core/checksum.hpp"
#include "headwise/core/file.hpp"
#include "support/refused.hpp"

namespace {

using namespace headwise;

static_assert(detail::is_sink<memory_sink>::value && detail::is_source<memory_source>::value);
static_assert(detail::is_sink<file_sink>::value && detail::is_source<file_source>::value);
static_assert(detail::is_sink<counting_sink>::value && !detail::is_source<counting_sink>::value);
static_assert(!detail::is_sink<memory_source>::value && !detail::is_source<memory_sink>::value);
static_assert(!detail::is_sink<checksum>::value && !detail::is_sink<int>::value);
static_assert(detail::is_sink<detail::some_sink>::value && detail::is_source<detail::some_source>::value);

/// The contract in a few lines of one's own.
struct own_sink {
  std::string* text;
  void write(const void* data, std::size_t bytes) { text->append(static_cast<const char*>(data), bytes); }
};
static_assert(detail::is_sink<own_sink>::value);

TEST(byte_stream, memory_gives_back_what_it_took_however_it_is_cut) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  for (const std::size_t written : {1U, 3U, 1000U})
    for (const std::size_t read : {1U, 7U, 1000U}) {
      memory_sink sink;
      sink.reserve(10);
      sink.write(nullptr, 0);
      for (std::size_t at = 0; at < text.size(); at += written)
        sink.write(text.data() + at, (std::min)(written, text.size() - at));
      ASSERT_EQ(sink.bytes().size(), text.size());
      memory_source source(sink.bytes().data(), sink.bytes().size());
      std::string found(text.size(), '?');
      for (std::size_t at = 0; at < text.size(); at += read) {
        EXPECT_EQ(source.remaining(), text.size() - at);
        source.read(found.data() + at, (std::min)(read, text.size() - at));
      }
      EXPECT_EQ(found, text);
      EXPECT_EQ(source.remaining(), 0U);
      source.read(nullptr, 0);
    }
}

TEST(byte_stream, a_source_that_is_too_short_is_refused_and_gives_nothing) {
  const char bytes[] = "abc";
  memory_source source(bytes, 3);
  char found[5] = "????";
  EXPECT_REFUSED(source.read(found, 4), "found 3 bytes, expected 4");
  const volatile std::size_t huge = static_cast<std::size_t>(-1);  // else gcc sees a memcpy of so many bytes
  EXPECT_REFUSED(source.read(found, huge), "found 3 bytes");
  EXPECT_EQ(source.remaining(), 3U);
  EXPECT_STREQ(found, "????");
  source.read(found, 3);
  EXPECT_STREQ(found, "abc?");
  EXPECT_REFUSED(source.read(found, 1), "found 0 bytes, expected 1");
  memory_source none(nullptr, 0);
  none.read(nullptr, 0);
  EXPECT_REFUSED(none.read(found, 1), "found 0 bytes");
}

TEST(byte_stream, counting_and_ones_own_sinks_take_numbers) {
  counting_sink count;
  std::string text;
  own_sink own{&text};
  for (const std::size_t number : {std::size_t{0}, std::size_t{1}, static_cast<std::size_t>(-1)}) {
    detail::write_count(count, number);
    detail::write_count(own, number);
  }
  EXPECT_EQ(count.bytes(), 24U);
  ASSERT_EQ(text.size(), 24U);
  memory_source source(text.data(), text.size() - 1);
  EXPECT_EQ(detail::read_count(source), 0U);
  EXPECT_EQ(detail::read_count(source), 1U);
  EXPECT_REFUSED(detail::read_count(source), "found 7 bytes, expected 8");
}

}  // namespace
