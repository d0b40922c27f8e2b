// SPDX-License-Identifier: MIT
// expect: a compensation needs a copyable summary type
#include <headwise/headwise.hpp>

struct forgetful {
  struct summary {};
  summary make_summary(std::size_t, std::size_t) const { return {}; }
};

int main() {
  const headwise::head_plan plan(headwise::model_shape{});
  auto cache = headwise::make_cache<headwise::float16>(plan, headwise::razor_budget{}, forgetful{});
  return static_cast<int>(cache.length());
}
