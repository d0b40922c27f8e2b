// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace headwise::test {

/// for (const std::size_t n : sizes{1, 2, 3}): a bare list would be of int.
using sizes = std::vector<std::size_t>;

}  // namespace headwise::test
