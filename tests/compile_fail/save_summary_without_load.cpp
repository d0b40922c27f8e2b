// SPDX-License-Identifier: MIT
// expect: a cache can be saved only if its compensation has save(summary, sink) and load(summary, source)
#include <headwise/headwise.hpp>

struct written_only : headwise::no_compensation {
  static const char* name() { return "written_only"; }
  template <class Sink>
  static void save(const summary&, Sink&) {}
  static void load() {}
};

int main() {
  headwise::model_shape shape{1, 1, 1, 8, 0};
  auto cache =
      headwise::make_cache<headwise::float16>(headwise::head_plan(shape), headwise::razor_budget{}, written_only{});
  headwise::save(cache, "file");
}
