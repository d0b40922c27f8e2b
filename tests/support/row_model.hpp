// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "headwise/core/attention_params.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/policy/when_to_compress.hpp"
#include "support/tokens.hpp"

namespace headwise::test {

/// What a cache should hold and answer, in the words of the method: per head a plain list of all rows ever appended and
/// what became of each, and attention written down as the equations say, in double. Slow and obvious; nothing is shared
/// with the library but the input types.
class row_model {
 public:
  enum class summary { none, mean, moment };
  enum class fate : std::uint8_t { kept, folded, dropped };
  using budget = std::function<std::size_t(head_id, std::size_t)>;

  struct head_list {
    std::vector<float> keys, values;                // rows side by side, as the format gives them back
    std::vector<std::byte> key_bytes, value_bytes;  // and as it stores them
    std::vector<fate> fates;
    std::vector<std::size_t> folded;  // positions, in the order in which they were folded
    std::size_t recent_from = 0;      // rows from here on are kept, until the window lets them go in order
    std::size_t promised_from = 0;    // of those that it let go, the rollback reserve has the ones from here on
    std::size_t before = 0;           // recent_from before the last append
    std::size_t list_length = 0;      // tokens there were at the last retain
    std::size_t list_from = 0;        // and recent_from after it

    std::size_t length() const { return fates.size(); }
    std::size_t kept() const { return static_cast<std::size_t>(std::count(fates.begin(), fates.end(), fate::kept)); }
    /// How many rows from the first on are all kept.
    std::size_t unbroken() const {
      std::size_t rows = 0;
      while (rows < length() && fates[rows] == fate::kept) ++rows;
      return rows;
    }
  };

  row_model(head_plan plan, budget recent, summary kind, when_to_compress when, std::size_t reserve = 0)
      : plan_(std::move(plan)),
        budget_(std::move(recent)),
        kind_(kind),
        when_(when),
        reserve_(reserve),
        heads_(plan_.shape().heads()),
        layers_(plan_.shape().layers) {
    for (layer_state& layer : layers_) layer.rolling = when == when_to_compress::every_append;
  }

  const head_plan& plan() const { return plan_; }
  summary kind() const { return kind_; }
  std::size_t reserve() const { return reserve_; }
  const head_list& head(head_id id) const { return heads_[id.layer * plan_.shape().kv_heads + id.kv_head]; }
  std::size_t length(std::size_t layer) const { return head({layer, 0}).length(); }
  std::size_t length() const {
    std::size_t shortest = length(0);
    for (std::size_t layer = 1; layer < layers_.size(); ++layer) shortest = std::min(shortest, length(layer));
    return shortest;
  }
  std::size_t rows_left() const {
    std::size_t left = 0;
    for (const head_list& of : heads_) left += of.length() - of.kept();
    return left;
  }
  /// Rows that leave together.
  std::size_t block(head_id id) const {
    return kind_ == summary::moment && plan_.role(id) != head_role::windowed ? 16 : 1;
  }

  template <class Format>
  void append(std::size_t layer, const tokens& rows, std::size_t first, std::size_t n, const Format& format) {
    const model_shape& shape = plan_.shape();
    const std::size_t old_length = length(layer);
    if (n > 1) let_go(layer, old_length, layers_[layer].rolling);
    for (std::size_t i = 0; i < shape.kv_heads; ++i) {
      head_list& of = list({layer, i});
      of.before = of.recent_from;
      for (std::size_t row = first * shape.kv_heads + i; row < (first + n) * shape.kv_heads; row += shape.kv_heads) {
        store(rows.k.data() + row * shape.key_size(), shape.key_size(), format, of.keys, of.key_bytes);
        store(rows.v.data() + row * shape.value_size(), shape.value_size(), format, of.values, of.value_bytes);
        of.fates.push_back(fate::kept);
      }
    }
    if (n == 1) let_go(layer, old_length + 1, layers_[layer].rolling);
    layers_[layer].before_length = old_length;
  }

  void compress(std::size_t layer) {
    let_go(layer, length(layer), true);
    layers_[layer].rolling = when_ != when_to_compress::frozen;
    layers_[layer].compressed_at = length(layer);
    layers_[layer].before_length.reset();
  }

