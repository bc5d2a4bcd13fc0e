#include "graphs/error.hpp"

#include <string_view>

namespace stepgraph::detail {

std::string with_place(const std::string& text, source_place place) {
  std::string_view file = place.file;
  // the part of the path inside the project reads the same on every machine
  for (std::string_view folder : {"graphs/", "kernels/", "runtime/", "examples/", "bench/", "tests/"}) {
    if (auto at = file.rfind(folder); at != std::string_view::npos) {
      file.remove_prefix(at);
      break;
    }
  }
  return message(text, " [", file, ":", place.line, "]");
}

void throw_invalid_argument(const std::string& text, source_place place) {
  throw invalid_argument(with_place(text, place));
}

}  // namespace stepgraph::detail
