// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/attend/attend_schedule.hpp"
#include "headwise/attend/kept_attention.hpp"
#include "headwise/attend/mask.hpp"
#include "headwise/config.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/key_range.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/core/token_view.hpp"
#include "headwise/element/bits.hpp"
#include "headwise/kernel/kernel.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/element_ranges.hpp"
#include "headwise/store/run.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

// A certificate reads what attend reads (attend/attend_schedule.hpp), and besides:
//   | Expression                          | Returns        | Meaning                                                 |
//   | head.dropped()                      | std::size_t    | rows that left and that nothing stands for              |
//   | head.compensation(), head.summary() | a compensation | what bounds the folded rows, where folded() > 0: bounds |
//   |                                     | and its summary| of policy/compensation.hpp                              |

/// The certificates of one KV head's queries.
template <class Head>
class head_certificate {
 public:
  /// `params` with the scale of the model.
  head_certificate(const Head& head, const model_shape& shape, const attention_params& params)
      : head_(head),
        params_(params),
        key_size_(shape.key_size()),
        kept_values_(shape.value_size()),
        value_(shape.value_size()),
        least_(shape.value_size()),
        most_(shape.value_size()) {}

  /// A query, scaled already, that sees `sees`: its bound goes to `bound`, maybe only at certify().
  void add(std::vector<float> query, const key_range& sees, std::optional<double>& bound) {
    bound.reset();
    if (sees.begin >= head_.kept_from())
      bound = 0.0;  // it sees nothing that has left
    else if (sees.begin == 0 && sees.end >= head_.kept_from() && head_.dropped() == 0 &&
             all_finite(query.data(), query.size()))
      asked_.push_back({kept_attention(std::move(query), value_.size()), sees, &bound});
  }

  void certify() {
    if (asked_.empty() || !attend_to_kept_rows()) return;
    for (const asked& one : asked_) *one.bound = bound_of(one.kept);
  }

 private:
  struct asked {
    kept_attention kept;
    key_range sees;
    std::optional<double>* bound;
  };

  static bool all_finite(const float* numbers, std::size_t count) noexcept {
    bool all = true;
    for (std::size_t i = 0; i < count; ++i) all = all && detail::is_finite(numbers[i]);
    return all;
  }

  /// False where a row holds an infinity or a NaN.
  bool attend_to_kept_rows() {
    const kernel::functions& kernels = kernel::fastest();
    std::vector<float> keys, values;
    for (std::size_t i = 0; i < head_.runs(); ++i) {
      const run rows = head_.run_at(i);
      keys.resize(rows.rows * key_size_);
      values.resize(rows.rows * value_.size());
      kernel::decode(kernels, head_.format(), rows.keys, keys.data(), keys.size());
      kernel::decode(kernels, head_.format(), rows.values, values.data(), values.size());
      kept_values_.add(values.data(), rows.rows);
      if (!all_finite(keys.data(), keys.size())) return false;
      for (asked& one : asked_) {
        const key_range seen = one.sees.within(rows.position, rows.rows);
        for (std::size_t row = seen.begin; row < seen.end; ++row)
          one.kept.add(keys.data() + row * key_size_, values.data() + row * value_.size(), rows.bias, params_);
      }
    }
    return head_.runs() == 0 || kept_values_.finite();
  }

  std::optional<double> bound_of(const kept_attention& kept) {
    const summary_logit weight = head_.evaluate(kept.query(), params_, value_.data());
    const auto folded =
        detail::bounds_of(head_.compensation(), head_.summary(), kept.query(), params_, least_.data(), most_.data());
    if (!folded || !all_finite(value_.data(), value_.size()) || !detail::is_finite(weight.mean_logit) ||
        !detail::is_finite(weight.log_mass))
      return std::nullopt;
    double diagonal = 0.0;
    double reach = 0.0;
    for (std::size_t i = 0; i < value_.size(); ++i) {
      double low = (std::min)(static_cast<double>(value_[i]), least_[i]);
      double high = (std::max)(static_cast<double>(value_[i]), most_[i]);
      if (head_.runs() != 0) {
        low = (std::min)(low, kept_values_.least(i));
        high = (std::max)(high, kept_values_.largest(i));
      }
      diagonal += square(high - low);
      reach += (std::max)(square(low), square(high));
    }
    diagonal = std::sqrt(diagonal);
    reach = std::sqrt(reach);

    // Rounding can have changed the log of a kept row's weight by x: so those of the shares, and the output of the kept
    // rows by 4 x the diagonal, or by all of it.
    const double x = kept.rounding();
    const double log_kept = kept.log_mass();
    const double log_summary =
        params_.capped(static_cast<double>(weight.mean_logit)) + static_cast<double>(weight.log_mass);
    double bound = 0.0;
    for (const double ours : {share(log_summary, log_kept + x), share(log_summary, log_kept - x)})
      for (const double full :
           {share(folded->least_log_mass, log_kept + x), share(folded->most_log_mass, log_kept - x)})
        bound = (std::max)(
            bound, farthest(kept, ours, full, folded->longest_value) +
                       2.0 * reach * (std::fabs(ours - full) * (std::min)(4.0 * x, 1.0) + (ours + full) * 0x1p-50));
    return (std::min)(bound, diagonal) * (1.0 + 0x1p-40);
  }

