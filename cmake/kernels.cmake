# SPDX-License-Identifier: MIT
# headwise::kernels: the fast kernels as a static library. It has no sources of its own but two generated lines.
set(headwise_kernels_source ${CMAKE_CURRENT_BINARY_DIR}/headwise_kernels.cpp)
file(CONFIGURE OUTPUT ${headwise_kernels_source} CONTENT
  "#define HEADWISE_KERNELS_HERE\n#include \"headwise/kernel/simd.hpp\"\n")
add_library(headwise_kernels STATIC EXCLUDE_FROM_ALL ${headwise_kernels_source})
add_library(headwise::kernels ALIAS headwise_kernels)
target_link_libraries(headwise_kernels PUBLIC headwise)
target_compile_definitions(headwise_kernels INTERFACE HEADWISE_KERNELS_ELSEWHERE)
set_target_properties(headwise_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(headwise_kernels PRIVATE -O3)  # whatever the build type: these loops are the product
endif()
