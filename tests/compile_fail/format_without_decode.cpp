// SPDX-License-Identifier: MIT
// expect: a format needs name(), bytes(count)
#include <headwise/headwise.hpp>

struct write_only {
  static const char* name() { return "write_only"; }
  std::size_t bytes(std::size_t count) const { return count; }
  void encode(const float*, std::byte*, std::size_t) const {}
};

int main() {
  const headwise::head_plan plan(headwise::model_shape{});
  auto cache = headwise::make_cache<write_only>(plan, headwise::razor_budget{}, headwise::mean_compensation{});
  return static_cast<int>(cache.length());
}
