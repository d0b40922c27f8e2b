// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/policy/when_to_compress.hpp"

namespace headwise::detail {

/// No sequence has as many tokens; keeps sums of positions far from overflow.
inline constexpr std::size_t most_saved_tokens = std::size_t{1} << 40;

/// What the header of a saved cache says about a head: all but rows and summaries themselves.
struct saved_head {
  std::size_t early = 0;
  std::size_t raw_from = 0;
  std::size_t kept_from = 0;
  std::size_t kept_from_before = 0;  ///< the last append
  std::size_t retain_length = 0;
  std::size_t retain_kept_from = 0;
  std::size_t has_summary = 0;
  std::size_t folded = 0;
  std::size_t summary_bytes = 0;
  std::size_t checkpoint_folded = 0;
  std::size_t checkpoint_bytes = 0;

  std::size_t left() const noexcept { return kept_from - early; }
};

struct saved_layer {
  std::size_t length = 0;
  std::size_t rolling = 0;
  std::size_t compressed_at = 0;
  std::size_t length_before = 0;  ///< the last append; length: not known
  std::vector<saved_head> heads;
};

/// What a file must agree with, and what it says.
struct saved_state {
  const head_plan& plan;
  std::string format;
  std::string budget;
  std::string compensation;
  std::size_t fold_rows;  ///< that leave together
  when_to_compress when;
  std::size_t rollback_reserve;
  std::vector<saved_layer> layers;
};

/// The header, field by field: the one description that both writer and reader follow, so that they cannot differ.
///   | Expression                              | Writer             | Reader                               |
///   | fields.at(where)                        |                    | messages name it from now on         |
///   | fields.same(name, value or text)        | writes it          | refuses any other                    |
///   | fields.number(name, value, least, most) | writes it          | reads it, refuses what is out of range |
///   | fields.in_blocks(name, value, from, n)  |                    | refuses value > from but for whole n   |
/// Every range follows from numbers that are known already, so that what a file says is a state that a cache can have.
template <class Fields>
void describe(Fields& fields, saved_state& state) {
  constexpr std::size_t any = (std::numeric_limits<std::size_t>::max)();
  const model_shape& shape = state.plan.shape();
  fields.at("");
  fields.same("layers", shape.layers);
  fields.same("query heads", shape.query_heads);
  fields.same("KV heads", shape.kv_heads);
  fields.same("head size", shape.key_size());
  fields.same("value size", shape.value_size());
  fields.same("format", state.format);
  fields.same("budget", state.budget);
  fields.same("compensation", state.compensation);
  fields.same("when to compress", std::string(to_string(state.when)));
  fields.same("rollback reserve", state.rollback_reserve);
  fields.same("sinks", state.plan.sinks());
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    saved_layer& of = state.layers[layer];
    fields.at(join("layer ", layer, ": "));
    fields.same("window", state.plan.window(layer));
    fields.number("length", of.length, 0, most_saved_tokens);
    fields.number("rolling", of.rolling, state.when == when_to_compress::every_append,
                  state.when != when_to_compress::frozen);
    fields.number("length at the last compress", of.compressed_at, 0, of.length);
    fields.number("length before the last append", of.length_before, 0, of.length);
    const bool before = of.length_before != of.length;
    for (std::size_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      saved_head& head = of.heads[kv_head];
      const head_role role = state.plan.role({layer, kv_head});
      fields.at(join("layer ", layer, ", KV head ", kv_head, ": "));
      fields.same("role", std::string(to_string(role)));
      fields.number("kept from", head.kept_from, 0, of.length);
      const bool reserve = state.rollback_reserve != 0 && role != head_role::retrieval;
      fields.number("raw from", head.raw_from, reserve ? 0 : head.kept_from, head.kept_from);
      // Where nothing has left, there are no early rows either.
      fields.number("early rows", head.early, 0,
                    (std::min)(head.raw_from, (std::max)(head.kept_from, std::size_t{1}) - 1));
      fields.number("kept from before the last append", head.kept_from_before, 0,
                    before ? (std::min)(head.kept_from, of.length_before) : 0);
      fields.number("length at the last retain", head.retain_length, 0, of.length);
      fields.number("kept from at the last retain", head.retain_kept_from, 0,
                    (std::min)(head.retain_length, head.kept_from));
      // Blocks are counted from where rows first leave, or from where the last retain() left off.
      const bool windowed = role == head_role::windowed;
      const std::size_t from = (std::max)(windowed ? 0 : state.plan.sinks(), head.retain_kept_from);
      fields.in_blocks("kept from", head.kept_from, from, windowed ? 1 : state.fold_rows);
      fields.in_blocks("raw from", head.raw_from, from, windowed ? 1 : state.fold_rows);
      fields.in_blocks("kept from before the last append", head.kept_from_before, from, windowed ? 1 : state.fold_rows);
      fields.number("summary", head.has_summary, 0, !windowed && head.left() != 0);
      fields.number("folded rows", head.folded, 0, head.has_summary != 0 ? head.left() : 0);
      fields.number("summary bytes", head.summary_bytes, 0, head.has_summary != 0 ? any : 0);
      const bool checkpoint = head.has_summary != 0 && state.rollback_reserve != 0;
      fields.number("folded rows before the reserve", head.checkpoint_folded, 0,
                    checkpoint ? (std::min)(head.folded, head.raw_from - head.early) : 0);
      fields.number("checkpoint bytes", head.checkpoint_bytes, 0, checkpoint ? any : 0);
    }
  }
}

