// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

#include "headwise/core/token_view.hpp"

namespace headwise {

// A format says how the elements of key and value rows are stored. It is a small value.
//   | Expression                    | Returns     | Meaning                                          | May throw |
//   | f.name()                      | const char* | what files and tables call it: f32, f16, ...     | no        |
//   | f.bytes(count)                | std::size_t | bytes of `count` adjacent elements               | no        |
//   | f.encode(floats, rows, count) | void        | stores `count` float32 from `floats` at `rows`   | no        |
//   | f.decode(rows, floats, count) | void        | the inverse; the block of rows of a page at once | no        |
//   | f.type()                      | element_type| optional (may be std::optional): rows are plain  | no        |
//   |                               |             | elements of this type, and kernels read them     |           |
//   |                               |             | as they are instead of calling decode            |           |
// decode(encode(x)) is within the format's rounding of x; encode(decode(y)) gives y's bits again.
// The do-nothing member is float32.

namespace detail {

template <class F, class = void>
struct is_format : std::false_type {};

template <class F>
struct is_format<F, std::void_t<decltype(static_cast<const char*>(std::declval<const F&>().name())),
                                decltype(static_cast<std::size_t>(std::declval<const F&>().bytes(std::size_t{}))),
                                decltype(std::declval<const F&>().encode(std::declval<const float*>(),
                                                                         std::declval<std::byte*>(), std::size_t{})),
                                decltype(std::declval<const F&>().decode(std::declval<const std::byte*>(),
                                                                         std::declval<float*>(), std::size_t{}))>>
    : std::is_copy_assignable<F> {};

/// The element type of a format's rows, if kernels can read them as they are.
template <class F>
auto type_of(const F& format) noexcept -> decltype(std::optional<element_type>(format.type())) {
  return format.type();
}
template <class F, class... None>
std::optional<element_type> type_of(const F&, const None&...) noexcept {
  return std::nullopt;
}

template <class F>
constexpr void require_format() {
  static_assert(is_format<F>::value,
                "headwise: a format needs name(), bytes(count), encode(const float*, std::byte*, count) and "
                "decode(const std::byte*, float*, count), all const, and must be copyable (element/format.hpp)");
}

}  // namespace detail
}  // namespace headwise
