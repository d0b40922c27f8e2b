// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headwise_llama {

/// A grid of numbers, each drawn as a coloured cell. values[y][x]; y = 0 is the bottom row.
struct heat_map {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> x_names;
  std::vector<std::string> y_names;
  std::vector<std::vector<double>> values;
};

/// Draws heat maps of one size, `across` of them side by side, into a PNG file, on one colour scale from `low` to
/// `high`. Returns false,
/// having said so on standard error, where there is no gnuplot: the tables say the same. Refuses an unwritable file.
bool draw_heat_maps(const std::string& path, const std::vector<heat_map>& maps, std::size_t across, double low,
                    double high);

}  // namespace headwise_llama
