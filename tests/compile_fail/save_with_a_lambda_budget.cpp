// SPDX-License-Identifier: MIT
// expect: a cache can be saved only if its budget says who it is
#include <headwise/headwise.hpp>

int main() {
  const auto budget = [](headwise::head_id, std::size_t) { return std::size_t{64}; };
  headwise::model_shape shape{1, 1, 1, 8, 0};
  auto cache = headwise::make_cache<headwise::float16>(headwise::head_plan(shape), budget);
  headwise::save(cache, "file");
}
