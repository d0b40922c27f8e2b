// SPDX-License-Identifier: MIT
#define PART report_of_avx512
#include "mixed_flags_part.hpp"
