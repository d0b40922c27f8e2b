// SPDX-License-Identifier: MIT
#pragma once

namespace CLI {
class App;
}

// One file per sub-command: each adds itself to the program and runs from its own callback.

namespace headwise_llama {

void add_profile(CLI::App& program);
void add_plan(CLI::App& program);
void add_needle(CLI::App& program);
void add_text(CLI::App& program);
void add_certificate(CLI::App& program);
void add_generate(CLI::App& program);
void add_bench(CLI::App& program);
void add_bench_run(CLI::App& program);  // hidden: one engine of a bench, in a process of its own

}  // namespace headwise_llama
