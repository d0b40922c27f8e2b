// SPDX-License-Identifier: MIT
// Any bytes as a plan file: refused in words, or a plan that comes back the same when it is written and read again.

#include <cstddef>
#include <cstdint>
#include <string>

#include "headwise/profile/plan_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const headwise::plan_file read =
        headwise::detail::parse_plan("plan", std::string(reinterpret_cast<const char*>(data), size), nullptr);
    const headwise::plan_file again = headwise::detail::parse_plan("plan", headwise::detail::plan_text(read), nullptr);
    if (again.plan != read.plan || again.budget.min_recent != read.budget.min_recent ||
        again.budget.divisor != read.budget.divisor)
      __builtin_trap();
  } catch (const headwise::error& refused) {
    if (*refused.what() == '\0') __builtin_trap();
  }
  return 0;
}