template <class Sink>
class header_writer {
 public:
  explicit header_writer(Sink& to) noexcept : to_(to) {}
  void at(const std::string&) noexcept {}
  void same(const char*, std::size_t value) { write_count(to_, value); }
  void same(const char*, const std::string& text) {
    write_count(to_, text.size());
    to_.write(text.data(), text.size());
  }
  void number(const char*, std::size_t value, std::size_t least, std::size_t most) {
    HEADWISE_ASSERT(least <= value && value <= most);
    static_cast<void>(least), static_cast<void>(most);
    write_count(to_, value);
  }
  void in_blocks(const char*, std::size_t value, std::size_t from, std::size_t block) {
    HEADWISE_ASSERT(value <= from || (value - from) % block == 0);
    static_cast<void>(value), static_cast<void>(from), static_cast<void>(block);
  }

 private:
  Sink& to_;
};

class header_reader {
 public:
  /// `origin` begins messages, and outlives it.
  header_reader(memory_source& from, const std::string& origin) noexcept : from_(from), origin_(origin) {}
  void at(std::string where) { where_ = std::move(where); }
  void same(const char* name, std::size_t value) { number(name, value, value, value); }
  void same(const char* name, const std::string& text) {
    std::size_t length = 0;
    number(name, length, 0, from_.remaining());
    std::string found(length, '\0');
    from_.read(found.data(), length);
    if (found != text) fail(origin_, ": ", where_, name, ": found '", printable(found), "', expected '", text, "'");
  }
  void number(const char* name, std::size_t& value, std::size_t least, std::size_t most) {
    number_is_there(name);
    const std::size_t found = read_count(from_);
    if (found < least || found > most) {
      const std::string expected = least == most ? join(least) : join(least, "..", most);
      fail(origin_, ": ", where_, name, ": found ", found, ", expected ", expected);
    }
    value = found;
  }
  void in_blocks(const char* name, std::size_t value, std::size_t from, std::size_t block) {
    if (value > from && (value - from) % block != 0)
      fail(origin_, ": ", where_, name, ": found ", value, ", expected ", from, " and a multiple of ", block, " more");
  }

 private:
  void number_is_there(const char* name) const {
    if (from_.remaining() < sizeof(std::uint64_t)) fail(origin_, ": ", where_, name, ": the header ends before it");
  }

  memory_source& from_;
  const std::string& origin_;
  std::string where_;
};

}  // namespace headwise::detail
