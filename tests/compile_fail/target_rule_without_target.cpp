// SPDX-License-Identifier: MIT
// expect: a target rule has name() and is called as rule(probe, row, target)
#include <headwise/headwise.hpp>

struct first_row {
  static const char* name() { return "first"; }
  void operator()(const headwise::repeated_tokens&, std::size_t) const {}
};

int main() {
  const headwise::model_shape shape;
  const auto probe = headwise::repeated_tokens::from_block({1, 2, 3}, 2);
  const headwise::head_scorer<first_row> scorer(shape, probe);
  return scorer.scores().names().empty() ? 1 : 0;
}
