# SPDX-License-Identifier: MIT
# A line "// flags: <flags>" goes to the compiler.
#   cmake -DCOMPILER=<c++> -DSTANDARD=<17> -DINCLUDE=<folder> -DSOURCE=<file> -P compile_fail.cmake
file(STRINGS ${SOURCE} words REGEX "^// expect: ")
string(REPLACE "// expect: " "" words "${words}")
if(NOT words)
  message(FATAL_ERROR "${SOURCE} has no line '// expect: <words>'")
endif()
file(STRINGS ${SOURCE} flags REGEX "^// flags: ")
string(REPLACE "// flags: " "" flags "${flags}")
execute_process(COMMAND ${COMPILER} -std=c++${STANDARD} -fsyntax-only -I${INCLUDE} ${flags} ${SOURCE}
  RESULT_VARIABLE result ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, expected: ${words}")
endif()
string(FIND "${output}" "${words}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${SOURCE} is refused in other words, expected: ${words}\nfound: ${output}")
endif()
