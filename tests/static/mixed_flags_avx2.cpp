// SPDX-License-Identifier: MIT
#define PART report_of_avx2
#include "mixed_flags_part.hpp"
