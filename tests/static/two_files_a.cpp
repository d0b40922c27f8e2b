// SPDX-License-Identifier: MIT
// With two_files_b.cpp: everything included twice in one program links, and inline things are one thing.
#include <headwise/headwise.hpp>

headwise::error_handler* handler_of_b();

int main() { return handler_of_b() == &headwise::on_error() ? 0 : 1; }
