#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace stepgraph {

/// What must hold whatever is fed; else this says where and ends the process, which the fuzzer reports.
inline void require(bool condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (condition) return;
  std::fprintf(stderr, "%s:%d: what must hold does not\n", file, line);
  std::abort();
}

/// The input, read byte by byte; zeros once it is used up.
struct fuzz_input {
  const std::uint8_t* next;
  const std::uint8_t* end;

  bool left() const { return next < end; }
  int one() { return left() ? *next++ : 0; }
  int below(int limit) { return one() % limit; }
  /// Mostly small numbers, sometimes wild ones.
  std::int32_t number() {
    const int first = one();
    if (first < 250) return first - 8;
    std::int32_t wild = 0;
    for (int i = 0; i < 4; ++i) wild = wild << 8 | one();
    return wild;
  }
};

}  // namespace stepgraph
