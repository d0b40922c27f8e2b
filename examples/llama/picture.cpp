// SPDX-License-Identifier: MIT
#include "picture.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "headwise/core/error.hpp"
#include "table.hpp"

namespace headwise_llama {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c);
  return result + "'";
}

std::string tics(const std::vector<std::string>& names) {
  const std::size_t step = (names.size() + 39) / 40;  // labels that can still be read
  std::string text = "(";
  for (std::size_t i = 0; i < names.size(); i += step)
    text += (i == 0 ? "" : ", ") + quoted(names[i]) + " " + std::to_string(i);
  return text + ")";
}

std::string script_for(const std::string& path, const std::vector<heat_map>& maps, double low, double high) {
  const std::size_t columns = maps.front().x_names.size();
  std::size_t height = 0;
  for (const heat_map& map : maps) height += 110 + 24 * map.y_names.size();
  std::string text = "set terminal pngcairo noenhanced font 'DejaVu Sans,10' size " +
                     std::to_string(std::max<std::size_t>(640, 180 + 28 * columns)) + "," + std::to_string(height) +
                     "\nset output " + quoted(path) + "\nset multiplot layout " + std::to_string(maps.size()) +
                     ",1\nset palette defined (0 'white', 0.5 '#7fb8da', 1 '#08306b')\nset cbrange [" + fixed(low, 6) +
                     ":" + fixed(high, 6) + "]\nset tics out nomirror\nunset key\n";
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const heat_map& map = maps[i];
    text += "$map" + std::to_string(i) + " << END\n";
    for (const auto& row : map.values) {
      for (const double value : row) text += fixed(value, 6) + " ";
      text += "\n";
    }
    text += "END\nset title " + quoted(map.title) + "\nset xlabel " + quoted(map.x_label) + "\nset ylabel " +
            quoted(map.y_label) + "\nset xtics " + tics(map.x_names) + "\nset ytics " + tics(map.y_names) +
            "\nset xrange [-0.5:" + fixed(static_cast<double>(map.x_names.size()) - 0.5, 1) + "]\nset yrange [-0.5:" +
            fixed(static_cast<double>(map.y_names.size()) - 0.5, 1) + "]\nplot $map" + std::to_string(i) +
            " matrix with image\n";
  }
  return text + "unset multiplot\nunset output\n";
}

}  // namespace

bool draw_heat_maps(const std::string& path, const std::vector<heat_map>& maps, double low, double high) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) {
    std::fprintf(stderr, "%s: not drawn, gnuplot is not installed\n", path.c_str());
    return false;
  }
  const std::string partial = path + ".partial";
  const std::string script = script_for(partial, maps, low, std::max(high, low + 1e-6));
  std::FILE* const gnuplot = popen("gnuplot 2>/dev/null", "w");
  if (gnuplot == nullptr) headwise::detail::fail(path, ": gnuplot cannot be started");
  const bool sent = std::fwrite(script.data(), 1, script.size(), gnuplot) == script.size();
  const bool drawn = pclose(gnuplot) == 0 && sent;
  std::error_code problem;
  if (drawn) std::filesystem::rename(partial, path, problem);
  if (!drawn || problem) {
    std::filesystem::remove(partial, problem);
    headwise::detail::fail(path, ": cannot be drawn");
  }
  return true;
}

}  // namespace headwise_llama
