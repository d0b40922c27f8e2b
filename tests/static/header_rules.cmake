# SPDX-License-Identifier: MIT
# The rules of design that a compiler does not check. Prints each violation as <file>: <rule>, then fails.
#   cmake -DHEADERS=<folder that holds headwise/> -P header_rules.cmake
#
# 1. Arrows: core < element < kernel < store < policy < cache < attend < probe < profile. A header includes only its own
#    folder, one to the left, and fwd, config or version. headwise.hpp includes everything; fwd.hpp, config.hpp and
#    version.hpp may include core, element and policy headers only to name defaults.
# 2. Only config.hpp and version.hpp define macros, all of them HEADWISE_*. The files that deal with Highway may also set
#    what it reads (kernel/simd.hpp) and HEADWISE_SIMD_* (that file and kernel's *-inl.hpp), undefined when they end
#    unless it is a guard.
# 3. No streams, no thread_local.
# 4. Includes name what they include from the root ("headwise/core/error.hpp"), and every file has #pragma once, or
#    Highway's guard where it is included once per instruction set (*-inl.hpp).
# 5. headwise.hpp reaches every header.
cmake_minimum_required(VERSION 3.21)

cmake_path(ABSOLUTE_PATH HEADERS)

set(order core element kernel store policy cache attend probe profile)
set(common headwise/fwd.hpp headwise/config.hpp headwise/version.hpp)
set(violations 0)
macro(violation file)
  message("${file}: ${ARGN}")
  math(EXPR violations "${violations} + 1")
endmacro()

file(GLOB_RECURSE headers RELATIVE ${HEADERS} ${HEADERS}/headwise/*)
if(NOT headers)
  violation(${HEADERS} "no headers in headwise/")
endif()

foreach(header IN LISTS headers)
  string(REGEX MATCH "^headwise/([a-z_]+)/" ignored ${header})
  set(folder "${CMAKE_MATCH_1}")  # empty at the top level
  list(FIND order "${folder}" rank)
  if(folder AND rank EQUAL -1)
    violation(${header} "the folder ${folder} has no place in the order: ${order}")
  endif()

  file(STRINGS ${HEADERS}/${header} lines REGEX "^[ \t]*#[ \t]*include")
  set(included_${header} "")
  foreach(line IN LISTS lines)
    if(line MATCHES "<((iostream|fstream|sstream|ostream|istream|iomanip|strstream)|headwise/.*)>")
      violation(${header} "must not include <${CMAKE_MATCH_1}>")
    elseif(line MATCHES "\"(.*)\"")
      set(target ${CMAKE_MATCH_1})
      list(APPEND included_${header} ${target})
      string(REGEX MATCH "^headwise/([a-z_]+)/" ignored ${target})
      set(target_folder "${CMAKE_MATCH_1}")
      list(FIND order "${target_folder}" target_rank)
      if(NOT EXISTS ${HEADERS}/${target})
        violation(${header} "includes ${target}, which is not named from the root or does not exist")
      elseif(header STREQUAL "headwise/headwise.hpp" OR target IN_LIST common)
        # free
      elseif(NOT target_folder)
        violation(${header} "must not include ${target}")
      elseif(folder AND target_rank GREATER rank)
        violation(${header} "includes ${target}: the arrow points from ${folder} to the right")
      endif()
    endif()
  endforeach()

  file(STRINGS ${HEADERS}/${header} lines REGEX "^[ \t]*#[ \t]*define")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "define[ \t]+([A-Za-z0-9_]+)" ignored "${line}")
    set(macro "${CMAKE_MATCH_1}")
    if(header MATCHES "^headwise/kernel/(simd|.*-inl)[.]hpp$" AND macro MATCHES "^HEADWISE_SIMD_[A-Z_]+$")
      # free
    elseif(header STREQUAL "headwise/kernel/simd.hpp" AND macro MATCHES "^HWY_(WANT_AVX3_DL|TARGET_INCLUDE)$")
      # free
    elseif(NOT macro MATCHES "^HEADWISE_")
      violation(${header} "defines ${macro}; only HEADWISE_* may be defined")
    elseif(NOT header IN_LIST common OR header STREQUAL "headwise/fwd.hpp")
      violation(${header} "defines ${macro}; only config.hpp and version.hpp define macros")
    endif()
  endforeach()

  file(STRINGS ${HEADERS}/${header} lines REGEX "thread_local")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^[ \t]*//" )
      violation(${header} "uses thread_local; scratch belongs to the caller")
    endif()
  endforeach()

  set(guard "#pragma once")
  set(guard_pattern "^#pragma once$")
  if(header MATCHES "-inl[.]hpp$")
    set(guard "guard of HWY_TARGET_TOGGLE")
    set(guard_pattern "^#if defined[(]HEADWISE_SIMD_[A-Z_]+[)] == defined[(]HWY_TARGET_TOGGLE[)]$")
  endif()
  file(STRINGS ${HEADERS}/${header} lines REGEX "${guard_pattern}")
  if(NOT lines)
    violation(${header} "has no ${guard}")
  endif()
endforeach()

set(reached headwise/headwise.hpp)
set(next ${reached})
while(next)
  set(found "")
  foreach(header IN LISTS next)
    list(APPEND found ${included_${header}})
  endforeach()
  list(REMOVE_DUPLICATES found)
  if(found)
    list(REMOVE_ITEM found ${reached})
  endif()
  list(APPEND reached ${found})
  set(next ${found})
endwhile()
foreach(header IN LISTS headers)
  if(NOT header IN_LIST reached)
    violation(${header} "is not reached from headwise/headwise.hpp")
  endif()
endforeach()

list(LENGTH headers count)
if(violations)
  message(FATAL_ERROR "${violations} violations in ${count} headers")
endif()
message("${count} headers keep the rules")
