#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace stepgraph {

/// Several texts as they grow, a line each on standard error; silent where that is no terminal.
class live_view {
 public:
  explicit live_view(std::size_t streams)
      : tails_(streams), shown_(isatty(STDERR_FILENO) != 0 && streams > 1) {}

  void add(std::size_t stream, const std::string& text) {
    if (!shown_) return;
    for (const char c : text) tails_[stream] += c == '\n' ? ' ' : c;
    draw();
  }

  /// Takes the lines away.
  void finish() {
    if (drawn_) std::fprintf(stderr, "\033[%zuA\r\033[J", tails_.size());
    drawn_ = false;
  }

 private:
  void draw() {
    constexpr std::size_t width = 72;
    if (drawn_) std::fprintf(stderr, "\033[%zuA", tails_.size());
    for (std::size_t i = 0; i < tails_.size(); ++i) {
      std::string& tail = tails_[i];
      if (tail.size() > width) {
        std::size_t from = tail.size() - width;
        while (from < tail.size() && (tail[from] & 0xc0) == 0x80) ++from;  // not in the middle of a letter
        tail.erase(0, from);
      }
      std::fprintf(stderr, "\r\033[K[%zu] %s\n", i + 1, tail.c_str());
    }
    std::fflush(stderr);
    drawn_ = true;
  }

  std::vector<std::string> tails_;
  bool shown_;
  bool drawn_ = false;
};

}  // namespace stepgraph
