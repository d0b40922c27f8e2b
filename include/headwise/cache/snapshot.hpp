// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/cache/kv_cache.hpp"
#include "headwise/cache/saved_state.hpp"
#include "headwise/config.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/file.hpp"
#include "headwise/core/section.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/store/early_rows.hpp"
#include "headwise/store/page_layout.hpp"

namespace headwise {

// A saved cache, in the byte order of the machine that wrote it:
//   magic (8 bytes) | 0x01020304 (4) | version (4) | bytes of the header (8) | header | checksum
//   then for each head of each layer: early rows, each with its position | reserve and recent rows, by page: keys, then
//   values | summary | checkpoint | checksum
// The header (cache/saved_state.hpp) says what the cache is and how many rows and bytes each head has, so the size of
// all the rest is known, and compared with what is there, before anything is made. Rows are those bytes that they have
// in memory.
//
// What a file promises: load() gives the same bits, and so does everything that is done with the cache afterwards, in
// any program on a machine of the same byte order, whatever its instruction set and its memory resource. A library
// reads the version that it writes and refuses every other one; the version changes whenever the layout or the meaning
// of a byte does.

namespace detail {

/// The inside of caches and heads, for those who save and load them.
struct cache_access {
  template <class Cache>
  static auto& layers(Cache& cache) noexcept {
    return cache.layers_;
  }
  template <class Cache>
  static const auto& budget(const Cache& cache) noexcept {
    return cache.budget_.get();
  }
  template <class Cache>
  static when_to_compress when(const Cache& cache) noexcept {
    return cache.when_;
  }
  template <class Cache>
  static const cache_options& options(const Cache& cache) noexcept {
    return cache.options_;
  }
  /// Another cache of the same kind, which has seen nothing.
  template <class Cache>
  static Cache empty_like(const Cache& cache) {
    const auto& head = cache.layers_.front().head(0);
    return Cache(cache.plan_, cache.budget_.get(), head.compensation(), cache.when_, head.format(), cache.options_);
  }
  template <class Layer>
  static auto& heads(Layer& layer) noexcept {
    return layer.heads_;
  }
  template <class Layer>
  static auto& progress(Layer& layer) noexcept {
    return layer.progress_;
  }
  template <class Head>
  static auto& rows(Head& head) noexcept {
    return head.rows_;
  }
  template <class Head>
  static auto& summary(Head& head) noexcept {
    return head.summary_;
  }
  template <class Head>
  static auto& checkpoint(Head& head) noexcept {
    return head.checkpoint_;
  }
  template <class Head>
  static auto& last_retain(Head& head) noexcept {
    return head.last_retain_;
  }
};

inline namespace HEADWISE_ISA {

inline constexpr unsigned char saved_magic[8] = {0x89, 'H', 'W', 'K', 'V', '\r', '\n', 0x1A};  // shows text conversions
inline constexpr std::uint32_t saved_byte_order = 0x01020304;
inline constexpr std::uint32_t saved_version = 1;

/// What stands before the header.
struct saved_preamble {
  unsigned char magic[8];
  std::uint32_t byte_order;
  std::uint32_t version;
  std::uint64_t header_bytes;
};
static_assert(sizeof(saved_preamble) == 24);

template <class Budget, class Compensation>
constexpr void require_saveable() {
  require_saveable_budget<Budget>();
  require_saveable_compensation<Compensation>();
}

/// What describes a cache that has seen nothing, of these layers.
template <class Cache>
saved_state empty_state(const Cache& cache) {
  if (cache_access::layers(cache).empty()) fail("save or load: the cache has been moved from");
  const auto& head = cache.head(0, 0);
  saved_layer layer;
  layer.heads.resize(cache.shape().kv_heads);
  return {cache.plan(),
          head.format().name(),
          identity(cache_access::budget(cache)),
          identity(head.compensation()),
          head.fold_rows(),
          cache_access::when(cache),
          cache_access::options(cache).rollback_reserve,
          std::vector<saved_layer>(cache.shape().layers, layer)};
}

template <class Head>
using summary_of = std::decay_t<decltype(std::declval<const Head&>().summary())>;

template <class Head>
std::size_t summary_size(const Head& head, const summary_of<Head>& summary) {
  counting_sink count;
  head.compensation().save(summary, count);
  return count.bytes();
}

template <class Cache>
saved_state state_of(const Cache& cache) {
  saved_state state = empty_state(cache);
  for (std::size_t layer = 0; layer < state.layers.size(); ++layer) {
    const auto& from = cache_access::layers(cache)[layer];
    saved_layer& to = state.layers[layer];
    const auto& progress = cache_access::progress(from);
    to.length = from.length();
    to.rolling = progress.rolling;
    to.compressed_at = progress.compressed_at;
    const bool before = progress.length_before <= to.length;  // if it is known
    to.length_before = before ? progress.length_before : to.length;
    for (std::size_t kv_head = 0; kv_head < to.heads.size(); ++kv_head) {
      const auto& head = from.head(kv_head);
      saved_head& saved = to.heads[kv_head];
      saved.early = head.rows().early();
      saved.raw_from = head.rows().raw_from();
      saved.kept_from = head.rows().kept_from();
      saved.kept_from_before = before ? progress.kept_from_before[kv_head] : 0;
      saved.retain_length = head.last_retain().length;
      saved.retain_kept_from = head.last_retain().kept_from;
      const auto& summary = cache_access::summary(head);
      const auto& checkpoint = cache_access::checkpoint(head);
      if (!summary || saved.left() == 0) continue;  // one that was made before rows leave, which they then did not
      saved.has_summary = 1;
      saved.folded = head.folded();
      saved.summary_bytes = summary_size(head, *summary);
      if (state.rollback_reserve == 0) continue;
      saved.checkpoint_folded = head.compensation().folded(*checkpoint);
      saved.checkpoint_bytes = summary_size(head, *checkpoint);
    }
  }
  return state;
}

template <class Cache, class Sink>
void write_cache(const Cache& cache, Sink& sink) {
  saved_state state = state_of(cache);
  memory_sink header;
  header_writer<memory_sink> fields(header);
  describe(fields, state);

  section_sink<Sink> section(sink);
  saved_preamble preamble{{}, saved_byte_order, saved_version, header.bytes().size()};
  std::memcpy(preamble.magic, saved_magic, sizeof saved_magic);
  section.write(&preamble, sizeof preamble);
  section.write(header.bytes().data(), header.bytes().size());
  section.end();

  for (std::size_t layer = 0; layer < state.layers.size(); ++layer)
    for (std::size_t kv_head = 0; kv_head < cache.shape().kv_heads; ++kv_head) {
      const auto& head = cache.head(layer, kv_head);
      const saved_head& saved = state.layers[layer].heads[kv_head];
      const auto& rows = head.rows();
      rows.visit_early([&](const run& part) {
        for (std::size_t row = 0; row < part.rows; ++row) {
          write_count(section, part.position + row);
          section.write(part.keys + row * rows.key_bytes(), rows.key_bytes());
          section.write(part.values + row * rows.value_bytes(), rows.value_bytes());
        }
      });
      rows.visit(saved.raw_from, rows.length(), [&](const run& part) {
        section.write(part.keys, part.rows * rows.key_bytes());
        section.write(part.values, part.rows * rows.value_bytes());
      });
      if (saved.has_summary != 0) head.compensation().save(*cache_access::summary(head), section);
      if (saved.has_summary != 0 && state.rollback_reserve != 0)
        head.compensation().save(*cache_access::checkpoint(head), section);
      section.end();
    }
}

/// Reads a cache like `empty`, which has seen nothing.
template <class Source>
class cache_reader {
 public:
  /// `origin` begins messages. `alone`: nothing may follow.
  cache_reader(Source& source, std::string origin, bool alone)
      : source_(source), section_(source), origin_(std::move(origin)), alone_(alone) {}

  template <class Cache>
  void read(Cache& cache) {
    saved_state state = empty_state(cache);
    read_header(state);
    const auto& rows = cache.head(0, 0).rows();
    require_bytes(state, rows.key_bytes() + rows.value_bytes());

    Cache made = cache_access::empty_like(cache);
    for (std::size_t layer = 0; layer < state.layers.size(); ++layer) {
      auto& to = cache_access::layers(made)[layer];
      auto& heads = cache_access::heads(to);
      const saved_layer& saved = state.layers[layer];
      make_room(heads, saved);
      const std::size_t sinks = cache.window(layer) != 0 ? 0 : cache.plan().sinks();
      for (std::size_t kv_head = 0; kv_head < saved.heads.size(); ++kv_head)
        read_head(heads[kv_head], saved.heads[kv_head], saved.length, sinks, state.rollback_reserve != 0,
                  join(origin_, ": layer ", layer, ", KV head ", kv_head));
      auto& progress = cache_access::progress(to);
      progress.rolling = saved.rolling != 0;
      progress.compressed_at = saved.compressed_at;
      if (saved.length_before == saved.length) continue;
      progress.length_before = saved.length_before;
      for (std::size_t kv_head = 0; kv_head < saved.heads.size(); ++kv_head)
        progress.kept_from_before[kv_head] = saved.heads[kv_head].kept_from_before;
    }
    cache_access::layers(cache).swap(cache_access::layers(made));
  }

 private:
  void read_header(saved_state& state) {
    saved_preamble preamble;
    if (source_.remaining() < sizeof preamble)
      fail(origin_, ": found ", source_.remaining(), " bytes, expected a saved cache");
    section_.read(&preamble, sizeof preamble);
    if (std::memcmp(preamble.magic, saved_magic, sizeof saved_magic) != 0)
      fail(origin_, ": found other first bytes than those of a saved cache");
    if (preamble.byte_order != saved_byte_order)
      fail(origin_, ": found the byte order of another machine (", preamble.byte_order, "), expected ",
           saved_byte_order);
    if (preamble.version != saved_version)
      fail(origin_, ": found version ", preamble.version, ", expected ", saved_version);
    const std::size_t end = section_sink<counting_sink>::end_bytes;
    if (source_.remaining() < end || preamble.header_bytes > source_.remaining() - end)
      fail(origin_, ": header: found ", source_.remaining(), " bytes, expected ", preamble.header_bytes, " and ", end);

    std::vector<std::byte> bytes(static_cast<std::size_t>(preamble.header_bytes));
    section_.read(bytes.data(), bytes.size());
    section_.end(origin_ + ": header");
    memory_source header(bytes.data(), bytes.size());
    header_reader fields(header, origin_);
    describe(fields, state);
    if (header.remaining() != 0) fail(origin_, ": header: found ", header.remaining(), " bytes too many");
  }

  /// Compares the bytes that the header promises with those that are there.
  void require_bytes(const saved_state& state, std::size_t row_bytes) const {
    constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
    std::size_t bytes = 0;  // saturates
    const auto add = [&](std::size_t count, std::size_t size) {
      const std::size_t product = count != 0 && size > most / count ? most : count * size;
      bytes = product > most - bytes ? most : bytes + product;
    };
    for (const saved_layer& layer : state.layers)
      for (const saved_head& head : layer.heads) {
        add(head.early, sizeof(std::uint64_t) + row_bytes);
        add(layer.length - head.raw_from, row_bytes);
        add(head.summary_bytes, 1);
        add(head.checkpoint_bytes, 1);
        add(section_sink<counting_sink>::end_bytes, 1);
      }
    const std::size_t found = source_.remaining();
    if (found < bytes || (alone_ && found > bytes))
      fail(origin_, ": found ", found, " bytes of rows and summaries, expected ", bytes);
  }

  /// In the order of layer_cache::reserve.
  template <class Head>
  static void make_room(std::vector<Head>& heads, const saved_layer& layer) {
    std::size_t end = layer.length;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      cache_access::rows(heads[i]).restore_from(layer.heads[i].raw_from);
      end = (std::min)(end, layer.heads[i].raw_from);
    }
    while (end < layer.length) {
      end = (std::min)(layer.length, (end / page_layout::rows + 1) * page_layout::rows);
      for (Head& head : heads) head.reserve(end);
    }
  }

  template <class Head>
  void read_head(Head& head, const saved_head& saved, std::size_t length, std::size_t sinks, bool reserve,
                 const std::string& where) {
    auto& rows = cache_access::rows(head);
    early_rows early(saved.early, rows.key_bytes(), rows.value_bytes());
    std::vector<std::byte> row(rows.key_bytes() + rows.value_bytes());
    // Only retain() lets sinks go.
    const auto require_none_missing = [&](std::size_t begin, std::size_t end) {
      begin = (std::max)(begin, saved.retain_length);
      if (begin < (std::min)({end, sinks, saved.raw_from}))
        fail(where, ": found no early row at position ", begin, ", expected ", sinks, " sinks");
    };
    std::size_t least = 0;
    for (std::size_t i = 0; i < saved.early; ++i) {
      const std::size_t position = read_count(section_);
      if (position < least || position >= saved.raw_from)
        fail(where, ": position of early row ", i, ": found ", position, ", expected ", least, "..",
             saved.raw_from - 1);
      require_none_missing(least, position);
      section_.read(row.data(), row.size());
      early.add(position, row.data(), row.data() + rows.key_bytes());
      least = position + 1;
    }
    require_none_missing(least, sinks);
    rows.restore(length, saved.kept_from, std::move(early),
                 [&](std::byte* data, std::size_t bytes) { section_.read(data, bytes); });
    cache_access::last_retain(head) = {saved.retain_length, saved.retain_kept_from};
    if (saved.has_summary != 0) {
      read_summary(head, cache_access::summary(head), saved.folded, saved.summary_bytes, where + ", summary");
      if (reserve)
        read_summary(head, cache_access::checkpoint(head), saved.checkpoint_folded, saved.checkpoint_bytes,
                     where + ", checkpoint");
    }
    section_.end(where);
  }

  template <class Head>
  void read_summary(const Head& head, shared_value<summary_of<Head>>& to, std::size_t folded, std::size_t bytes,
                    const std::string& where) {
    auto summary = head.compensation().make_summary(head.key_size(), head.value_size());
    part_source<section_source<Source>> part(section_, bytes, where);
    head.compensation().load(summary, part);
    part.end();
    const std::size_t found = head.compensation().folded(summary);
    if (found != folded) fail(where, ": found ", found, " folded rows, expected ", folded);
    to = shared_value<summary_of<Head>>(std::move(summary));
  }

  Source& source_;
  section_source<Source> section_;
  std::string origin_;
  bool alone_;
};

}  // namespace HEADWISE_ISA
}  // namespace detail

