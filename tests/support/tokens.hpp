// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "headwise/attend/attend.hpp"
#include "headwise/cache/kv_cache.hpp"

// What tests feed to caches: queries, keys and values of a sequence, and the two probes whose answer is known.

namespace headwise::test {

/// One KV head read by one query head, of head size `dim`.
inline model_shape one_head(std::size_t dim = 1) { return {1, 1, 1, dim, 0}; }

/// A plan of one head, local or retrieval.
inline head_plan one_local(std::size_t sinks, std::size_t dim = 1) {
  return head_plan(one_head(dim), head_role::local, sinks);
}
inline head_plan one_retrieval(std::size_t dim = 1) { return head_plan(one_head(dim), head_role::retrieval); }

/// A sequence, packed as [token][head][element]. The same rows go to every layer.
struct tokens {
  model_shape shape;
  std::size_t count = 0;
  std::vector<float> q, k, v;

  tokens(const model_shape& of, std::size_t n)
      : shape(of),
        count(n),
        q(n * of.query_heads * of.key_size()),
        k(n * of.kv_heads * of.key_size()),
        v(n * of.kv_heads * of.value_size()) {}

  token_view queries(std::size_t first, std::size_t n) const {
    return view(q, first, n, shape.query_heads, shape.key_size());
  }
  token_view keys(std::size_t first, std::size_t n) const {
    return view(k, first, n, shape.kv_heads, shape.key_size());
  }
  token_view values(std::size_t first, std::size_t n) const {
    return view(v, first, n, shape.kv_heads, shape.value_size());
  }
  float* key(std::size_t token, std::size_t head = 0) {
    return k.data() + (token * shape.kv_heads + head) * shape.key_size();
  }
  float* value(std::size_t token, std::size_t head = 0) {
    return v.data() + (token * shape.kv_heads + head) * shape.value_size();
  }

