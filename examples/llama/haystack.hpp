// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace headwise_llama {

/// Long plain text, cut into sentences: of a file, or, where `path` is empty, the King James Bible as Debian's `bible`
/// program prints it (public domain). Refuses where there is neither.
std::vector<std::string> haystack_sentences(const std::string& path);

}  // namespace headwise_llama
