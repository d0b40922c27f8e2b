// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/store/row_sums.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// How much a summary weighs for one query: it enters the softmax as a row with logit capped(mean_logit) + log_mass.
/// The two are apart because a model's softcap applies to the first alone (method: ln D is added after scaling).
struct summary_logit {
  float mean_logit = 0.0F;
  float log_mass = 0.0F;
};

/// What is certain of the folded rows' own attention for one query.
struct folded_bounds {
  double least_log_mass = 0.0;  ///< log of sum e^logit, the capped logits of the folded rows
  double most_log_mass = 0.0;
  double longest_value = 0x1p500;  ///< none of their values, hence no mean of them, has a larger Euclidean norm
};

// A compensation decides what stands for the folded rows of a head: it owns a summary type, folds rows into a summary,
// and answers queries from it. Keys are post-RoPE. It is a small value; the summary is a regular value too.
//   | Expression                           | Returns       | Meaning                                      | May throw |
//   | C::summary                           | type          | copyable; one per head, made at first need   |           |
//   | c.make_summary(key_size, value_size) | C::summary    | of no rows                                   | yes       |
//   | c.fold(summary, key, value)          | void          | adds one row of float32; rows come in order  | no        |
//   |   or instead, for blocks of rows:    |               |                                              |           |
//   | c.fold(summary, keys, values, rows)  | void          | adds rows side by side: [rows x key_size]    | no        |
//   |                                      |               | and [rows x value_size]                      |           |
//   |   and beside it, optional:           |               |                                              |           |
//   | c.fold_rows()                        | std::size_t   | rows come in whole blocks of so many (1 if   | no        |
//   |                                      |               | absent; always the same), counted from the   |           |
//   |                                      |               | first folded row; those of a block that is   |           |
//   |                                      |               | not full yet are kept and attended exactly   |           |
//   | c.folded(summary)                    | std::size_t   | rows the summary stands for; the others that | no        |
//   |                                      |               | left the head count as dropped               |           |
//   | c.bytes(summary)                     | std::size_t   | memory of the summary                        | no        |
//   | c.evaluate(summary, query, params,   | summary_logit | the summary's weight, and the value it gives | no        |
//   |            value_out)                |               | for a query that is scaled already;          |           |
//   |                                      |               | called only when folded(summary) > 0         |           |
//   |   and optional, for certificates (attend/certificate.hpp; absent or none: nothing is known):    |           |
//   | c.bounds(summary, query, params,     | optional of   | what the folded rows' own attention can be   | no        |
//   |          least, most)                | folded_bounds | for a query that is scaled already; each     |           |
//   |                                      |               | element of its output lies in [least, most], |           |
//   |                                      |               | value_size doubles each                      |           |
//   | c.sums(summary)                      | const         | the sums of all folded rows, or none         | no        |
//   |                                      | row_sums*     |                                              |           |
//   |   and, so that caches can be saved, an identity (policy/identity.hpp) and:           |           |
//   | c.save(summary, sink)                | void          | writes the summary's exact bits to any sink  | yes       |
//   |                                      |               | (core/byte_stream.hpp)                       |           |
//   | c.load(summary, source)              | void          | reads them again from any source, to the     | yes       |
//   |                                      |               | last byte, into a summary of no rows that    |           |
//   |                                      |               | make_summary made; refuses what is none      |           |
// A file's summary is used only if folded(summary) is the number of rows that the file says has been folded. Its sums
// may well hold infinities and NaNs, since rows may. The result of folding must depend on the rows and their order
// alone: how many whole blocks come in one call must not change a bit.

