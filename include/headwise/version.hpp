// SPDX-License-Identifier: MIT
#pragma once

/// The version of these headers, for #if and for the build system (CMakeLists.txt reads it from here).
#define HEADWISE_VERSION_MAJOR 0
#define HEADWISE_VERSION_MINOR 1
#define HEADWISE_VERSION_PATCH 0
