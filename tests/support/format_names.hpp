// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace headwise::test {

/// Names the tests of a TYPED_TEST_SUITE over formats.
struct format_names {
  template <class Format>
  static std::string GetName(int) {
    return Format::name();
  }
};

}  // namespace headwise::test
