// SPDX-License-Identifier: MIT
// expect: headwise: include it before hwy/highway.h, or compile its kernels in another file
// flags: -DHEADWISE_WITH_HIGHWAY=1
#include <hwy/highway.h>

#include <headwise/headwise.hpp>

int main() { return 0; }
