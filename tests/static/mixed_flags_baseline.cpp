// SPDX-License-Identifier: MIT
#define PART report_of_baseline
#include "mixed_flags_part.hpp"
