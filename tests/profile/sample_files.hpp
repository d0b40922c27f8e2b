// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "headwise/profile/plan_file.hpp"
#include "headwise/profile/profile_file.hpp"
#include "support/temporary_folder.hpp"

// A small profile and a small plan, as text and as what they say, so that both kinds of file meet the same damage.

namespace headwise::test {

inline const model_shape sample_shape{2, 4, 2, 16, 8};

inline head_scores sample_scores() {
  head_scores scores(sample_shape);
  scores.add("echo", {0.25, 1, 0, 0.001515, 0.5, 0.125, 1e-9, 0.75});
  scores.add("induction", {0.5, 0, 1, -0.25, 3, 0.1, 0.2, 0.3});
  return scores;
}
inline plan_file sample_plan() {
  plan_file file{head_plan(sample_shape, head_role::local, 6), {700, 9}};
  file.plan.set({0, 1}, head_role::retrieval);
  file.plan.set({1, 0}, head_role::retrieval);
  return file;
}

inline const std::string sample_profile_text =
    "# headwise profile 1\n"
    "# layers: 2\n# query_heads: 4\n# kv_heads: 2\n# head_dim: 16\n# value_dim: 8\n# model: tiny\n"
    "layer\tkv_head\tquery_head\techo\tinduction\n"
    "0\t0\t0\t0.25\t0.5\n"
    "0\t0\t1\t1\t0\n"
    "0\t1\t2\t0\t1\n"
    "0\t1\t3\t0.001515\t-0.25\n"
    "1\t0\t0\t0.5\t3\n"
    "1\t0\t1\t0.125\t0.1\n"
    "1\t1\t2\t1e-09\t0.2\n"
    "1\t1\t3\t0.75\t0.3\n";
inline const std::string sample_plan_text =
    "# headwise plan 1\n"
    "# layers: 2\n# query_heads: 4\n# kv_heads: 2\n# head_dim: 16\n# value_dim: 8\n"
    "# sinks: 6\n# min_recent: 700\n# divisor: 9\n# model: tiny\n# seed: 1\n"
    "layer\tkv_head\trole\n"
    "0\t0\tlocal\n"
    "0\t1\tretrieval\n"
    "1\t0\tretrieval\n"
    "1\t1\tlocal\n";

inline bool same(const head_scores& a, const head_scores& b) {
  if (a.shape() != b.shape() || a.names() != b.names()) return false;
  for (std::size_t layer = 0; layer < a.shape().layers; ++layer)
    if (a.window(layer) != b.window(layer)) return false;
  for (const std::string& name : a.names())
    for (std::size_t layer = 0; layer < a.shape().layers; ++layer)
      for (std::size_t head = 0; head < a.shape().query_heads; ++head) {
        const double x = a.at(name, layer, head), y = b.at(name, layer, head);
        if (std::memcmp(&x, &y, sizeof x) != 0) return false;  // the bits: -0 is not 0
      }
  return true;
}
inline bool same(const plan_file& a, const plan_file& b) {
  return a.plan == b.plan && a.budget.min_recent == b.budget.min_recent && a.budget.divisor == b.budget.divisor;
}

/// What both kinds of file have in common.
struct profile_kind {
  static constexpr const char* name = "profile";
  static constexpr std::size_t rows = 8;
  static const std::string& text() { return sample_profile_text; }
  static auto sample() { return sample_scores(); }
  static auto read(const std::string& path, const model_shape* expected = nullptr) {
    return read_profile(path, expected);
  }
  static auto parse(const std::string& path, const std::string& text, const model_shape* expected) {
    return headwise::detail::parse_profile(path, text, expected);
  }
  static void write(const std::string& path, const metadata& more = {}) { write_profile(path, sample_scores(), more); }
  static const model_shape& shape(const head_scores& of) { return of.shape(); }
};
struct plan_kind {
  static constexpr const char* name = "plan";
  static constexpr std::size_t rows = 4;
  static const std::string& text() { return sample_plan_text; }
  static auto sample() { return sample_plan(); }
  static auto read(const std::string& path, const model_shape* expected = nullptr) { return read_plan(path, expected); }
  static auto parse(const std::string& path, const std::string& text, const model_shape* expected) {
    return headwise::detail::parse_plan(path, text, expected);
  }
  static void write(const std::string& path, const metadata& more = {}) { write_plan(path, sample_plan(), more); }
  static const model_shape& shape(const plan_file& of) { return of.plan.shape(); }
};

/// `text` with the first `from` replaced by `to`.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t place = text.find(from);
  if (place == std::string::npos) {
    ADD_FAILURE() << "no '" << from << "' in the sample";
    return text;
  }
  return text.replace(place, from.size(), to);
}

}  // namespace headwise::test
