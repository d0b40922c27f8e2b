// SPDX-License-Identifier: MIT
#pragma once

#include "headwise/kernel/reference.hpp"

namespace headwise::kernel {

// The one spot where kernels are chosen.
using reference::attend_block;
using reference::block_logits;
using reference::scratch_floats;
using reference::softmax_row;

}  // namespace headwise::kernel
