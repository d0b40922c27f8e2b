// SPDX-License-Identifier: MIT
// expect: a budget is called as budget(head_id, tokens_seen)
#include <headwise/headwise.hpp>

struct rows_by_layer {  // forgets the tokens seen
  std::size_t operator()(headwise::head_id head) const { return 100 * (head.layer + 1); }
};

int main() {
  const headwise::head_plan plan(headwise::model_shape{});
  auto cache = headwise::make_cache<headwise::float16>(plan, rows_by_layer{}, headwise::mean_compensation{});
  return static_cast<int>(cache.length());
}
