// SPDX-License-Identifier: MIT
// Damaged files: profiles and plans meet the same damage. What is no file of ours is refused with one line that says
// where; nothing crashes, hangs, or asks for memory because a number in the file says so.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "profile/sample_files.hpp"
#include "support/refused.hpp"
#include "support/temporary_folder.hpp"

namespace {

std::atomic<std::size_t> largest_allocation{0};

void* allocate(std::size_t size) noexcept {
  std::size_t largest = largest_allocation;
  while (size > largest && !largest_allocation.compare_exchange_weak(largest, size)) {
  }
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

// Not inlined, because gcc then takes them for a new and a free that do not belong together.
#define NOT_INLINED __attribute__((noinline))
NOT_INLINED void* operator new(std::size_t size) {
  void* const block = allocate(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
NOT_INLINED void* operator new[](std::size_t size) { return operator new(size); }
NOT_INLINED void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
NOT_INLINED void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
NOT_INLINED void operator delete(void* block) noexcept { std::free(block); }
NOT_INLINED void operator delete[](void* block) noexcept { std::free(block); }
NOT_INLINED void operator delete(void* block, std::size_t) noexcept { std::free(block); }
NOT_INLINED void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

namespace {

using namespace headwise::test;
using headwise::model_shape;

template <class Kind>
class damage : public testing::Test {
 protected:
  /// The message that refuses a file of these bytes; empty if they are accepted as a file of the sample's shape. Past
  /// the file system, which is too slow for thousands of files.
  std::string refusal(const std::string& bytes, bool shape_is_known = true) const {
    try {
      const auto found = Kind::parse(path_, bytes, shape_is_known ? &sample_shape : nullptr);
      if (shape_is_known) {
        EXPECT_TRUE(Kind::shape(found) == sample_shape);
      }
      return {};
    } catch (const headwise::error& refused) {
      const std::string message = refused.what();
      EXPECT_EQ(message.rfind(path_ + ":", 0), 0U) << message;  // begins with the file
      EXPECT_EQ(message.find_first_of("\n\r\x1b"), std::string::npos) << message;
      EXPECT_LT(message.size(), path_.size() + 300) << message;
      return message.substr(path_.size());
    }
  }
  void expect_refused(const std::string& bytes, std::initializer_list<const char*> words) const {
    const std::string message = refusal(bytes);
    EXPECT_NE(message, "") << "accepted";
    for (const char* word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  }
  /// A copy of the sample with `count` lines from `first` on (1-based) replaced.
  static std::string with_lines(std::size_t first, std::size_t count, const std::string& lines) {
    std::string text = Kind::text();
    const auto line_start = [&](std::size_t line) {
      std::size_t at = 0;
      for (; line > 1; --line) at = text.find('\n', at) + 1;
      return at;
    };
    const std::size_t from = line_start(first);
    return text.replace(from, line_start(first + count) - from, lines);
  }
  static std::size_t lines() {
    return static_cast<std::size_t>(std::count(Kind::text().begin(), Kind::text().end(), '\n'));
  }
  static std::string line(std::size_t number) {
    std::size_t at = 0;
    for (std::size_t i = 1; i < number; ++i) at = Kind::text().find('\n', at) + 1;
    return Kind::text().substr(at, Kind::text().find('\n', at) + 1 - at);
  }

  temporary_folder folder_;
  std::string path_ = folder_.file("file.tsv");
};

struct kind_name {
  template <class Kind>
  static std::string GetName(int) {
    return Kind::name;
  }
};
using kinds = testing::Types<profile_kind, plan_kind>;
TYPED_TEST_SUITE(damage, kinds, kind_name);

TYPED_TEST(damage, the_sample_itself_is_accepted) {
  EXPECT_EQ(this->refusal(TypeParam::text()), "");
  put(this->path_, TypeParam::text());
  EXPECT_TRUE(same(TypeParam::read(this->path_), TypeParam::sample()));
}

TYPED_TEST(damage, a_file_cut_at_any_byte_is_refused) {
  const std::string& text = TypeParam::text();
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_NE(this->refusal(text.substr(0, length)), "") << "cut at byte " << length << " of " << text.size();
  this->expect_refused("", {"empty", "expected '# headwise "});
  this->expect_refused(text.substr(0, text.size() - 1), {":16: ", "cut"});
}

TYPED_TEST(damage, a_flipped_bit_or_an_odd_byte_is_refused_or_leaves_a_file_of_the_same_shape) {
  const std::string& text = TypeParam::text();
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::vector<char> bytes = {'\0', '\n', '\t', '\r', '#', '-', '9', ' ', '\x7F', '\xFF'};
    for (int bit = 0; bit < 8; ++bit) bytes.push_back(static_cast<char>(text[at] ^ (1 << bit)));
    for (const char byte : bytes) {
      std::string spoiled = text;
      spoiled[at] = byte;
      if (this->refusal(spoiled).empty()) ++accepted;
    }
  }
  EXPECT_LT(accepted, text.size() * 18 / 3);  // digits of scores and letters of free text may change, little else
}

TYPED_TEST(damage, a_byte_lost_or_doubled_is_refused_or_leaves_a_file_of_the_same_shape) {
  const std::string& text = TypeParam::text();
  for (std::size_t at = 0; at < text.size(); ++at) {
    this->refusal(text.substr(0, at) + text.substr(at + 1));
    this->refusal(text.substr(0, at + 1) + text.substr(at));
    this->refusal(text.substr(0, at) + text.substr(at + 1), false);
  }
}

TYPED_TEST(damage, rows_missing_added_or_out_of_place_are_refused) {
  const std::size_t first = this->lines() - (TypeParam::rows - 1), last = this->lines();
  for (std::size_t row = first; row <= last; ++row) {
    SCOPED_TRACE(testing::Message() << "line " << row);
    const std::string text = this->line(row);
    this->expect_refused(this->with_lines(row, 1, ""), {"expected"});
    this->expect_refused(this->with_lines(row, 1, text + text), {"expected"});
    this->expect_refused(this->with_lines(row, 1, "\n"), {"found 1 fields, expected "});
    this->expect_refused(this->with_lines(row, 1, "\n" + text), {"fields"});
    this->expect_refused(this->with_lines(row, 1, text.substr(0, text.rfind('\t')) + "\n"), {"fields, expected"});
    this->expect_refused(this->with_lines(row, 1, text.substr(0, text.size() - 1) + "\t0\n"), {"fields, expected"});
    if (row < last)
      this->expect_refused(this->with_lines(row, 2, this->line(row + 1) + text), {"found '", "expected "});
  }
  this->expect_refused(TypeParam::text() + this->line(last), {":17: ", "more rows", "end of the file"});
  this->expect_refused(TypeParam::text() + "\n", {":17: ", "more rows"});
  this->expect_refused(TypeParam::text() + "# a: b\n", {":17: ", "more rows"});
  this->expect_refused(this->with_lines(last, 1, ""), {":15: ", "the file ends after", "expected "});
}

TYPED_TEST(damage, a_row_for_another_head_is_refused_with_its_field) {
  const std::string row = this->line(this->lines());  // layer 1, KV head 1
  const auto last = [&](const std::string& text) { return this->with_lines(this->lines(), 1, text); };
  this->expect_refused(last("2" + row.substr(1)), {":16: layer: found '2', expected 1"});
  this->expect_refused(last("1\t0" + row.substr(3)), {":16: kv_head: found '0', expected 1"});
  for (const char* bad : {"01", "+1", "-1", "1.0", " 1", "", "18446744073709551617", "0x1"}) {
    this->expect_refused(last(bad + row.substr(1)), {":16: layer: found '", bad});
    this->expect_refused(last("1\t" + (bad + row.substr(3))), {":16: kv_head: found '", bad});
  }
}

TYPED_TEST(damage, windows_line_ends_other_titles_and_marks_are_refused) {
  std::string crlf;
  for (const char c : TypeParam::text()) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  this->expect_refused(crlf, {":1: first line: found '# headwise ", "?', expected # headwise "});
  for (std::size_t line = 1; line <= this->lines(); ++line) {
    std::string text = this->line(line);
    text.insert(text.size() - 1, "\r");
    const std::string message = this->refusal(this->with_lines(line, 1, text));
    if (message.empty()) {
      EXPECT_TRUE(text.rfind("# model: ", 0) == 0 || text.rfind("# seed: ", 0) == 0) << text;  // free text may hold it
    }
  }
  this->expect_refused("\xEF\xBB\xBF" + TypeParam::text(), {":1: first line"});
  this->expect_refused("\n" + TypeParam::text(), {":1: first line: found ''"});
  this->expect_refused(this->with_lines(1, 1, ""), {":1: first line: found '# layers: 2'"});
  this->expect_refused(with(TypeParam::text(), " 1\n", " 2\n"), {":1: ", " 2'", " 1"});  // a later version
  this->expect_refused(TypeParam::name == std::string("plan") ? sample_profile_text : sample_plan_text,
                       {":1: first line"});
  this->expect_refused("{\"full_attention_heads\": []}", {":1: ", "no end"});
}

TYPED_TEST(damage, metadata_that_is_not_key_and_value_or_repeats_a_key_is_refused) {
  for (const char* line : {"#\n", "# \n", "#layers: 2\n", "# layers\n", "# layers:2\n", "# layers=2\n", "##\n"})
    this->expect_refused(this->with_lines(2, 1, line), {":2: metadata: found '", "expected '# key: value'"});
  for (std::size_t number = 2; number <= 7; ++number) {
    const std::string line = this->line(number), key = line.substr(2, line.find(':') - 2);
    this->expect_refused(this->with_lines(number, 1, line + line), {"metadata: found '", key.c_str(), "not there yet"});
    this->expect_refused(this->with_lines(7, 1, this->line(7) + "# " + key + ": 7\n"), {"not there yet"});
  }
  for (std::size_t number = 2; number <= 6; ++number) {
    const std::string line = this->line(number), key = line.substr(2, line.find(':') - 2);
    this->expect_refused(this->with_lines(number, 1, ""), {"no metadata line", key.c_str()});
    this->expect_refused(this->with_lines(number, 1, "# " + key + "s: 2\n"), {"no metadata line", key.c_str()});
  }
  this->expect_refused(this->with_lines(8, this->lines() - 7, ""), {":7: ", "before the column names"});
}

TYPED_TEST(damage, counts_that_no_model_has_are_refused_and_ask_for_no_memory) {
  struct edit {
    const char* from;
    const char* to;
  };
  const std::vector<edit> huge[] = {
      {{"layers: 2", "layers: 9223372036854775808"}},
      {{"layers: 2", "layers: 18446744073709551615"}},
      {{"layers: 2", "layers: 18446744073709551616"}},
      {{"layers: 2", "layers: -2"}},
      {{"layers: 2", "layers: 0"}},
      {{"layers: 2", "layers: 4294967298"}},  // 2 in 32 bits
      {{"layers: 2", "layers: 1048576"}},
      {{"layers: 2", "layers: 1048577"}},
      {{"layers: 2", "layers: 1048576"}, {"query_heads: 4", "query_heads: 1048576"}},
      {{"layers: 2", "layers: 1048576"},
       {"query_heads: 4", "query_heads: 1048576"},
       {"kv_heads: 2", "kv_heads: 1048576"}},
      {{"query_heads: 4", "query_heads: 0"}},
      {{"query_heads: 4", "query_heads: 9223372036854775808"}},
      {{"query_heads: 4", "query_heads: 3"}},
      {{"query_heads: 4", "query_heads: 1"}},
      {{"kv_heads: 2", "kv_heads: 0"}},
      {{"kv_heads: 2", "kv_heads: 18446744073709551615"}},
      {{"head_dim: 16", "head_dim: 0"}},
      {{"head_dim: 16", "head_dim: 9223372036854775808"}},
      {{"value_dim: 8", "value_dim: 0"}},
      {{"value_dim: 8", "value_dim: 1048577"}},
  };
  for (const auto& edits : huge) {
    std::string text = TypeParam::text();
    for (const edit& e : edits) text = with(text, e.from, e.to);
    SCOPED_TRACE(edits[0].to);
    for (const bool known : {false, true}) {
      largest_allocation = 0;
      EXPECT_NE(this->refusal(text, known), "");
      EXPECT_LT(largest_allocation, std::size_t{1} << 20);
    }
  }
}

TYPED_TEST(damage, long_lines_many_keys_and_many_columns_take_time_and_memory_of_the_files_size) {
  // One message stays one short line, whatever the file holds.
  const std::string megabyte(std::size_t{1} << 20, 'x');
  this->expect_refused("# " + megabyte + "\n", {":1: first line: found '# xxx", "...'"});
  this->expect_refused("# \x1b[2J\x07\n", {":1: first line: found '# ?[2J?'"});
  this->expect_refused(this->with_lines(2, 1, "# layers: " + megabyte + "\n"), {":2: layers: found 'xxx", "..."});

  const std::string& columns = this->line(this->lines() - TypeParam::rows);
  std::string many = columns.substr(0, columns.size() - 1);
  for (int i = 0; i < 100000; ++i) many += "\tc" + std::to_string(i);
  this->expect_refused(with(TypeParam::text(), columns, many + "\n"), {"columns", "expected"});
  this->expect_refused(with(TypeParam::text(), columns, std::string(std::size_t{1} << 20, '\t') + "\n"), {"columns"});

  std::string keys;  // 100,000 entries are odd but legal
  for (int i = 0; i < 100000; ++i) keys += "# key " + std::to_string(i) + ": value\n";
  EXPECT_EQ(this->refusal(this->with_lines(7, 1, keys + this->line(7))), "");
  this->expect_refused(this->with_lines(7, 1, keys + this->line(7) + "# key 77: again\n"), {":100008: ", "'key 77'"});
}

TYPED_TEST(damage, the_file_of_another_model_is_refused_with_both_shapes) {
  TypeParam::write(this->path_);
  const model_shape others[] = {{3, 4, 2, 16, 8}, {2, 2, 2, 16, 8}, {2, 4, 1, 16, 8},
                                {2, 4, 4, 16, 8}, {2, 4, 2, 32, 8}, {2, 4, 2, 16, 0}};
  for (const model_shape& other : others) {
    const std::string found = "found " + to_string(sample_shape), expected = "expected " + to_string(other);
    EXPECT_REFUSED(TypeParam::read(this->path_, &other), this->path_.c_str(), "another model", found.c_str(),
                   expected.c_str());
  }
  EXPECT_NO_THROW(TypeParam::read(this->path_));
  EXPECT_NO_THROW(TypeParam::read(this->path_, &sample_shape));
  // head size 16 is also what a shape with values of size 16 says, spelt out or not
  const model_shape spelt{2, 4, 2, 16, 16}, short_form{2, 4, 2, 16, 0};
  put(this->path_, with(TypeParam::text(), "value_dim: 8", "value_dim: 16"));
  EXPECT_NO_THROW(TypeParam::read(this->path_, &spelt));
  EXPECT_NO_THROW(TypeParam::read(this->path_, &short_form));
}

}  // namespace
