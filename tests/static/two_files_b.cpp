// SPDX-License-Identifier: MIT
#include <headwise/headwise.hpp>

headwise::error_handler* handler_of_b();
headwise::error_handler* handler_of_b() { return &headwise::on_error(); }
