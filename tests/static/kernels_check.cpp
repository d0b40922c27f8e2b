// SPDX-License-Identifier: MIT
// The kernels of the set named on the command line, or of each, against double precision, in a program without
// GoogleTest: for processors that only an emulator has, and for -Ofast, which such a program can be compiled with as a
// whole. tests/kernel asks more, of the processor that is there.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <headwise/headwise.hpp>
#include <limits>
#include <vector>

#include "reference/attention.hpp"
#include "support/random.hpp"

namespace {

namespace kernel = headwise::kernel;
using headwise::element_type;
using headwise::key_range;
using headwise::detail::bits_of;
using headwise::detail::float_of;

int failures = 0;
void expect(bool right, const char* what, std::size_t a = 0, std::size_t b = 0, std::size_t c = 0) {
  if (right) return;
  if (++failures <= 20) std::printf("wrong: %s (%zu, %zu, %zu)\n", what, a, b, c);
}

constexpr element_type types[] = {element_type::f32, element_type::f16, element_type::bf16};

void conversions() {
  const kernel::functions& kernels = kernel::fastest();
  std::vector<std::uint16_t> half(0x10000);
  for (std::size_t i = 0; i < half.size(); ++i) half[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(half.size());
  std::vector<std::uint16_t> back(half.size());
  for (const element_type type : {element_type::f16, element_type::bf16}) {
    const bool f16 = type == element_type::f16;
    kernels.widen(type, half.data(), wide.data(), half.size());
    for (std::size_t i = 0; i < half.size(); ++i) {
      const float expected = f16 ? headwise::float_from_f16(half[i]) : headwise::float_from_bf16(half[i]);
      const std::uint32_t quiet = f16 && std::isnan(expected) ? 0x400000U : 0U;  // a signalling NaN may come out quiet
      expect((bits_of(wide[i]) | quiet) == (bits_of(expected) | quiet), "widen", i, f16);
    }
    std::vector<float> floats;
    headwise::test::random_numbers random(1);
    for (int i = 0; i < 50001; ++i) {
      floats.push_back(float_of(random.bits()));
      floats.push_back(float_of(0x33000000U + random.bits() % 0x14800000U));                      // float16's range
      floats.push_back(float_of((bits_of(floats.back()) & 0xFFFFE000U) | (f16 ? 0x1000U : 0U)));  // a tie
    }
    for (const float x : {0.0F, -0.0F, 65504.0F, 65520.0F, 1e6F, -1e38F, 6e-8F, 2.98e-8F, HUGE_VALF, -HUGE_VALF})
      floats.push_back(x);
    std::vector<std::uint16_t> narrow(floats.size());
    kernels.narrow(type, floats.data(), narrow.data(), floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      float x = floats[i];
      if (f16 && std::fabs(x) > 65504.0F && std::fabs(x) <= std::numeric_limits<float>::max())
        x = std::copysign(65504.0F, x);
      expect(narrow[i] == (f16 ? headwise::f16_from_float(x) : headwise::bf16_from_float(x)), "narrow", i, f16);
    }
  }
}

void products() {
  const kernel::functions& kernels = kernel::fastest();
  headwise::test::random_numbers random(2);
  for (std::size_t size = 0; size <= 70; ++size) {
    const std::vector<float> a = random.gaussians(size);
    const std::vector<float> b = random.gaussians(size);
    double exact = 0.0;
    for (std::size_t i = 0; i < size; ++i) exact += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    expect(std::fabs(static_cast<double>(kernels.dot(a.data(), b.data(), size)) - exact) < 1e-4, "dot", size);
  }
  for (std::size_t rows = 1; rows <= 14; ++rows)
    for (const std::size_t columns : {1U, 8U, 35U, 72U}) {
      const std::size_t depth = 9;
      const std::vector<float> a = random.gaussians(rows * depth);
      const std::vector<float> b = random.gaussians(depth * columns);
      std::vector<float> c(rows * columns, 1.0F);
      kernels.add_product(rows, columns, depth, a.data(), 1, rows, b.data(), columns, c.data(), columns);
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) {
          double exact = 1.0;
          for (std::size_t k = 0; k < depth; ++k)
            exact += static_cast<double>(a[k * rows + i]) * static_cast<double>(b[k * columns + j]);
          expect(std::fabs(static_cast<double>(c[i * columns + j]) - exact) < 1e-4, "add_product", rows, columns);
        }
    }
}

/// Queries of several tokens over two and a half blocks in uneven runs, one of them biased.
void attention(element_type type, std::size_t key_size, std::size_t value_size, std::size_t tokens, std::size_t group,
               float softcap, bool window) {
  const kernel::functions& kernels = kernel::for_sizes(key_size, value_size);
  headwise::test::random_numbers random(static_cast<std::uint32_t>(key_size + value_size + tokens));
  constexpr std::size_t lengths[] = {64, 1, 20, 43, 30};
  constexpr std::size_t rows = 158;
  const std::size_t element = type == element_type::f32 ? 4 : 2;
  std::vector<float> keys = random.gaussians(rows * key_size);
  std::vector<float> values = random.gaussians(rows * value_size);
  std::vector<std::byte> stored_keys(keys.size() * element);
  std::vector<std::byte> stored_values(values.size() * element);
  const kernel::functions& plain = kernel::reference::table();
  plain.narrow(type, keys.data(), stored_keys.data(), keys.size());
  plain.narrow(type, values.data(), stored_values.data(), values.size());
  plain.widen(type, stored_keys.data(), keys.data(), keys.size());
  plain.widen(type, stored_values.data(), values.data(), values.size());

  const std::size_t count = tokens * group;
  const std::vector<float> queries = random.gaussians(count * key_size, 1.0F / std::sqrt(static_cast<float>(key_size)));
  std::vector<key_range> sees(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::size_t end = rows - (tokens - 1 - t) % rows;
    sees[t] = {window && end > 50 ? end - 50 : 0, end};
    if (t != 0 && sees[t].end < sees[t - 1].end) sees[t] = sees[t - 1];
  }
  std::vector<kernel::row_block> runs;
  std::vector<reference::row> exact_rows;
  for (std::size_t i = 0, at = 0; i < 5; at += lengths[i++])
    runs.push_back({stored_keys.data() + at * key_size * element, stored_values.data() + at * value_size * element,
                    lengths[i], at, i == 2 ? 1.5F : 0.0F});
  for (std::size_t r = 0; r < rows; ++r) {
    const float* const k = keys.data() + r * key_size;
    const float* const v = values.data() + r * value_size;
    exact_rows.push_back({{k, k + key_size}, {v, v + value_size}, r >= 65 && r < 85 ? 1.5 : 0.0});
  }

  headwise::attention_params params{1.0F, softcap};
  std::vector<float> scratch(kernels.scratch_floats(count, key_size, value_size));
  std::vector<float> maximum(count);
  std::vector<float> sum(count);
  std::vector<float> out(count * value_size);
  const kernel::softmax_rows state{maximum.data(), sum.data(), out.data()};
  kernel::clear(state, count, value_size);
  const kernel::query_block block{queries.data(), count, group, key_size, value_size, &params, sees.data()};
  kernels.attend(type, runs.data(), runs.size(), 0, block, scratch.data(), state, nullptr);
  for (std::size_t q = 0; q < count; ++q) {
    const key_range& range = sees[q / group];
    const auto at = [&](std::size_t row) { return exact_rows.begin() + static_cast<std::ptrdiff_t>(row); };
    const float* const query = queries.data() + q * key_size;
    const reference::vector exact = reference::attention({query, query + key_size}, {at(range.begin), at(range.end)},
                                                         {1.0, static_cast<double>(softcap)}, value_size);
    for (std::size_t i = 0; i < value_size; ++i)
      expect(std::fabs(static_cast<double>(out[q * value_size + i] / sum[q]) - exact[i]) < 2e-5, "attend", key_size,
             count, i);
  }
}

/// Two rows whose logits are as far apart as floats can be, or one that underflows beside the other; in one block and
/// in two.
void extremes(std::size_t count) {
  const kernel::functions& kernels = kernel::fastest();
  for (const float logit : {3e38F, 1e30F, 1000.0F, 88.0F})
    for (const float first : {1.0F, -1.0F})
      for (const float second : {1.0F, -1.0F})
        for (const std::size_t at : {1U, 64U}) {
          float keys[2][8] = {{first * 1e8F}, {second * 1e8F}};
          float values[2][8];
          for (std::size_t i = 0; i < 8; ++i) values[0][i] = 1.0F, values[1][i] = 3.0F;
          std::vector<float> queries(count * 8, 0.0F);
          for (std::size_t q = 0; q < count; ++q) queries[q * 8] = logit / 1e8F;
          const std::vector<key_range> sees(count, key_range{0, 1000});
          const auto bytes = [](const float* floats) { return reinterpret_cast<const std::byte*>(floats); };
          const kernel::row_block runs[] = {{bytes(keys[0]), bytes(values[0]), 1, 0, 0.0F},
                                            {bytes(keys[1]), bytes(values[1]), 1, at, 0.0F}};
          const headwise::attention_params params{1.0F, 0.0F};
          std::vector<float> scratch(kernels.scratch_floats(count, 8, 8));
          std::vector<float> maximum(count);
          std::vector<float> sum(count);
          std::vector<float> out(count * 8);
          const kernel::softmax_rows state{maximum.data(), sum.data(), out.data()};
          kernel::clear(state, count, 8);
          const kernel::query_block block{queries.data(), count, 1, 8, 8, &params, sees.data()};
          kernels.attend(element_type::f32, runs, 2, 0, block, scratch.data(), state, nullptr);
          const std::uint32_t expected = bits_of(first > second ? 1.0F : (first < second ? 3.0F : 2.0F));
          for (std::size_t i = 0; i < out.size(); ++i)  // bits: with -Ofast a NaN may compare as anything
            expect(bits_of(out[i] / sum[i / 8]) == expected, "extremes", count, at, i);
        }
}

void check() {
  std::printf("kernels: %s\n", kernel::fastest().name);
#if defined(__FAST_MATH__)
  constexpr bool has_nan = false;
#else
  constexpr bool has_nan = true;
#endif
  if (has_nan) conversions();
  products();
  for (const std::size_t count : {1U, 4U, 9U, 70U}) extremes(count);
  for (const element_type type : types) {
    for (const std::size_t size : {8U, 16U, 24U, 40U, 64U, 80U, 128U})
      for (const std::size_t count : {1U, 3U, 4U, 9U}) attention(type, size, size, count, 1, 0.0F, false);
    attention(type, 72, 8, 2, 3, 0.0F, false);
    attention(type, 8, 64, 13, 5, 0.0F, true);
    attention(type, 32, 32, 70, 2, 0.0F, false);
    attention(type, 32, 24, 1, 7, 3.0F, false);
    attention(type, 32, 24, 20, 1, 3.0F, true);
  }
}

}  // namespace

int main(int arguments, char** argument) {
  if (arguments != 2) return 2;
  if (std::strcmp(argument[1], "each") == 0) {  // of the sets that are built and that the processor has
    kernel::choose(0);
    check();
    for (int bit = 0; bit < 62; ++bit) {
      kernel::choose(std::int64_t{1} << bit);
      if (std::strcmp(kernel::fastest().name, "reference") != 0) check();
    }
  } else {
    expect(std::strcmp(kernel::fastest().name, argument[1]) == 0, "name of the set");
    check();
  }
  if (failures != 0) std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
