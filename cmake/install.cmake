# SPDX-License-Identifier: MIT
# Installs the headers and a package, so that find_package(headwise) gives headwise::headwise.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/headwise)  # share, not lib: nothing in it depends on the machine

install(DIRECTORY include/headwise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(TARGETS headwise EXPORT headwise-targets)
install(EXPORT headwise-targets NAMESPACE headwise:: DESTINATION ${package_dir})
set(find_hwy "")
if(HEADWISE_WITH_HIGHWAY)
  set(find_hwy "include(CMakeFindDependencyMacro)\nfind_dependency(hwy)\n")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/headwise-config.cmake CONTENT
  "@find_hwy@include(\${CMAKE_CURRENT_LIST_DIR}/headwise-targets.cmake)\n" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/headwise-config.cmake DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headwise-config-version.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/headwise-config-version.cmake DESTINATION ${package_dir})
