// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace headwise {

/// When rows of local heads leave. A cache is *rolling* or not: not rolling, append only adds; rolling, a row appended
/// alone folds what exceeds sinks and window at once, before it attends, and a longer chunk folds nothing until the
/// next append or compress, so that it attends to all that was stored and to itself.
enum class when_to_compress : std::uint8_t {
  after_prompt,  ///< starts not rolling; compress() folds and sets rolling: the paper's. Peak memory is the full prompt
  every_append,  ///< starts rolling: bounded peak memory; what early rows of a chunk see depends on the chunk size
  frozen,        ///< compress() folds what exceeds the budget and never sets rolling: decode only appends
};

constexpr const char* to_string(when_to_compress when) noexcept {
  return when == when_to_compress::after_prompt   ? "after_prompt"
         : when == when_to_compress::every_append ? "every_append"
                                                  : "frozen";
}

}  // namespace headwise
