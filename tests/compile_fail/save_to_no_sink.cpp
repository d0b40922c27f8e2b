// SPDX-License-Identifier: MIT
// expect: a byte sink needs write(const void*, bytes)
#include <headwise/headwise.hpp>

#include <vector>

int main() {
  headwise::model_shape shape{1, 1, 1, 8, 0};
  auto cache = headwise::make_cache<headwise::float16>(headwise::head_plan(shape));
  std::vector<char> bytes;
  headwise::save(cache, bytes);
}
