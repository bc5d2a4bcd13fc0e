#pragma once

// Stands in for std::source_location where clang is too old for the standard library's (before 16). Included
// first in every file of the fuzzers; elsewhere GCC builds the project.

#include <source_location>

#ifndef __cpp_lib_source_location
namespace std {

struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           unsigned line = __builtin_LINE()) {
    return {file, line};
  }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr unsigned line() const noexcept { return line_; }

  const char* file_ = "";
  unsigned line_ = 0;
};

}  // namespace std
#endif
