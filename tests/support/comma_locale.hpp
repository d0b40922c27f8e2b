// SPDX-License-Identifier: MIT
#pragma once

#include <clocale>
#include <locale>
#include <string>

namespace headwise::test {

/// While it lives, the process writes one and a half million as 1.500.000,0: the C locale where the system has one
/// like that, the C++ locale always.
class comma_locale {
 public:
  comma_locale() : c_(std::setlocale(LC_ALL, nullptr)), cpp_(std::locale::global(std::locale({}, new numbers))) {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"})
      if (std::setlocale(LC_ALL, name) != nullptr) return;
  }
  comma_locale(const comma_locale&) = delete;
  comma_locale& operator=(const comma_locale&) = delete;
  ~comma_locale() {
    std::locale::global(cpp_);
    std::setlocale(LC_ALL, c_.c_str());
  }

 private:
  struct numbers : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  std::string c_;
  std::locale cpp_;
};

}  // namespace headwise::test
