// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "engine.hpp"

// The model of the tests, HEADWISE_MODEL: a GGUF of plain grouped-query attention.

namespace headwise_llama::test {

inline std::string model_path() {
  const char* path = std::getenv("HEADWISE_MODEL");
  return path ? path : "";
}

/// A folder for models made here.
inline std::filesystem::path scratch() {
  const char* chosen = std::getenv("HEADWISE_TEST_DIR");
  const auto folder =
      chosen ? std::filesystem::path(chosen) : std::filesystem::temp_directory_path() / "headwise_llama_test";
  std::filesystem::create_directories(folder);
  return folder;
}

/// The model with float32 weights: a large file, made once.
inline std::string f32_path() {
  const auto copy = scratch() / (std::filesystem::path(model_path()).stem().string() + ".F32.gguf");
  if (!std::filesystem::exists(copy)) write_f32_copy(model_path(), copy.string());
  return copy.string();
}

/// Plain sentences, the same in every run: random tokens would leave the greedy text to chance.
inline std::vector<token> story(const engine& model, std::size_t length) {
  const char* const subjects[] = {"The miller", "A young sailor", "My neighbour", "The old teacher", "Her sister"};
  const char* const verbs[] = {"carried", "painted", "forgot", "sold", "repaired", "described"};
  const char* const objects[] = {"the wooden boat", "a letter from home", "the garden gate", "seven red apples"};
  std::mt19937 random(11);
  const auto any = [&](const auto& words) { return words[random() % std::size(words)]; };
  std::string text;
  std::vector<token> tokens;
  while (tokens.size() < length) {
    for (int i = 0; i < 200; ++i) text += std::string(any(subjects)) + " " + any(verbs) + " " + any(objects) + ". ";
    tokens = model.tokenize(text, /*add_special*/ true, /*parse_special*/ false);
  }
  tokens.resize(length);
  return tokens;
}

inline float largest_difference(const float* a, const float* b, std::size_t count) {
  float largest = 0.0F;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

}  // namespace headwise_llama::test