/// The do-nothing member: rows that leave are dropped.
struct no_compensation {
  struct summary {};
  static summary make_summary(std::size_t, std::size_t) noexcept { return {}; }
  static void fold(summary&, const float*, const float*, std::size_t) noexcept {}
  static constexpr std::size_t folded(const summary&) noexcept { return 0; }
  static constexpr std::size_t bytes(const summary&) noexcept { return 0; }
  static summary_logit evaluate(const summary&, const float*, const attention_params&, float*) noexcept { return {}; }
  static constexpr const char* name() noexcept { return "none"; }
  template <class Sink>
  static void save(const summary&, Sink&) noexcept {}
  template <class Source>
  static void load(summary&, Source&) noexcept {}
};

}  // namespace HEADWISE_ISA
namespace detail {

template <class C, class = void>
struct folds_single_rows : std::false_type {};
template <class C>
struct folds_single_rows<
    C, std::void_t<decltype(std::declval<const C&>().fold(std::declval<typename C::summary&>(),
                                                          std::declval<const float*>(), std::declval<const float*>()))>>
    : std::true_type {};

template <class C, class = void>
struct folds_blocks : std::false_type {};
template <class C>
struct folds_blocks<C, std::void_t<decltype(std::declval<const C&>().fold(
                           std::declval<typename C::summary&>(), std::declval<const float*>(),
                           std::declval<const float*>(), std::size_t{}))>> : std::true_type {};

template <class C, class = void>
struct names_fold_rows : std::false_type {};
template <class C>
struct names_fold_rows<C, std::void_t<decltype(static_cast<std::size_t>(std::declval<const C&>().fold_rows()))>>
    : std::true_type {};

template <class C, class = void>
struct is_compensation : std::false_type {};

template <class C>
struct is_compensation<
    C,
    std::void_t<
        typename C::summary,
        decltype(typename C::summary(std::declval<const C&>().make_summary(std::size_t{}, std::size_t{}))),
        decltype(static_cast<std::size_t>(std::declval<const C&>().folded(std::declval<const typename C::summary&>()))),
        decltype(static_cast<std::size_t>(std::declval<const C&>().bytes(std::declval<const typename C::summary&>()))),
        // convertible, not constructible: in C++20 a plain float constructs one too
        std::enable_if_t<
            std::is_convertible_v<decltype(std::declval<const C&>().evaluate(
                                      std::declval<const typename C::summary&>(), std::declval<const float*>(),
                                      std::declval<const attention_params&>(), std::declval<float*>())),
                                  summary_logit>>>>
    : std::conjunction<
          std::disjunction<folds_blocks<C>, std::conjunction<folds_single_rows<C>, std::negation<names_fold_rows<C>>>>,
          std::is_copy_constructible<C>, std::is_copy_assignable<C>, std::is_copy_constructible<typename C::summary>,
          std::is_copy_assignable<typename C::summary>> {};

template <class C>
constexpr void require_compensation() {
  static_assert(is_compensation<C>::value,
                "headwise: a compensation needs a copyable summary type and the const members make_summary, fold "
                "(of a row or, where it has fold_rows, of a block of rows), folded, bytes and evaluate of the table in "
                "policy/compensation.hpp");
}

template <class C, class = void>
struct saves_summaries : std::false_type {};
template <class C>
struct saves_summaries<C, std::void_t<decltype(std::declval<const C&>().save(std::declval<const typename C::summary&>(),
                                                                             std::declval<some_sink&>())),
                                      decltype(std::declval<const C&>().load(std::declval<typename C::summary&>(),
                                                                             std::declval<some_source&>()))>>
    : std::true_type {};

template <class C>
constexpr void require_saveable_compensation() {
  static_assert(has_identity<C>,
                "headwise: a cache can be saved only if its compensation says who it is: name() and, unless it has no "
                "data members, parameters() (policy/identity.hpp)");
  static_assert(saves_summaries<C>::value,
                "headwise: a cache can be saved only if its compensation has save(summary, sink) and load(summary, "
                "source) for any byte sink and source (policy/compensation.hpp)");
}

template <class C, class = void>
struct has_bounds : std::false_type {};
template <class C>
struct has_bounds<C, std::void_t<decltype(std::optional<folded_bounds>(std::declval<const C&>().bounds(
                         std::declval<const typename C::summary&>(), std::declval<const float*>(),
                         std::declval<const attention_params&>(), std::declval<double*>(), std::declval<double*>())))>>
    : std::true_type {};

template <class C, class = void>
struct has_sums : std::false_type {};
template <class C>
struct has_sums<C, std::void_t<decltype(static_cast<const row_sums*>(
                       std::declval<const C&>().sums(std::declval<const typename C::summary&>())))>> : std::true_type {
};

template <class C>
std::optional<folded_bounds> bounds_of(const C& compensation, const typename C::summary& summary, const float* query,
                                       const attention_params& params, double* least, double* most) noexcept {
  if constexpr (has_bounds<C>::value) {
    return compensation.bounds(summary, query, params, least, most);
  } else {
    static_cast<void>(compensation), static_cast<void>(summary), static_cast<void>(query), static_cast<void>(params);
    static_cast<void>(least), static_cast<void>(most);
    return std::nullopt;
  }
}

template <class C>
const row_sums* sums_of(const C& compensation, const typename C::summary& summary) noexcept {
  if constexpr (has_sums<C>::value) {
    return compensation.sums(summary);
  } else {
    static_cast<void>(compensation), static_cast<void>(summary);
    return nullptr;
  }
}

/// Rows of a block, at least 1.
template <class C>
std::size_t fold_rows(const C& compensation) noexcept {
  if constexpr (names_fold_rows<C>::value) {
    const auto rows = static_cast<std::size_t>(compensation.fold_rows());
    return rows != 0 ? rows : 1;
  } else {
    static_cast<void>(compensation);
    return 1;
  }
}

/// Folds whole blocks of rows, whichever way the compensation takes them.
template <class C>
void fold_into(const C& compensation, typename C::summary& summary, const float* keys, std::size_t key_size,
               const float* values, std::size_t value_size, std::size_t rows) noexcept {
  if constexpr (folds_blocks<C>::value) {
    static_cast<void>(key_size), static_cast<void>(value_size);
    compensation.fold(summary, keys, values, rows);
  } else {
    for (std::size_t row = 0; row < rows; ++row)
      compensation.fold(summary, keys + row * key_size, values + row * value_size);
  }
}

}  // namespace detail
}  // namespace headwise
