#pragma once

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace stepgraph::reference {

/// What the definitions say of one element of an output after one replay.
enum class cell : std::uint8_t {
  untouched,  // not written: whatever was there before is still there
  defined,    // written with the expected value
  open,       // may be written, with anything: the definitions leave it undefined
};

/// A vector as an op must leave it; `state` is the live mask.
struct vector_output {
  std::string op;
  std::string name;
  std::vector<std::int64_t> value;  // [elements]; 0 where not defined
  std::vector<cell> state;          // [elements]
};

/// A table as an op must leave it: line `i` is defined in columns [0, line[i].size()) and untouched after
/// them, so a wide captured table costs only its live columns here.
struct table_output {
  std::string op;
  std::string name;
  std::int64_t width = 0;  // columns of the captured table
  std::vector<std::vector<std::int64_t>> line;
};

/// The option `tail`: nothing past the live columns, a value up to the next multiple of columns on live
/// lines, or a value over whole lines, dead lines included.
enum class tail_mode { none, multiple, whole };
struct tail_rule {
  tail_mode mode = tail_mode::none;
  std::int64_t multiple = 1;  // columns
  std::int64_t value = -1;
};

/// The two run-time options of one output.
struct output_rule {
  std::int64_t skip = -1;  // written where there is nothing to point at
  tail_rule tail;
};

/// A vector that no one writes yet.
inline vector_output untouched_vector(std::string op, std::string name, std::int64_t elements) {
  vector_output out{std::move(op), std::move(name), {}, {}};
  out.value.assign(static_cast<std::size_t>(elements), 0);
  out.state.assign(static_cast<std::size_t>(elements), cell::untouched);
  return out;
}

/// A fixed-size vector: every element is written at every replay.
inline vector_output fixed_vector(std::string op, std::string name, std::vector<std::int64_t> value) {
  vector_output out{std::move(op), std::move(name), std::move(value), {}};
  out.state.assign(out.value.size(), cell::defined);
  return out;
}

/// A table of `lines` lines of which the first `live` have `columns(line)` live columns of value `at(line,
/// column)`; then what `tail` asks for.
template <class Columns, class At>
table_output make_table(std::string op, std::string name, std::int64_t lines, std::int64_t live,
                        std::int64_t width, const tail_rule& tail, Columns columns, At at) {
  table_output out{std::move(op), std::move(name), width, {}};
  for (std::int64_t i = 0; i < lines; ++i) {
    std::vector<std::int64_t> line;
    if (i < live) {
      const std::int64_t live_columns = std::min<std::int64_t>(columns(i), width);
      for (std::int64_t x = 0; x < live_columns; ++x) line.push_back(at(i, x));
      if (tail.mode == tail_mode::multiple) {
        while (static_cast<std::int64_t>(line.size()) % tail.multiple != 0 &&
               static_cast<std::int64_t>(line.size()) < width) {
          line.push_back(tail.value);
        }
      }
    }
    if (tail.mode == tail_mode::whole) line.resize(static_cast<std::size_t>(width), tail.value);
    out.line.push_back(std::move(line));
  }
  return out;
}

/// [0, v0, v0 + v1, ...].
inline std::vector<std::int64_t> cumsum0(const std::vector<std::int64_t>& v) {
  std::vector<std::int64_t> sum{0};
  for (std::int64_t x : v) sum.push_back(sum.back() + x);
  return sum;
}

namespace detail {

template <class Value>
std::string mismatch(const std::string& op, const std::string& name, std::int64_t row, std::int64_t column,
                     const std::string& expected, const Value& got) {
  std::ostringstream out;
  out << op << ": " << name << " row " << row << " column " << column << ": expected " << expected << ", got "
      << static_cast<std::int64_t>(got);
  return out.str();
}

inline std::string too_small(const std::string& op, const std::string& name, std::size_t needed,
                             std::size_t there) {
  std::ostringstream out;
  out << op << ": " << name << " needs " << needed << " elements, there are " << there;
  return out.str();
}

}  // namespace detail

/// The first defined element of `actual` that differs from `expected`, in words; empty if none does.
/// Elements of `actual` are integers (vector or span); it may be longer than the output.
template <class Range>
std::string check_live(const Range& actual, const vector_output& expected) {
  if (std::size(actual) < expected.value.size()) {
    return detail::too_small(expected.op, expected.name, expected.value.size(), std::size(actual));
  }
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    if (expected.state[i] != cell::defined) continue;
    if (static_cast<std::int64_t>(actual[i]) != expected.value[i]) {
      return detail::mismatch(expected.op, expected.name, static_cast<std::int64_t>(i), 0,
                              std::to_string(expected.value[i]), actual[i]);
    }
  }
  return {};
}

/// The same for a table whose line `i` starts at `actual[i * stride]`.
template <class Range>
std::string check_live(const Range& actual, std::int64_t stride, const table_output& expected) {
  for (std::size_t i = 0; i < expected.line.size(); ++i) {
    const std::size_t start = i * static_cast<std::size_t>(stride);
    const std::vector<std::int64_t>& line = expected.line[i];
    if (!line.empty() && std::size(actual) < start + line.size()) {
      return detail::too_small(expected.op, expected.name, start + line.size(), std::size(actual));
    }
    for (std::size_t x = 0; x < line.size(); ++x) {
      if (static_cast<std::int64_t>(actual[start + x]) != line[x]) {
        return detail::mismatch(expected.op, expected.name, static_cast<std::int64_t>(i),
                                static_cast<std::int64_t>(x), std::to_string(line[x]), actual[start + x]);
      }
    }
  }
  return {};
}

/// The first element that must not have been written and no longer holds `poison`, in words; elements past
/// the output (canaries) count too.
template <class Range, class Value>
std::string check_untouched(const Range& actual, Value poison, const vector_output& expected) {
  for (std::size_t i = 0; i < std::size(actual); ++i) {
    if (i < expected.state.size() && expected.state[i] != cell::untouched) continue;
    if (static_cast<std::int64_t>(actual[i]) != static_cast<std::int64_t>(poison)) {
      return detail::mismatch(expected.op, expected.name, static_cast<std::int64_t>(i), 0, "untouched poison",
                              actual[i]);
    }
  }
  return {};
}

/// The same for a table; columns between its width and its stride count too.
template <class Range, class Value>
std::string check_untouched(const Range& actual, std::int64_t stride, Value poison,
                            const table_output& expected) {
  for (std::size_t e = 0; e < std::size(actual); ++e) {
    const std::size_t i = e / static_cast<std::size_t>(stride);
    const std::size_t x = e % static_cast<std::size_t>(stride);
    if (i < expected.line.size() && x < expected.line[i].size()) continue;
    if (static_cast<std::int64_t>(actual[e]) != static_cast<std::int64_t>(poison)) {
      return detail::mismatch(expected.op, expected.name, static_cast<std::int64_t>(i),
                              static_cast<std::int64_t>(x), "untouched poison", actual[e]);
    }
  }
  return {};
}

}  // namespace stepgraph::reference