  /// The largest distance where the full cache gives the folded rows the share `full`: |c - full o_f|, whose square is
  /// |c|^2 - 2 full c.o_f + full^2 |o_f|^2. By the ends of each element, or by the longest o_f and the least c.o_f.
  double farthest(const kept_attention& kept, double ours, double full, double longest) const noexcept {
    double by_elements = 0.0;
    double by_length = square(full * longest);
    double magnitude = by_length;
    for (std::size_t i = 0; i < value_.size(); ++i) {
      const auto value = static_cast<double>(value_[i]);
      const double shift = (ours - full) * (value - kept.out(i));
      by_elements += (std::max)(square(shift - full * (least_[i] - value)), square(shift - full * (most_[i] - value)));
      const double c = shift + full * value;
      by_length += square(c) - 2.0 * full * (std::min)(c * least_[i], c * most_[i]);
      magnitude += square(c) + 2.0 * full * std::fabs(c) * (std::max)(std::fabs(least_[i]), std::fabs(most_[i]));
    }
    by_length += static_cast<double>(value_.size() + 16) * 0x1p-52 * magnitude;  // what may have been rounded
    return std::sqrt((std::min)(by_elements, (std::max)(by_length, 0.0)));
  }

  static double square(double x) noexcept { return x * x; }
  /// a / (a + b), from their logs.
  static double share(double log_a, double log_b) noexcept {
    return 1.0 / (1.0 + std::exp((std::min)((std::max)(log_b - log_a, -700.0), 700.0)));
  }

  const Head& head_;
  attention_params params_;
  std::size_t key_size_;
  element_ranges kept_values_;
  std::vector<float> value_;  // what the summary gives for a query
  std::vector<double> least_;
  std::vector<double> most_;
  std::vector<asked> asked_;
};

/// How far the output of each query and query head can be from what a cache of every row, in the same format, would
/// have given: bounds on the Euclidean distance, [tokens, query_heads], from what is stored. Arguments as for attend().
/// 0 where the query sees every row that there was. None where nothing is known: rows were dropped, or the
/// compensation has no bounds (bounded_compensation has), or a row is no finite number, or attend would refuse the
/// query.
///
/// With o_k and L the output and the mass of the kept rows, o_f and A those of the folded rows had they stayed, v and b
/// the value and the mass of the summary, r = b / (L + b) and p = A / (L + A):
///   ours - full = (r - p) (v - o_k) - p (o_f - v).
/// A and each element of o_f lie between the summary's bounds, and o_f is no longer than its longest value; the
/// distance is convex in r, in p and in each element, so it is largest at an end of each. It never exceeds the diagonal
/// of the box around the kept values, v, and the bounds of o_f. Rounded outward. What it bounds is the difference in
/// exact arithmetic, for queries scaled in float32 as attend scales them and for what the summary says; attend's own
/// rounding comes on top, with and without compression.
///
/// Computed in float64 by plain loops: a check, no part of inference.
/// Refuses wrong shapes and more queries than tokens.
template <class Cache, class Mask = causal>
std::vector<std::optional<double>> certificate(const Cache& cache, std::size_t layer, const token_view& q,
                                               const attention_params& params = {}, const Mask& mask = {}) {
  detail::require_mask<Mask>();
  check(params);
  const model_shape shape = cache.shape();
  if (layer >= shape.layers) detail::fail("certificate: no layer ", layer, " in a model of ", to_string(shape));
  detail::check_view(q, "certificate: queries", shape.query_heads, shape.key_size());
  const std::size_t length = cache.head(layer, 0).length();
  if (q.tokens > length) detail::fail("certificate: ", q.tokens, " queries, the layer has ", length, " tokens");
  attention_params own = params;
  own.scale = params.scale_for(shape.key_size());
  if (params.first_position == attention_params::newest) own.first_position = length - q.tokens;
  if (own.first_position > length - q.tokens)
    detail::fail("certificate: ", q.tokens, " queries from position ", own.first_position, " on, the layer has ",
                 length, " tokens");

  std::vector<std::optional<double>> bounds(q.tokens * shape.query_heads);
  std::vector<float> query(shape.key_size());
  const std::size_t window = detail::window_of(cache, layer);
  for (std::size_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    const auto& head = cache.head(layer, kv_head);
    head_certificate<std::decay_t<decltype(head)>> certificates(head, shape, own);
    for (std::size_t token = 0; token < q.tokens; ++token)
      for (std::size_t i = kv_head * shape.group(); i < (kv_head + 1) * shape.group(); ++i) {
        kernel::read_row(kernel::fastest(), q, token, i, query.data());
        for (float& x : query) x *= own.scale;
        certificates.add(query, detail::keys_seen(mask, own.first_position + token, window),
                         bounds[token * shape.query_heads + i]);
      }
    certificates.certify();
  }
  return bounds;
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
