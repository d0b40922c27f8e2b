// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <cstddef>

#include "support/counted_memory.hpp"

// Replaces mmap and munmap of a test program on Linux, beside its operator new. Include it in exactly one of the
// program's source files. The C library's own mappings (malloc, threads) do not come here.

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

// NOLINTBEGIN
extern "C" void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  headwise::test::counted_memory& counts = headwise::test::memory();
  if (headwise::test::must_fail(counts)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  counts.mapped_bytes += size;
  ++counts.mappings;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, file, offset));
}
extern "C" int munmap(void* address, size_t size) noexcept {
  headwise::test::memory().mapped_bytes -= size;
  return static_cast<int>(syscall(SYS_munmap, address, size));
}
// NOLINTEND
#endif