inline namespace HEADWISE_ISA {

/// Writes a cache, with all that it needs to go on, to a file (as a whole or not at all, core/file.hpp) or to any byte
/// sink (core/byte_stream.hpp), in which several caches may follow each other. `to`: a path or a sink. The cache's
/// policies need an identity (policy/identity.hpp), which a lambda has not.
template <class Format, class Budget, class Compensation, class To>
void save(const kv_cache<Format, Budget, Compensation>& cache, To&& to) {
  detail::require_saveable<Budget, Compensation>();
  if constexpr (std::is_constructible_v<std::string, To>) {
    file_sink file{std::string(to)};
    detail::write_cache(cache, file);
    file.commit();
  } else {
    detail::require_sink<std::remove_reference_t<To>>();
    detail::write_cache(cache, to);
  }
}

/// Bytes that save() will write.
template <class Format, class Budget, class Compensation>
std::size_t saved_bytes(const kv_cache<Format, Budget, Compensation>& cache) {
  counting_sink count;
  save(cache, count);
  return count.bytes();
}

/// Gives a cache the state that save() wrote. It is one that was made with the same shape, plan, format, budget,
/// compensation, reserve and when_to_compress; whatever it holds is replaced. Refuses anything else, and every damage,
/// with a message that names the field, what was found and what was expected; then the cache is as it was. Memory is
/// asked for only after the numbers have been compared with each other and with the bytes that are there.
/// `from`: a path, of a file in which nothing else is; or a byte source, which is read to the end of this cache.
template <class Format, class Budget, class Compensation, class From>
void load(kv_cache<Format, Budget, Compensation>& cache, From&& from) {
  detail::require_saveable<Budget, Compensation>();
  if constexpr (std::is_constructible_v<std::string, From>) {
    const std::string path(from);
    file_source file(path);
    detail::cache_reader<file_source>(file, path, true).read(cache);
  } else {
    using source = std::remove_reference_t<From>;
    detail::require_source<source>();
    detail::cache_reader<source>(from, "load", false).read(cache);
  }
}

}  // namespace HEADWISE_ISA
}  // namespace headwise
