# SPDX-License-Identifier: MIT
# Shows that header_rules.cmake finds what it looks for: a small tree that keeps the rules passes, and the same tree
# with one line more fails with the words expected.
#   cmake -DRULES=<header_rules.cmake> -DWORK=<folder> -P header_rules_test.cmake
cmake_minimum_required(VERSION 3.21)

function(make_tree)
  file(REMOVE_RECURSE ${WORK})
  file(WRITE ${WORK}/headwise/headwise.hpp
    "#pragma once\n#include \"headwise/core/a.hpp\"\n#include \"headwise/store/b.hpp\"\n#include \"headwise/cache/c.hpp\"\n")
  file(WRITE ${WORK}/headwise/config.hpp "#pragma once\n#define HEADWISE_X 1\n")
  file(WRITE ${WORK}/headwise/core/a.hpp "#pragma once\n#include <vector>\n#include \"headwise/config.hpp\"\n")
  file(WRITE ${WORK}/headwise/store/b.hpp "#pragma once\n#include \"headwise/core/a.hpp\"\n")
  file(WRITE ${WORK}/headwise/cache/c.hpp "#pragma once\n// never thread_local\n#include \"headwise/store/b.hpp\"\n")
endfunction()

function(run_rules)
  execute_process(COMMAND ${CMAKE_COMMAND} -DHEADERS=${WORK} -P ${RULES}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(result ${result} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

make_tree()
run_rules()
if(result)
  message(FATAL_ERROR "a tree that keeps the rules was refused:\n${output}")
endif()

function(expect_violation header line words)
  make_tree()
  file(APPEND ${WORK}/headwise/${header} "${line}\n")
  run_rules()
  if(NOT result)
    message(FATAL_ERROR "passed, although ${header} has the line: ${line}")
  endif()
  string(FIND "${output}" "${words}" at)
  if(at EQUAL -1 OR NOT output MATCHES "headwise/${header}: ")
    message(FATAL_ERROR "${header} with the line: ${line}\nexpected: ${words}\nfound: ${output}")
  endif()
endfunction()

expect_violation(store/b.hpp "#include \"headwise/cache/c.hpp\"" "the arrow points from store to the right")
expect_violation(core/a.hpp "#  include \"headwise/store/b.hpp\"" "the arrow points from core to the right")
expect_violation(core/a.hpp "#include \"headwise/headwise.hpp\"" "must not include headwise/headwise.hpp")
expect_violation(store/b.hpp "#include \"a.hpp\"" "not named from the root")
expect_violation(store/b.hpp "#include <headwise/core/a.hpp>" "must not include <headwise/core/a.hpp>")
expect_violation(core/a.hpp "#include <sstream>" "must not include <sstream>")
expect_violation(config.hpp "#define OTHER 1" "only HEADWISE_* may be defined")
expect_violation(core/a.hpp "#define HEADWISE_Y 1" "only config.hpp and version.hpp define macros")
expect_violation(cache/c.hpp "thread_local int scratch;" "uses thread_local")
expect_violation(cache/new.hpp "#pragma once" "is not reached from headwise/headwise.hpp")
expect_violation(extra/new.hpp "#pragma once" "has no place in the order")
expect_violation(core/new.hpp "int x;" "has no #pragma once")
expect_violation(kernel/new-inl.hpp "#pragma once" "has no guard of HWY_TARGET_TOGGLE")
expect_violation(kernel/new-inl.hpp "#define HWY_TARGET_INCLUDE" "only HEADWISE_* may be defined")
expect_violation(store/new-inl.hpp "#define HEADWISE_SIMD_X" "only config.hpp and version.hpp define macros")
file(REMOVE_RECURSE ${WORK})
