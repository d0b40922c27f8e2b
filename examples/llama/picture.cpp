// SPDX-License-Identifier: MIT
#include "picture.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

/// One map: cells as filled boxes (an image needs at least two columns), with their numbers where there is room.
std::string plot_of(const heat_map& map, const std::string& name) {
  std::string text = name + " << END\n";
  for (std::size_t y = 0; y < map.values.size(); ++y)
    for (std::size_t x = 0; x < map.values[y].size(); ++x)
      text += std::to_string(x) + " " + std::to_string(y) + " " + fixed(map.values[y][x], 6) + "\n";
  text += "END\nset title " + quoted(map.title) + "\nset xlabel " + quoted(map.x_label) + "\nset ylabel " +
          quoted(map.y_label) + "\nset xtics " + tics(map.x_names) + "\nset ytics " + tics(map.y_names) +
          "\nset xrange [-0.5:" + fixed(static_cast<double>(map.x_names.size()) - 0.5, 1) +
          "]\nset yrange [-0.5:" + fixed(static_cast<double>(map.y_names.size()) - 0.5, 1) + "]\nplot " + name +
          " using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fillstyle solid noborder linecolor palette";
  if (map.x_names.size() <= 8)
    text +=
        ", " + name + " using 1:2:(sprintf('%.2f', $3)):($3 > 0.6 ? 0xffffff : 0x000000) with labels tc rgb variable";
  return text + "\n";
}

std::string script_for(const std::string& path, const std::vector<heat_map>& maps, std::size_t across, double low,
                       double high) {
  const std::size_t rows = (maps.size() + across - 1) / across;
  const std::size_t width = std::max<std::size_t>(300, 180 + 28 * maps.front().x_names.size());
  const std::size_t height = std::max<std::size_t>(180, 110 + 24 * maps.front().y_names.size());
  std::string text = "set terminal pngcairo noenhanced font 'DejaVu Sans,10' size " + std::to_string(width * across) +
                     "," + std::to_string(height * rows) + "\nset output " + quoted(path) + "\nset multiplot layout " +
                     std::to_string(rows) + "," + std::to_string(across) +
                     "\nset palette defined (0 '#f7fbff', 0.5 '#6baed6', 1 '#08306b')\nset cbrange [" + fixed(low, 6) +
                     ":" + fixed(high, 6) + "]\nset cbtics " + fixed((high - low) / 4, 3) +
                     " format '%.2f'\nset tics out nomirror\nunset key\n";
  for (std::size_t i = 0; i < maps.size(); ++i) text += plot_of(maps[i], "$map" + std::to_string(i));
  return text + "unset multiplot\nunset output\n";
}

}  // namespace

bool draw_heat_maps(const std::string& path, const std::vector<heat_map>& maps, std::size_t across, double low,
                    double high) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) {
    std::fprintf(stderr, "%s: not drawn, gnuplot is not installed\n", path.c_str());
    return false;
  }
  const std::string partial = path + ".partial";
  const std::string script = script_for(partial, maps, across, low, std::max(high, low + 1e-6));
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