  /// Of the rows kept now, those at other positions leave, in order.
  void retain(head_id id, const std::vector<std::size_t>& positions, bool folds) {
    head_list& of = list(id);
    for (std::size_t i = 0; i < of.length(); ++i)
      if (of.fates[i] == fate::kept && !std::binary_search(positions.begin(), positions.end(), i)) leave(of, i, folds);
    const std::size_t was = of.recent_from;
    of.recent_from = of.length();
    while (of.recent_from > was && of.fates[of.recent_from - 1] == fate::kept) --of.recent_from;
    of.list_length = of.length();
    of.list_from = of.promised_from = of.recent_from;
    layers_[id.layer].before_length.reset();
  }

  /// What truncate(length) must do: nothing at all, or what the method says, or one of the two.
  enum class answer { no, yes, either };
  answer truncates(std::size_t length) const {
    if (length > this->length()) return answer::no;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      for (std::size_t i = 0; i < plan_.shape().kv_heads && this->length(layer) != length; ++i)
        if (!places(length, {layer, i}).promised) return answer::either;
    return answer::yes;
  }

  /// Takes tokens back, to where the cache, which now keeps `kept(id)` rows of a head, went. The number of rows that
  /// had left and came back; none where the cache has done what is not right.
  template <class Kept>
  std::optional<std::size_t> truncate(std::size_t length, Kept&& kept) {
    std::size_t came_back = 0;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      if (this->length(layer) == length) continue;
      std::vector<std::size_t> chosen;
      for (std::size_t i = 0; i < plan_.shape().kv_heads; ++i) {
        const head_list& of = head({layer, i});
        for (const std::size_t place : places(length, {layer, i}).right)
          if (chosen.size() == i && kept_at(of, length, place) == kept(head_id{layer, i})) chosen.push_back(place);
        if (chosen.size() == i) return std::nullopt;
      }
      for (std::size_t i = 0; i < chosen.size(); ++i) came_back += go_back({layer, i}, length, chosen[i]);
      layers_[layer].before_length.reset();
      layers_[layer].compressed_at = std::min(layers_[layer].compressed_at, length);
      if (length == 0) layers_[layer].rolling = when_ == when_to_compress::every_append;
    }
    return came_back;
  }

