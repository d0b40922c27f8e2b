// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "headwise/core/token_view.hpp"
#include "headwise/element/format.hpp"
#include "headwise/element/format_variant.hpp"
#include "headwise/kernel/kernel.hpp"
#include "reference/conversions.hpp"
#include "support/format_names.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"

namespace {

using headwise::any_format;
using headwise::bfloat16;
using headwise::float16;
using headwise::float32;
using headwise::detail::bits_of;

// The trait that require_format() asks: what is a format, and what falls short of one in a single point.
struct no_name {
  static std::size_t bytes(std::size_t count) { return count; }
  static void encode(const float*, std::byte*, std::size_t) {}
  static void decode(const std::byte*, float*, std::size_t) {}
};
struct no_bytes {
  static const char* name() { return ""; }
  static void encode(const float*, std::byte*, std::size_t) {}
  static void decode(const std::byte*, float*, std::size_t) {}
};
struct not_const {
  static const char* name() { return ""; }
  static std::size_t bytes(std::size_t count) { return count; }
  void encode(const float*, std::byte*, std::size_t) {}
  static void decode(const std::byte*, float*, std::size_t) {}
};
struct decodes_doubles {
  static const char* name() { return ""; }
  static std::size_t bytes(std::size_t count) { return count; }
  static void encode(const float*, std::byte*, std::size_t) {}
  static void decode(const std::byte*, double*, std::size_t) {}
};
struct complete {
  static const char* name() { return ""; }
  static std::size_t bytes(std::size_t count) { return count; }
  static void encode(const float*, std::byte*, std::size_t) {}
  static void decode(const std::byte*, float*, std::size_t) {}
};
struct not_assignable : complete {
  const int member = 0;
};
template <class F>
constexpr bool is_format = headwise::detail::is_format<F>::value;
static_assert(is_format<float32> && is_format<float16> && is_format<bfloat16> && is_format<any_format>);
static_assert(is_format<complete>);
static_assert(!is_format<int> && !is_format<no_name> && !is_format<no_bytes> && !is_format<not_const> &&
              !is_format<decodes_doubles> && !is_format<not_assignable>);

template <class Format>
class format : public testing::Test {};
using formats = testing::Types<float32, float16, bfloat16>;
TYPED_TEST_SUITE(format, formats, headwise::test::format_names);

/// Random numbers with zeros, subnormals, infinities, NaN and numbers beyond f16's range among them.
std::vector<float> mixed_floats(std::size_t count) {
  headwise::test::random_numbers random(7);
  std::vector<float> floats(count);
  for (float& x : floats) {
    const float specials[] = {0.0F,
                              -0.0F,
                              1e-7F,
                              -3e-41F,
                              7e4F,
                              -3.4e38F,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
    x = random.below(4) == 0 ? specials[random.below(8)] : 100.0F * random.gaussian();
  }
  return floats;
}

/// One by one, any length, any start: the vector body and the tail of a loop agree (HALF-04).
TYPED_TEST(format, arrays_of_any_length_equal_single_elements) {
  const TypeParam f;
  const std::vector<float> floats = mixed_floats(48);
  for (std::size_t start = 0; start < 8; ++start)
    for (std::size_t count = 0; count <= 40; ++count) {
      std::vector<std::byte> array(f.bytes(count) + 2, std::byte{0xAB});
      std::vector<std::byte> single(f.bytes(count) + 2, std::byte{0xAB});
      f.encode(floats.data() + start, array.data(), count);
      for (std::size_t i = 0; i < count; ++i) f.encode(floats.data() + start + i, single.data() + f.bytes(i), 1);
      ASSERT_TRUE(array == single) << count << " elements from " << start;  // and nothing behind them is written

      std::vector<float> back(count + 1, 5.0F);
      std::vector<float> back_single(count + 1, 5.0F);
      f.decode(array.data(), back.data(), count);
      for (std::size_t i = 0; i < count; ++i) f.decode(array.data() + f.bytes(i), back_single.data() + i, 1);
      ASSERT_EQ(std::memcmp(back.data(), back_single.data(), back.size() * sizeof(float)), 0) << count;
    }
}

TYPED_TEST(format, encode_of_decode_gives_the_same_bytes) {
  const TypeParam f;
  const std::vector<float> floats = mixed_floats(4096);
  std::vector<std::byte> once(f.bytes(floats.size()));
  std::vector<std::byte> twice(once.size());
  std::vector<float> back(floats.size());
  f.encode(floats.data(), once.data(), floats.size());
  f.decode(once.data(), back.data(), back.size());
  f.encode(back.data(), twice.data(), back.size());
  EXPECT_TRUE(once == twice);
}

TYPED_TEST(format, a_variant_equals_its_member) {
  const TypeParam member;
  const any_format variant = member;
  const std::vector<float> floats = mixed_floats(100);
  EXPECT_EQ(std::string(variant.name()), member.name());
  EXPECT_EQ(variant.bytes(100), member.bytes(100));
  std::vector<std::byte> a(member.bytes(100));
  std::vector<std::byte> b(a.size());
  member.encode(floats.data(), a.data(), 100);
  variant.encode(floats.data(), b.data(), 100);
  EXPECT_TRUE(a == b);
  std::vector<float> from_a(100);
  std::vector<float> from_b(100);
  member.decode(a.data(), from_a.data(), 100);
  variant.decode(a.data(), from_b.data(), 100);
  EXPECT_EQ(std::memcmp(from_a.data(), from_b.data(), 100 * sizeof(float)), 0);
}

template <class Format>
float stored(float value) {
  std::byte bytes[4];
  float back;
  Format::encode(&value, bytes, 1);
  Format::decode(bytes, &back, 1);
  return back;
}

// HALF-01
TEST(float16_rows, finite_numbers_beyond_the_range_stay_finite) {
  struct {
    float value;
    float expected;
  } const cases[] = {{60000.0F, 60000.0F}, {65504.0F, 65504.0F}, {65519.0F, 65504.0F},
                     {65520.0F, 65504.0F}, {70000.0F, 65504.0F}, {3.4028235e38F, 65504.0F}};
  for (const auto& c : cases) {
    EXPECT_EQ(stored<float16>(c.value), c.expected) << c.value;
    EXPECT_EQ(stored<float16>(-c.value), -c.expected) << -c.value;
  }
  EXPECT_EQ(stored<float16>(HUGE_VALF), HUGE_VALF);
  EXPECT_EQ(stored<float16>(-HUGE_VALF), -HUGE_VALF);
  EXPECT_TRUE(std::isnan(stored<float16>(std::numeric_limits<float>::quiet_NaN())));
}

TEST(read_row, reads_every_element_type_in_any_order) {
  using headwise::element_type;
  headwise::test::random_numbers random(3);
  const std::size_t tokens = 5;
  const std::size_t heads = 3;
  const std::size_t dim = 21;
  const std::vector<float> numbers = random.gaussians(tokens * heads * dim);
  for (const auto type : {element_type::f32, element_type::f16, element_type::bf16})
    for (const auto order :
         {headwise::test::order::packed, headwise::test::order::heads_first, headwise::test::order::odd}) {
      const headwise::test::tensor tensor(tokens, heads, dim, numbers, type, order);
      for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t h = 0; h < heads; ++h) {
          std::vector<float> row(dim);
          headwise::kernel::read_row(headwise::kernel::fastest(), tensor.view(), t, h, row.data());
          EXPECT_EQ(std::vector<double>(row.begin(), row.end()), tensor.row(t, h)) << "token " << t << " head " << h;
        }
    }
}

}  // namespace
