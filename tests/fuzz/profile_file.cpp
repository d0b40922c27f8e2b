// SPDX-License-Identifier: MIT
// Any bytes as a file of scores: refused in words, or scores that come back the same when written and read again.

#include <cstddef>
#include <cstdint>
#include <string>

#include "headwise/profile/profile_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const headwise::head_scores read =
        headwise::detail::parse_profile("profile", std::string(reinterpret_cast<const char*>(data), size), nullptr);
    const headwise::head_scores again =
        headwise::detail::parse_profile("profile", headwise::detail::profile_text(read), nullptr);
    if (again.names() != read.names() || again.shape() != read.shape()) __builtin_trap();
    for (std::size_t layer = 0; layer < read.shape().layers; ++layer)
      if (again.window(layer) != read.window(layer)) __builtin_trap();
    for (const std::string& name : read.names())
      for (std::size_t layer = 0; layer < read.shape().layers; ++layer)
        for (std::size_t head = 0; head < read.shape().query_heads; ++head)
          if (again.at(name, layer, head) != read.at(name, layer, head)) __builtin_trap();
  } catch (const headwise::error& refused) {
    if (*refused.what() == '\0') __builtin_trap();
  }
  return 0;
}