  /// Whether none has left, but in layers that have the same window in the other plan: these stay as they are.
  bool can_change_to(const head_plan& plan) const {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer)
      for (std::size_t i = 0; !keeps_window(layer, plan) && i < plan_.shape().kv_heads; ++i)
        if (head({layer, i}).kept() != head({layer, i}).length()) return false;
    return true;
  }
  /// The same rows under other policies, if they can be changed.
  row_model with(head_plan plan, budget recent, summary kind) const {
    row_model other(std::move(plan), std::move(recent), kind, when_, reserve_);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      other.layers_[layer].rolling = layers_[layer].rolling;
      other.layers_[layer].compressed_at = layers_[layer].compressed_at;
      for (std::size_t i = 0; i < plan_.shape().kv_heads; ++i) {
        head_list& to = other.list({layer, i});
        to = head({layer, i});
        if (!keeps_window(layer, other.plan_)) to.recent_from = to.promised_from = to.list_length = to.list_from = 0;
      }
    }
    return other;
  }

  std::vector<std::size_t> kept_positions(head_id id) const {
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < head(id).length(); ++i)
      if (head(id).fates[i] == fate::kept) positions.push_back(i);
    return positions;
  }

  /// Attention of one query at `position`, read by query head `query_head`:
  /// softmax over s q.k of the kept rows up to there, those outside the model's window left out, and, for the D rows
  /// that were folded, one row of logit s q.k_hat + ln D (the softcap applies to the first alone).
  std::vector<double> attention(std::size_t layer, std::size_t query_head, std::size_t position, const float* query,
                                const attention_params& params = {}) const {
    const model_shape& shape = plan_.shape();
    const std::size_t key_size = shape.key_size(), value_size = shape.value_size();
    const head_list& of = head({layer, query_head / shape.group()});
    const double scale =
        params.scale != 0.0F ? static_cast<double>(params.scale) : 1.0 / std::sqrt(static_cast<double>(key_size));
    const double cap = static_cast<double>(params.softcap);
    const auto dot = [&](const auto* key) {
      double sum = 0.0;
      for (std::size_t j = 0; j < key_size; ++j) sum += static_cast<double>(query[j]) * static_cast<double>(key[j]);
      return scale * sum;
    };
    const auto capped = [&](double x) { return cap > 0.0 ? cap * std::tanh(x / cap) : x; };

    std::vector<double> logits, summary_value;
    std::vector<std::size_t> rows;
    const std::size_t window = plan_.window(layer);
    for (std::size_t i = window != 0 && position + 1 > window ? position + 1 - window : 0; i <= position; ++i)
      if (of.fates[i] == fate::kept) {
        logits.push_back(capped(dot(of.keys.data() + i * key_size)));
        rows.push_back(i);
      }
    if (!of.folded.empty()) {
      const auto count = static_cast<double>(of.folded.size());
      std::vector<double> key(key_size);
      summary_value.resize(value_size);
      for (const std::size_t i : of.folded) {
        for (std::size_t j = 0; j < key_size; ++j) key[j] += static_cast<double>(of.keys[i * key_size + j]) / count;
        for (std::size_t j = 0; j < value_size; ++j)
          summary_value[j] += static_cast<double>(of.values[i * value_size + j]) / count;
      }
      const double mean_logit = capped(dot(key.data()));
      if (kind_ == summary::moment) {  // v_hat + C_vk (s q), with the slope of the softcap
        const double slope = cap > 0.0 ? 1.0 - mean_logit / cap * (mean_logit / cap) : 1.0;
        const std::vector<double> mean_value = summary_value;
        for (const std::size_t i : of.folded) {
          const double along = dot(of.keys.data() + i * key_size) - dot(key.data());
          for (std::size_t j = 0; j < value_size; ++j)
            summary_value[j] +=
                slope * (static_cast<double>(of.values[i * value_size + j]) - mean_value[j]) * along / count;
        }
      }
      logits.push_back(mean_logit + std::log(count));
    }

    std::vector<double> out(value_size);
    if (logits.empty()) return out;  // nothing to see gives zeros
    const double largest = *std::max_element(logits.begin(), logits.end());
    double total = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double weight = std::exp(logits[i] - largest);
      total += weight;
      for (std::size_t j = 0; j < value_size; ++j)
        out[j] +=
            weight * (i < rows.size() ? static_cast<double>(of.values[rows[i] * value_size + j]) : summary_value[j]);
    }
    for (double& x : out) x /= total;
    return out;
  }

 private:
  struct layer_state {
    bool rolling = false;
    std::size_t compressed_at = 0;             // tokens there were at the last compress
    std::optional<std::size_t> before_length;  // and before the last append, if that was the last change
  };

  bool keeps_window(std::size_t layer, const head_plan& plan) const {
    return plan_.window(layer) != 0 && plan_.window(layer) == plan.window(layer);
  }
  head_list& list(head_id id) { return heads_[id.layer * plan_.shape().kv_heads + id.kv_head]; }

  template <class Format>
  static void store(const float* row, std::size_t size, const Format& format, std::vector<float>& numbers,
                    std::vector<std::byte>& bytes) {
    bytes.resize(bytes.size() + format.bytes(size));
    numbers.resize(numbers.size() + size);
    std::byte* const stored = bytes.data() + bytes.size() - format.bytes(size);
    format.encode(row, stored, size);
    format.decode(stored, numbers.data() + numbers.size() - size, size);
  }

  void leave(head_list& of, std::size_t row, bool folds) const {
    of.fates[row] = folds && kind_ != summary::none ? fate::folded : fate::dropped;
    if (of.fates[row] == fate::folded) of.folded.push_back(row);
  }

  std::size_t sinks(head_id id) const { return plan_.role(id) == head_role::windowed ? 0 : plan_.sinks(); }
  /// The first row that a window may let go, since the last list of rows to keep.
  std::size_t leaving_from(head_id id) const { return std::max(sinks(id), head(id).list_from); }

  /// Where the newest W of `seen` tokens begin - or up to a block less one row before, so that whole blocks leave.
  std::size_t window_from(head_id id, std::size_t seen) const {
    const std::size_t from = leaving_from(id);
    const std::size_t window =
        plan_.role(id) == head_role::windowed ? plan_.window(id.layer) : std::max<std::size_t>(1, budget_(id, seen));
    if (seen <= from || seen - from <= window) return from;
    return seen - window - (seen - window - from) % block(id);
  }

  /// Everything between the sinks and the newest W of `seen` tokens leaves the heads of a layer that have a window.
  void let_go(std::size_t layer, std::size_t seen, bool local_ones_too) {
    for (std::size_t i = 0; i < plan_.shape().kv_heads; ++i) {
      const head_id id{layer, i};
      const head_role role = plan_.role(id);
      if (role == head_role::retrieval || (role == head_role::local && !local_ones_too)) continue;
      head_list& of = list(id);
      const std::size_t first = std::max(sinks(id), of.recent_from), end = window_from(id, seen);
      for (std::size_t row = first; row < end; ++row) leave(of, row, role == head_role::local);
      if (first >= end) continue;
      of.recent_from = end;
      // The reserve holds the last r of them: whole blocks, none from before the last list.
      const std::size_t oldest = end > reserve_ ? end - reserve_ : 0, from = leaving_from(id);
      of.promised_from = std::max(of.promised_from, oldest > from ? oldest - (oldest - from) % block(id) : from);
    }
  }

  /// Where a head's recent rows may begin once it is back at `length` tokens: 0 where no row will have left.
  struct place_list {
    std::vector<std::size_t> right;
    bool promised = false;  // the last of them is within the reserve
  };
  place_list places(std::size_t length, head_id id) const {
    const layer_state& layer = layers_[id.layer];
    const head_list& of = head(id);
    const std::size_t now = of.recent_from;
    if (length <= of.unbroken()) return {{0}, true};

    if (length < of.list_length) {  // before a list, which is not known: only if all rows are there
      const bool all = of.unbroken() >= of.promised_from;
      return {{0}, all};
    }
    if (length < std::min(now, sinks(id))) return {{length}, of.promised_from <= sinks(id)};  // the window took none
    std::vector<std::size_t> best_first;
    const bool last_append = layer.before_length == length;
    if (last_append) best_first.push_back(of.before);  // as it was
    if (plan_.role(id) == head_role::retrieval ||
        (plan_.role(id) == head_role::local && !layer.rolling && length >= layer.compressed_at))
      best_first.push_back(now);
    else  // as it would be if they had come one by one
      best_first.push_back(std::min(now, window_from(id, length)));
    if (last_append && length == this->length()) best_first.push_back(now);  // the token that never arrived

    place_list found;
    for (std::size_t place : best_first) {
      if (found.promised) break;
      place = std::max(place, std::min(now, sinks(id)));
      if (place > length) continue;  // its rows are gone, and so is the place
      found.promised = place == now || place >= of.promised_from;
      found.right.push_back(place <= of.unbroken() ? 0 : place);
    }
    return found;
  }

  static bool comes_back(const head_list& of, std::size_t row, std::size_t place) {
    return row >= place && of.fates[row] != fate::kept;
  }
  static std::size_t kept_at(const head_list& of, std::size_t length, std::size_t place) {
    std::size_t kept = 0;
    for (std::size_t row = 0; row < length; ++row) kept += of.fates[row] == fate::kept || comes_back(of, row, place);
    return kept;
  }
  std::size_t go_back(head_id id, std::size_t length, std::size_t place) {
    head_list& of = list(id);
    of.keys.resize(length * plan_.shape().key_size());
    of.values.resize(length * plan_.shape().value_size());
    of.key_bytes.resize(of.key_bytes.size() / of.length() * length);
    of.value_bytes.resize(of.value_bytes.size() / of.length() * length);
    of.fates.resize(length);
    std::size_t came_back = 0;
    for (std::size_t row = 0; row < length; ++row)
      if (comes_back(of, row, place)) {
        of.fates[row] = fate::kept;
        ++came_back;
      }
    const auto is_back = [&](std::size_t row) { return row >= place; };
    of.folded.erase(std::remove_if(of.folded.begin(), of.folded.end(), is_back), of.folded.end());
    of.recent_from = place;
    if (place == 0) of.promised_from = of.list_length = of.list_from = 0;
    return came_back;
  }

  head_plan plan_;
  budget budget_;
  summary kind_;
  when_to_compress when_;
  std::size_t reserve_;
  std::vector<head_list> heads_;
  std::vector<layer_state> layers_;
};

}  // namespace headwise::test
