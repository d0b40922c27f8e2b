// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/core/error.hpp"

namespace headwise {

// A saved cache names the policies that made it, since what one has folded another cannot go on with. A policy says who
// it is by two optional members; without them everything works but saving.
//   | Expression     | Returns            | Meaning                                                         | May throw |
//   | p.name()       | const char*        | what files call it: one name for one behaviour, for ever        | no        |
//   | p.parameters() | a range of numbers | all that its answers depend on besides; may be absent where P   | yes       |
//   |                | (or of texts)      | has no data members                                             |           |
// Formats have name() anyway. A compensation also says how its summary is saved (policy/compensation.hpp). Variants
// speak for the member that was chosen, so a file does not tell a variant from its member.

namespace detail {

template <class P, class = void>
struct has_name : std::false_type {};
template <class P>
struct has_name<P, std::void_t<decltype(static_cast<const char*>(std::declval<const P&>().name()))>> : std::true_type {
};

template <class P, class = void>
struct has_parameters : std::false_type {};
template <class P>
struct has_parameters<P, std::void_t<decltype(std::declval<const P&>().parameters().begin())>> : std::true_type {};

/// A type with data members and no parameters() might hide that two of its values differ.
template <class P>
inline constexpr bool has_identity = has_name<P>::value && (has_parameters<P>::value || std::is_empty_v<P>);

template <class Policy>
std::vector<std::string> parameter_texts(const Policy& policy) {
  std::vector<std::string> texts;
  if constexpr (has_parameters<Policy>::value)
    for (const auto& parameter : policy.parameters()) texts.push_back(join(parameter));
  return texts;
}

/// "razor(4000, 5)" or "mean": what a file holds and a message shows. Numbers are the shortest text that reads back to
/// the same, so equal texts mean equal policies.
template <class Policy>
std::string identity(const Policy& policy) {
  std::string text = policy.name();
  const char* before = "(";
  for (const std::string& parameter : parameter_texts(policy)) {
    text += before + parameter;
    before = ", ";
  }
  return *before == '(' ? text : text + ")";
}

}  // namespace detail
}  // namespace headwise
