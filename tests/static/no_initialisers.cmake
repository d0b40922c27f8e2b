# SPDX-License-Identifier: MIT
# Fails where an object file has code that runs before main().
#   cmake -DNM=<nm> -DOBJECT=<file> -P no_initialisers.cmake
execute_process(COMMAND ${NM} -C ${OBJECT} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]*(_GLOBAL__sub_I|__cxx_global_var_init|__static_initialization)[^\n]*" found "${symbols}")
if(found)
  message(FATAL_ERROR "${OBJECT} has static initialisers: ${found}")
endif()
