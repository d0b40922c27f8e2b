// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine.hpp"

namespace headwise_llama {

/// Long plain text, cut into sentences: of a file, or, where `path` is empty, the King James Bible as Debian's `bible`
/// program prints it (public domain). Refuses where there is neither.
std::vector<std::string> haystack_sentences(const std::string& path);

/// `count` contexts of `length` tokens and `more` that follow, spread evenly over such a text: they overlap only where
/// it is too short for all of them. Each begins with the token that a sequence of the model begins with, if there is
/// one. Refuses more than the model's context, and a text that is too short for one.
std::vector<std::vector<token>> haystack_contexts(const engine& model, const std::string& path, std::size_t length,
                                                  std::size_t more, std::size_t count);

}  // namespace headwise_llama
