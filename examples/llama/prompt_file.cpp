// SPDX-License-Identifier: MIT
#include "prompt_file.hpp"

#include <cstdint>
#include <cstring>

#include "headwise/cache/snapshot.hpp"
#include "headwise/core/file.hpp"
#include "headwise/core/section.hpp"

namespace headwise_llama {
namespace {

using headwise::detail::fail;
using headwise::detail::join;
using headwise::detail::read_count;
using headwise::detail::section_sink;
using headwise::detail::section_source;
using headwise::detail::write_count;

constexpr unsigned char magic[8] = {0x89, 'H', 'W', 'P', '1', '\r', '\n', 0x1A};
constexpr std::uint32_t byte_order = 0x01020304;

/// How many elements follow: no more than there are bytes for.
std::size_t count_of(section_source<headwise::file_source>& from, const std::string& path, const char* what,
                     std::size_t element) {
  if (from.remaining() < sizeof(std::uint64_t)) fail(path, ": the file ends before the ", what);
  const std::size_t count = read_count(from);
  if (count > from.remaining() / element)
    fail(path, ": ", what, ": found ", count, " in ", from.remaining(), " bytes, expected fewer");
  return count;
}

}  // namespace

void save_prompt(const std::string& path, const engine& model, const prompt_state& prompt, const any_cache& cache) {
  headwise::file_sink file(path);
  section_sink<headwise::file_sink> section(file);
  section.write(magic, sizeof magic);
  section.write(&byte_order, sizeof byte_order);
  const std::string fingerprint = model.fingerprint();
  write_count(section, fingerprint.size());
  section.write(fingerprint.data(), fingerprint.size());
  write_count(section, prompt.tokens.size());
  section.write(prompt.tokens.data(), prompt.tokens.size() * sizeof(token));
  write_count(section, prompt.logits.values.size());
  section.write(prompt.logits.values.data(), prompt.logits.values.size() * sizeof(float));
  section.end();
  headwise::save(cache, file);
  file.commit();
}

prompt_state load_prompt(const std::string& path, const engine& model, any_cache& cache) {
  headwise::file_source file(path);
  section_source<headwise::file_source> section(file);
  unsigned char first[sizeof magic] = {};
  std::uint32_t order = 0;
  if (section.remaining() >= sizeof first + sizeof order) {
    section.read(first, sizeof first);
    section.read(&order, sizeof order);
  }
  if (std::memcmp(first, magic, sizeof magic) != 0) fail(path, ": not a prompt that generate saved");
  if (order != byte_order) fail(path, ": found the byte order of another machine");
  std::string fingerprint(count_of(section, path, "model", 1), '\0');
  section.read(fingerprint.data(), fingerprint.size());
  prompt_state prompt;
  prompt.tokens.resize(count_of(section, path, "tokens", sizeof(token)));
  section.read(prompt.tokens.data(), prompt.tokens.size() * sizeof(token));
  prompt.logits.values.resize(count_of(section, path, "logits", sizeof(float)));
  section.read(prompt.logits.values.data(), prompt.logits.values.size() * sizeof(float));
  if (section.remaining() < section_sink<headwise::file_sink>::end_bytes)
    fail(path, ": the file ends before the first checksum");
  section.end(path);

  if (fingerprint != model.fingerprint())
    fail(path, ": is of another model: found ", fingerprint, ", expected ", model.fingerprint());
  prompt.logits.vocabulary = model.vocabulary_size();
  if (prompt.logits.values.size() != prompt.logits.vocabulary)
    fail(path, ": found ", prompt.logits.values.size(), " logits, expected ", prompt.logits.vocabulary);
  for (const token each : prompt.tokens)
    if (each < 0 || static_cast<std::size_t>(each) >= prompt.logits.vocabulary)
      fail(path, ": found token ", each, ", expected 0 to ", prompt.logits.vocabulary - 1);
  any_cache loaded = cache;
  try {
    headwise::load(loaded, file);
  } catch (const headwise::error& refused) {
    throw headwise::error(path + ": " + refused.what());
  }
  if (file.remaining() != 0) fail(path, ": found ", file.remaining(), " bytes behind the cache, expected none");
  if (loaded.length() != prompt.tokens.size() || prompt.tokens.empty())
    fail(path, ": found a cache of ", loaded.length(), " tokens for a prompt of ", prompt.tokens.size());
  cache = std::move(loaded);
  return prompt;
}

}  // namespace headwise_llama
