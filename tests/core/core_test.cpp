// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <locale>
#include <string>
#include <utility>
#include <vector>

#include "headwise/core/aligned_memory.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/executor.hpp"
#include "support/refused.hpp"

namespace {

struct comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(error, numbers_in_messages_are_the_same_in_every_locale) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new comma));
  const std::string c_before = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"})  // whichever there is
    if (std::setlocale(LC_ALL, name) != nullptr) break;
  const std::string text =
      headwise::detail::join(std::size_t{1000000}, " ", 0.25, " ", -0.5F, " ", -1234567, " ", 1e300);
  std::setlocale(LC_ALL, c_before.c_str());
  std::locale::global(before);
  EXPECT_EQ(text, "1000000 0.25 -0.5 -1234567 1e+300");
}

TEST(error, odd_numbers_have_text_too) {
  EXPECT_EQ(
      headwise::detail::join(std::numeric_limits<double>::infinity(), " ", std::numeric_limits<std::uint64_t>::max(),
                             " ", std::numeric_limits<std::int64_t>::min(), " ", std::nan("")),
      "inf 18446744073709551615 -9223372036854775808 nan");
  EXPECT_REFUSED(headwise::detail::fail("found ", 3, " of ", std::string("x")), "found 3 of x");
}

TEST(aligned_memory, copies_own_their_bytes_and_moves_take_them) {
  headwise::aligned_memory a(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0U);
  std::memset(a.data(), 7, 100);
  headwise::aligned_memory b = a;
  b.data()[0] = std::byte{9};
  EXPECT_EQ(a.data()[0], std::byte{7});
  EXPECT_EQ(b.data()[99], std::byte{7});
  const std::byte* const bytes = b.data();
  headwise::aligned_memory c = std::move(b);
  EXPECT_EQ(c.data(), bytes);
  EXPECT_EQ(c.size(), 100U);
  a = c;
  EXPECT_EQ(a.data()[0], std::byte{9});
  EXPECT_NE(a.data(), c.data());
  const headwise::aligned_memory& itself = a;
  a = itself;
  EXPECT_EQ(a.data()[0], std::byte{9});
  headwise::aligned_memory empty;
  const headwise::aligned_memory copy = empty;
  EXPECT_EQ(copy.size(), 0U);
}

TEST(attention_params, the_usual_scale_unless_another_is_given) {
  headwise::attention_params params;
  EXPECT_EQ(params.scale_for(64), 0.125F);
  EXPECT_EQ(params.capped(30.0F), 30.0F);
  params.scale = 0.5F;
  params.softcap = 10.0F;
  EXPECT_EQ(params.scale_for(64), 0.5F);
  EXPECT_NEAR(static_cast<double>(params.capped(30.0F)), 10.0 * std::tanh(3.0), 1e-5);
}

TEST(attention_params, numbers_that_are_none_are_refused) {
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    headwise::attention_params params;
    params.scale = bad;
    EXPECT_REFUSED(check(params), "scale");
    params.scale = 0.0F;
    params.softcap = bad;
    EXPECT_REFUSED(check(params), "softcap");
  }
  headwise::attention_params params;
  params.softcap = -1.0F;
  EXPECT_REFUSED(check(params), "softcap");
}

template <class Executor>
void expect_each_task_once(const Executor& executor) {
  for (const std::size_t count : {0U, 1U, 2U, 7U, 100U}) {
    std::vector<int> calls(count, 0);
    executor(count, [&](std::size_t i) { ++calls[i]; });
    EXPECT_EQ(calls, std::vector<int>(count, 1));
  }
}

TEST(executors, run_each_task_once) {
  expect_each_task_once(headwise::serial{});
#if defined(_OPENMP)
  expect_each_task_once(headwise::openmp{});
  expect_each_task_once(headwise::openmp{3});
#endif
}

}  // namespace
