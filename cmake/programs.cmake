# SPDX-License-Identifier: MIT
# How our own tests, benchmarks and examples are compiled. None of it reaches those who use the library.
#   headwise_program(<target>)                         the flags below, headwise::headwise, and its kernels compiled once
#   headwise_find(<package> <Debian package> <option>) find_package, or an error that says what to do

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()
if(NOT CMAKE_CXX_STANDARD)
  set(CMAKE_CXX_STANDARD 17)
endif()
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

function(headwise_find package debian option)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is not installed. On Debian: apt-get install ${debian}\n"
      "Or do without it: -D${option}=OFF")
  endif()
endfunction()

find_package(OpenMP QUIET COMPONENTS CXX)  # without it the openmp executor does not exist, and nothing else changes

add_library(headwise_warnings INTERFACE)
target_compile_options(headwise_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
  $<$<BOOL:${HEADWISE_WERROR}>:-Werror>)
add_library(headwise_flags INTERFACE)
target_link_libraries(headwise_flags INTERFACE headwise_warnings)
target_compile_options(headwise_flags INTERFACE $<$<BOOL:${HEADWISE_NATIVE}>:-march=native>)
if(OpenMP_CXX_FOUND)
  target_link_libraries(headwise_flags INTERFACE OpenMP::OpenMP_CXX)
endif()
if(HEADWISE_SANITIZE)
  target_compile_options(headwise_flags INTERFACE
    -fsanitize=${HEADWISE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(headwise_flags INTERFACE -fsanitize=${HEADWISE_SANITIZE})
  if(TARGET headwise_kernels)
    target_compile_options(headwise_kernels PRIVATE  # at -O3 this takes minutes
      -O1 -fsanitize=${HEADWISE_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(headwise_kernels INTERFACE -fsanitize=${HEADWISE_SANITIZE})  # for those without our flags
  endif()
endif()

function(headwise_program target)
  target_link_libraries(${target} PRIVATE headwise::headwise headwise_flags)
  if(HEADWISE_WITH_HIGHWAY)
    target_link_libraries(${target} PRIVATE headwise::kernels)
  endif()
endfunction()
