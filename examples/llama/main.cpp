// SPDX-License-Identifier: MIT
// headwise-llama: an unmodified llama.cpp whose KV cache and attention are headwise's.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "commands.hpp"

int main(int argc, char** argv) {
  CLI::App program(
      "Finds the retrieval heads of a GGUF model, compresses its KV cache head by head inside llama.cpp, and measures "
      "what is kept and what is lost.",
      "headwise-llama");
  program.require_subcommand(1);
  program.footer(
      "Threads: llama.cpp and headwise share one OpenMP team. How waiting threads behave is the environment's choice: "
      "spinning (the default) is fastest on a quiet machine; where other programs keep the cores busy, "
      "OMP_WAIT_POLICY=passive is faster by far.");
  headwise_llama::add_profile(program);
  headwise_llama::add_plan(program);
  headwise_llama::add_needle(program);
  headwise_llama::add_text(program);
  headwise_llama::add_certificate(program);
  headwise_llama::add_generate(program);
  headwise_llama::add_bench(program);
  headwise_llama::add_bench_run(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "headwise-llama: %s\n", error.what());
    return 1;
  }
  return 0;
}
