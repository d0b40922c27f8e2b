// SPDX-License-Identifier: MIT
// No other engine is installed: the programs then measure headwise alone, and say so.
#include "anchors/anchor.hpp"

namespace bench::anchor {

struct attention::state {};

std::string name() { return {}; }
std::string flags() { return {}; }
bool supports(path, element) { return false; }
std::size_t padded_rows(std::size_t rows) { return rows; }
attention::attention(path, const call&) {}
attention::~attention() = default;
void attention::set_queries(const float*) {}
void attention::run(const std::byte*, const std::byte*) {}
const float* attention::out() const { return nullptr; }

}  // namespace bench::anchor
