// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

// Files with different -m flags in one program: each compiles mixed_flags_part.hpp under a name of its own.

/// What a file found; plain data, since whatever the files share is compiled with the flags of one of them.
struct part_report {
  const char* isa;      ///< the namespace of what the file compiled
  const char* kernels;  ///< the set that it chose
  const void* table;    ///< its kernels
  double worst_error;   ///< against double precision, relative to the largest output
  float out[2 * 64];    ///< the answer of the newest token
};

part_report report_of_baseline();
part_report report_of_avx2();
part_report report_of_avx512();
