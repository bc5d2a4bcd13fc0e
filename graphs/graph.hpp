#pragma once

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

#include "graphs/stream.hpp"

namespace stepgraph {

class graph_exec;

/// The definition of a graph: nodes and edges. Owns them; move-only. Made by `capture`.
class graph {
 public:
  graph(graph&&) noexcept;
  graph& operator=(graph&&) noexcept;
  ~graph();

  device where() const noexcept;
  std::size_t node_count() const;

  /// Edges by which a kernel may start while the one before it still runs; 0 on the host.
  std::size_t programmatic_edges() const;

  /// Writes the topology in Graphviz's DOT language.
  void dot(std::ostream& out) const;

  /// Makes an executable. Allocates; never called in a replay.
  graph_exec instantiate() const;

  struct state;

 private:
  friend class graph_exec;
  friend class capture_scope;
  explicit graph(std::unique_ptr<state> made) noexcept;
  std::unique_ptr<state> state_;
};

/// What an update of an executable came to. Nothing is ever rebuilt quietly.
struct update_result {
  bool updated = false;  // false: the executable is as it was and must be instantiated anew
  std::string reason;    // empty if updated
  std::string node;      // the first node that differs, where known
};

/// An executable graph. Owns it; move-only.
class graph_exec {
 public:
  graph_exec(graph_exec&&) noexcept;
  graph_exec& operator=(graph_exec&&) noexcept;
  ~graph_exec();

  device where() const noexcept;
  std::size_t node_count() const noexcept;

  /// Device bytes that the driver took for this executable, as seen in free memory; 0 on the host.
  std::size_t device_bytes() const noexcept;

  /// Enqueues one run of the whole graph on `at`. Neither allocates nor synchronises.
  void launch(stream_ref at) const;

  /// Takes over `from`'s node parameters if its topology is the same.
  update_result update(const graph& from);

  struct state;

 private:
  friend class graph;
  explicit graph_exec(std::unique_ptr<state> made) noexcept;
  std::unique_ptr<state> state_;
};

/// Puts a stream into capture mode for its lifetime; `capture` is the way to use it. While one is open on
/// this thread, work sent to a stepgraph stream outside the capture, allocations from stepgraph's resources
/// and synchronisations throw `capture_error` and spoil the capture, even if the body swallows the exception.
class capture_scope {
 public:
  explicit capture_scope(stream_ref at);
  ~capture_scope();  // discards what was captured unless `end` was called
  capture_scope(const capture_scope&) = delete;
  capture_scope& operator=(const capture_scope&) = delete;
  graph end();

  struct state;

 private:
  std::unique_ptr<state> state_;
};

/// Runs `body(at)` with `at` in capture mode and returns what it enqueued as a graph. If the body throws, the
/// capture is ended and discarded, the stream is usable, and the exception goes on; a capture that the body
/// spoiled throws `capture_error`.
template <class Body>
graph capture(stream_ref at, Body&& body) {
  capture_scope scope(at);
  std::forward<Body>(body)(at);
  return scope.end();
}

namespace detail {
/// The entry of every verb: makes the stream's device current, and throws `capture_error` (and spoils the open
/// capture) if this thread captures and `at` is not part of it.
void require_in_capture(stream_ref at, const char* what);
/// Throws `capture_error`, and spoils the open capture, if this thread captures at all.
void refuse_in_capture(const char* what);
}  // namespace detail

}  // namespace stepgraph