 private:
  static token_view view(const std::vector<float>& of, std::size_t first, std::size_t n, std::size_t heads,
                         std::size_t dim) {
    token_view rows = packed_rows(of.data() + first * heads * dim, n, heads, dim);
    rows.extent = n * heads * dim;
    return rows;
  }
};

/// The K=0 probe: keys 0, queries 1, every element of the value of token t is `start` + t. Attention over rows 0..i is
/// `start` + i/2, folded or not, because D rows weigh D. It fails on any row that is lost, stale or counted twice.
/// The spike probe sets one key besides: the answer is that row, unless it is inside a mean.
inline tokens counting_tokens(const model_shape& shape, std::size_t n, double start = 0.0) {
  tokens made(shape, n);
  made.q.assign(made.q.size(), 1.0F);
  const std::size_t row = shape.kv_heads * shape.value_size();
  for (std::size_t i = 0; i < made.v.size(); ++i) made.v[i] = static_cast<float>(start + static_cast<double>(i / row));
  return made;
}

/// Independent normal numbers; the same on every platform.
inline tokens random_tokens(const model_shape& shape, std::size_t n, unsigned seed) {
  tokens made(shape, n);
  std::mt19937 bits(seed);
  // The sum of four uniform numbers: normal_distribution gives other numbers with every standard library.
  const auto number = [&bits] {
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(bits()) / 4294967296.0 - 0.5;
    return static_cast<float>(sum * 1.7320508);
  };
  for (auto* part : {&made.q, &made.k, &made.v})
    for (float& x : *part) x = number();
  return made;
}

template <class Cache>
void append(Cache& cache, const tokens& rows, std::size_t first, std::size_t n) {
  for (std::size_t layer = 0; layer < cache.shape().layers; ++layer)
    cache.append(layer, rows.keys(first, n), rows.values(first, n));
}

/// Packed outputs of queries over one layer.
template <class Cache, class Executor = serial>
std::vector<float> attended(const Cache& cache, std::size_t layer, const token_view& q, const Executor& executor = {},
                            const attention_params& params = {}) {
  const model_shape& shape = cache.shape();
  std::vector<float> out(q.tokens * shape.query_heads * shape.value_size(), -12345.0F);
  attend_schedule schedule;
  attend(cache, layer, q, packed_output(out.data(), q.tokens, shape.query_heads, shape.value_size()), schedule,
         executor, params);
  return out;
}

/// Appends tokens [first, first + n) to every layer as one chunk; the chunk's outputs in layer 0.
template <class Cache>
std::vector<float> feed(Cache& cache, const tokens& rows, std::size_t first, std::size_t n,
                        const attention_params& params = {}) {
  append(cache, rows, first, n);
  return attended(cache, 0, rows.queries(first, n), serial{}, params);
}

/// The same in chunks of `chunk` tokens.
template <class Cache>
std::vector<float> feed_in_chunks(Cache& cache, const tokens& rows, std::size_t first, std::size_t n, std::size_t chunk,
                                  const attention_params& params = {}) {
  std::vector<float> out;
  for (const std::size_t end = first + n; first < end; first += chunk) {
    const std::vector<float> part = feed(cache, rows, first, first + chunk < end ? chunk : end - first, params);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

/// First output element of the newest query: all there is to look at with one head of size 1.
template <class Cache>
float answer(const Cache& cache, float query = 1.0F) {
  const std::vector<float> q(cache.shape().query_heads * cache.shape().key_size(), query);
  return attended(cache, 0, packed_rows(q.data(), 1, cache.shape().query_heads, cache.shape().key_size()))[0];
}

/// Positions [0, sinks) and [first, end).
inline std::vector<std::size_t> sinks_and(std::size_t sinks, std::size_t first, std::size_t end) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < sinks; ++i) positions.push_back(i);
  for (std::size_t i = first; i < end; ++i) positions.push_back(i);
  return positions;
}

/// The stored bytes of a head's kept rows: all keys, then all values.
template <class Head>
std::vector<std::byte> stored_bytes(const Head& head) {
  std::vector<std::byte> keys, values;
  for (std::size_t i = 0; i < head.runs(); ++i) {
    const run part = head.run_at(i);
    keys.insert(keys.end(), part.keys, part.keys + part.rows * head.rows().key_bytes());
    values.insert(values.end(), part.values, part.values + part.rows * head.rows().value_bytes());
  }
  keys.insert(keys.end(), values.begin(), values.end());
  return keys;
}

/// k_hat and v_hat, read through what attention reads: a unit query gives one element of the mean key.
template <class Head>
std::pair<std::vector<float>, std::vector<float>> folded_means(const Head& head) {
  std::vector<float> key(head.key_size()), value(head.value_size()), unit(head.key_size());
  for (std::size_t i = 0; i < key.size(); ++i) {
    unit[i] = 1.0F;
    key[i] = head.evaluate(unit.data(), {}, value.data()).mean_logit;
    unit[i] = 0.0F;
  }
  head.evaluate(unit.data(), {}, value.data());
  return {key, value};
}

/// Everything a user can see of one head, as bits.
struct head_state {
  std::size_t length, folded, dropped;
  std::vector<std::size_t> kept;
  std::vector<std::byte> rows;
  std::pair<std::vector<float>, std::vector<float>> means;

  bool operator==(const head_state& other) const {
    const auto same_bits = [](const std::vector<float>& a, const std::vector<float>& b) {  // NaN equals NaN
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    };
    return length == other.length && folded == other.folded && dropped == other.dropped && kept == other.kept &&
           rows == other.rows && same_bits(means.first, other.means.first) &&
           same_bits(means.second, other.means.second);
  }
};

/// And of all heads of a cache: what a refused call must not change.
template <class Cache>
std::vector<head_state> visible_state(const Cache& cache) {
  std::vector<head_state> heads;
  for (std::size_t layer = 0; layer < cache.shape().layers; ++layer)
    for (std::size_t i = 0; i < cache.shape().kv_heads; ++i) {
      const auto& head = cache.head(layer, i);
      head_state state{
          head.length(), head.folded(), head.dropped(), cache.kept_positions(layer, i), stored_bytes(head), {}};
      if (head.folded() != 0) state.means = folded_means(head);
      heads.push_back(std::move(state));
    }
  return heads;
}

}  // namespace headwise::test
