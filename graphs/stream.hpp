#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "graphs/device.hpp"

namespace stepgraph {

class event;

namespace detail {
struct host_stream;
struct host_recording;
}  // namespace detail

/// A non-owning handle of a stream. Every public function that touches a device takes one; none defaults it.
/// The same verbs serve a stream and a capture: while the stream captures, they become nodes.
///
/// Host streams are in order and synchronous: outside a capture a verb has happened when it returns.
class stream_ref {
 public:
  /// Adopts an engine's cudaStream_t of `where`; the engine keeps owning it.
  static stream_ref adopt_cuda(device where, void* cuda_stream) { return stream_ref(where, cuda_stream); }

  device where() const noexcept { return where_; }
  bool is_host() const noexcept { return where_.is_host(); }

  /// The cudaStream_t of a CUDA stream.
  void* native() const noexcept { return native_; }

  /// Copies `bytes` between any two of device, pinned and (host backend) host memory, in stream order.
  void copy(void* to, const void* from, std::size_t bytes) const;

  /// Sets `bytes` bytes to `value`, in stream order.
  void fill(void* to, unsigned char value, std::size_t bytes) const;

  /// Makes later work of this stream wait for `mark`. In a capture this is how a forked stream joins, and
  /// rejoins.
  void wait(const event& mark) const;

  /// Blocks the host until all work so far is done. Refused during a capture.
  void synchronize() const;

  /// True if all work so far is done. Does not block.
  bool query() const;

  bool is_capturing() const;

  friend bool operator==(const stream_ref&, const stream_ref&) = default;

 private:
  friend class stream;
  friend struct detail::host_stream;
  stream_ref(device where, void* native) noexcept : where_(where), native_(native) {}
  device where_;
  void* native_;
};

/// Owns a stream. Move-only; destroying it does not wait for its work and is safe at driver shutdown.
class stream {
 public:
  explicit stream(device where);
  ~stream();
  stream(stream&& other) noexcept
      : handle_(std::exchange(other.handle_, stream_ref(device::host(), nullptr))) {}
  stream& operator=(stream&& other) noexcept;
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;

  operator stream_ref() const noexcept { return handle_; }  // NOLINT: an owner is usable as its handle
  stream_ref ref() const noexcept { return handle_; }
  device where() const noexcept { return handle_.where(); }
  void synchronize() const { handle_.synchronize(); }

 private:
  stream_ref handle_;
};

/// A mark in a stream, for order between streams and for time. Move-only.
class event {
 public:
  enum class timing { off, on };
  explicit event(device where, timing with_timing = timing::off);
  ~event();
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;
  event(const event&) = delete;
  event& operator=(const event&) = delete;

  device where() const noexcept { return where_; }
  void* native() const noexcept { return native_; }

  /// Marks the work enqueued on `at` so far. Recording again moves the mark.
  void record(stream_ref at);

  /// True if the marked work is done, or nothing was ever recorded. Does not block.
  bool query() const;

  /// Blocks the host until the marked work is done. Refused during a capture.
  void synchronize() const;

  /// Milliseconds from `start` to this mark; both need `timing::on` and to have happened.
  float milliseconds_since(const event& start) const;

 private:
  device where_;
  void* native_ = nullptr;
};

/// Enqueues `body` on a host stream: runs it now, or records it, with all it captured by value, while the
/// stream captures. `name` is the node's name in the graph. Throws on a CUDA stream.
void enqueue_host(stream_ref at, const char* name, std::function<void()> body);

}  // namespace stepgraph
