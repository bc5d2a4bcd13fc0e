#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

namespace stepgraph {

/// A line on standard error that fills up; silent where standard error is no terminal.
class progress_bar {
 public:
  explicit progress_bar(std::string label) : label_(std::move(label)), shown_(isatty(STDERR_FILENO) != 0) {}

  void show(int done, int all) const {
    if (!shown_ || all <= 0) return;
    constexpr int width = 32;
    const int full = width * done / all;
    std::fprintf(stderr, "\r%s [%s%s] %d/%d", label_.c_str(), std::string(full, '#').c_str(),
                 std::string(width - full, '.').c_str(), done, all);
    std::fflush(stderr);
  }

  /// Takes the line away.
  void finish() const {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  std::string label_;
  bool shown_;
};

}  // namespace stepgraph
