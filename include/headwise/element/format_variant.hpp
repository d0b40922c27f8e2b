// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <variant>

#include "headwise/config.hpp"
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/element/format.hpp"
#include "headwise/fwd.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// A format chosen at run time; itself a format. Branches once per block of rows.
template <class... Formats>
class format_variant {
 public:
  template <class Format>
  format_variant(Format format) : format_(format) {}  // NOLINT: a format is what it converts from

  const char* name() const noexcept {
    return std::visit([](const auto& f) { return f.name(); }, format_);
  }
  std::optional<element_type> type() const noexcept {
    return std::visit([](const auto& f) { return detail::type_of(f); }, format_);
  }
  std::size_t bytes(std::size_t count) const noexcept {
    return std::visit([&](const auto& f) { return f.bytes(count); }, format_);
  }
  void encode(const float* floats, std::byte* rows, std::size_t count) const noexcept {
    std::visit([&](const auto& f) { f.encode(floats, rows, count); }, format_);
  }
  void decode(const std::byte* rows, float* floats, std::size_t count) const noexcept {
    std::visit([&](const auto& f) { f.decode(rows, floats, count); }, format_);
  }

 private:
  std::variant<Formats...> format_;
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
