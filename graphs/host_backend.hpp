#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graphs/stream.hpp"

/// The host backend's own objects. A host graph is the list of launches in the order of capture, which is a
/// topological order of whatever forks and joins the body made.
namespace stepgraph::detail {

struct host_node {
  std::string name;
  std::function<void()> run;
};

struct host_recording {
  std::vector<host_node> nodes;
  std::vector<host_stream*> streams;  // the capturing stream and those that joined it
};

struct host_stream {
  std::shared_ptr<host_recording> recording;  // null outside a capture

  host_stream() = default;
  host_stream(const host_stream&) = delete;
  host_stream& operator=(const host_stream&) = delete;
  // a side stream may end inside the body that forked it
  ~host_stream() {
    if (recording) std::erase(recording->streams, this);
  }

  static host_stream& of(stream_ref at) noexcept { return *static_cast<host_stream*>(at.native()); }
  void join(const std::shared_ptr<host_recording>& to) {
    if (recording == to) return;
    to->streams.push_back(this);  // first: if it throws, this stream captures nothing
    recording = to;
  }
};

/// For tests alone, false otherwise: `event::query` says of every event of the host that its work is not done, as one of
/// a device at work would, until something waits.
inline std::atomic<bool> hold_host_events = false;

struct host_event {
  bool timed = false;
  std::weak_ptr<host_recording> captured_in;
  std::shared_ptr<std::chrono::steady_clock::time_point> when =
      std::make_shared<std::chrono::steady_clock::time_point>();
};

}  // namespace stepgraph::detail
