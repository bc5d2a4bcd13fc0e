#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>

namespace stepgraph {

/// Base of everything stepgraph throws. `what()` names the call, the object, the numbers and the place.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bad input that the host can see. Thrown before anything is launched or changed.
class invalid_argument : public error {
 public:
  using error::error;
};

/// A budget, a resource or a pool cannot give what was asked for.
class out_of_memory : public error {
 public:
  out_of_memory(const std::string& what, std::size_t bytes_needed, std::size_t bytes_there)
      : error(what), needed_(bytes_needed), there_(bytes_there) {}
  std::size_t bytes_needed() const noexcept { return needed_; }
  std::size_t bytes_there() const noexcept { return there_; }

 private:
  std::size_t needed_;
  std::size_t there_;
};

/// A capture could not be finished. The stream is out of capture mode again and nothing was kept.
class capture_error : public error {
 public:
  using error::error;
};

/// A call of the CUDA runtime failed; `code()` is its cudaError_t.
class cuda_error : public error {
 public:
  cuda_error(const std::string& what, int code) : error(what), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/// The CUDA context did not survive an earlier error. Carries that first cause; only a new process helps.
class device_lost : public cuda_error {
 public:
  using cuda_error::cuda_error;
};

/// Joins its arguments, as an output stream prints them, into a message.
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

namespace detail {

/// A place in the source. std::source_location, but for compilers that lack it.
struct source_place {
  const char* file;
  int line;
  static constexpr source_place current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// `text` followed by file and line.
std::string with_place(const std::string& text, source_place place);

[[noreturn]] void throw_invalid_argument(const std::string& text, source_place place);

}  // namespace detail
}  // namespace stepgraph

/// Refuses bad input: STEPGRAPH_EXPECTS(width > 0, "page_table: width must be positive, got ", width).
#define STEPGRAPH_EXPECTS(condition, ...)                                               \
  (static_cast<bool>(condition)                                                         \
       ? static_cast<void>(0)                                                           \
       : ::stepgraph::detail::throw_invalid_argument(::stepgraph::message(__VA_ARGS__), \
                                                     ::stepgraph::detail::source_place::current()))
