// SPDX-License-Identifier: MIT
#include <headwise/headwise.hpp>

int main() {
  headwise::model_shape shape;
  shape.layers = 2;
  shape.query_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  const headwise::head_plan plan(shape);
  return plan.retrieval_heads().empty() && HEADWISE_VERSION_MINOR == 1 ? 0 : 1;
}
