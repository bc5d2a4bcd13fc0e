#include "graphs/stream.hpp"

#include <cstring>

#include "graphs/counters.hpp"
#include "graphs/cuda_backend.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "graphs/host_backend.hpp"

namespace stepgraph {

stream_ref stream_ref::adopt_cuda(device where, void* cuda_stream) {
  STEPGRAPH_EXPECTS(!where.is_host(), "stream_ref::adopt_cuda: a CUDA stream cannot be on ", where.name());
  return stream_ref(where, cuda_stream);
}

void stream_ref::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;  // then the pointers may be null
  // outside a capture at once: recording a node allocates, a copy must not
  if (is_host() && !is_capturing()) {
    detail::require_in_capture(*this, "a copy");
    std::memcpy(to, from, bytes);
    return;
  }
  if (is_host()) return enqueue_host(*this, "copy", [=] { std::memcpy(to, from, bytes); });
  detail::require_in_capture(*this, "a copy");
  detail::cuda::copy(native_, to, from, bytes);
}

void stream_ref::fill(void* to, unsigned char value, std::size_t bytes) const {
  if (bytes == 0) return;
  if (is_host() && !is_capturing()) {
    detail::require_in_capture(*this, "a fill");
    std::memset(to, value, bytes);
    return;
  }
  if (is_host()) return enqueue_host(*this, "fill", [=] { std::memset(to, value, bytes); });
  detail::require_in_capture(*this, "a fill");
  detail::cuda::fill(native_, to, value, bytes);
}

void stream_ref::wait(const event& mark) const {
  STEPGRAPH_EXPECTS(mark.where() == where_, "stream::wait: an event of ", mark.where().name(),
                    " on a stream of ", where_.name());
  if (!is_host()) return detail::cuda::stream_wait(native_, mark.native());
  // host work outside a capture has happened already; inside one, waiting is how a stream joins
  if (auto recording = static_cast<const detail::host_event*>(mark.native())->captured_in.lock())
    detail::host_stream::of(*this).join(recording);
}

void stream_ref::synchronize() const {
  detail::refuse_in_capture("a synchronisation");
  ++detail::activity_totals().synchronizations;
  if (is_host())
    detail::hold_host_events = false;
  else
    detail::cuda::stream_synchronize(native_);
}

bool stream_ref::query() const {
  return is_host() || detail::cuda::stream_query(native_);
}

bool stream_ref::is_capturing() const {
  return is_host() ? detail::host_stream::of(*this).recording != nullptr
                   : detail::cuda::stream_capturing(native_);
}

stream::stream(device where)
    : handle_(where,
              where.is_host() ? new detail::host_stream : detail::cuda::stream_create(where.ordinal())) {}

stream::~stream() {
  if (!handle_.native()) return;
  if (handle_.is_host())
    delete static_cast<detail::host_stream*>(handle_.native());
  else
    detail::cuda::stream_destroy(handle_.native());
}

stream& stream::operator=(stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

event::event(device where, timing with_timing) : where_(where) {
  if (where.is_host())
    native_ = new detail::host_event{.timed = with_timing == timing::on, .captured_in = {}};
  else
    native_ = detail::cuda::event_create(where.ordinal(), with_timing == timing::on);
}

event::~event() {
  if (!native_) return;
  if (where_.is_host())
    delete static_cast<detail::host_event*>(native_);
  else
    detail::cuda::event_destroy(native_);
}

event::event(event&& other) noexcept : where_(other.where_), native_(std::exchange(other.native_, nullptr)) {}

event& event::operator=(event&& other) noexcept {
  std::swap(where_, other.where_);
  std::swap(native_, other.native_);
  return *this;
}

void event::record(stream_ref at) {
  STEPGRAPH_EXPECTS(at.where() == where_, "event::record: an event of ", where_.name(), " on a stream of ",
                    at.where().name());
  detail::require_in_capture(at, "an event record");
  if (!where_.is_host()) return detail::cuda::event_record(native_, at.native());
  auto& mine = *static_cast<detail::host_event*>(native_);
  mine.captured_in = detail::host_stream::of(at).recording;
  if (mine.timed) enqueue_host(at, "event", [when = mine.when] { *when = std::chrono::steady_clock::now(); });
}

bool event::query() const {
  return where_.is_host() ? !detail::hold_host_events : detail::cuda::event_query(native_);
}

void event::synchronize() const {
  detail::refuse_in_capture("a synchronisation");
  ++detail::activity_totals().synchronizations;
  if (where_.is_host())
    detail::hold_host_events = false;
  else
    detail::cuda::event_synchronize(native_);
}

float event::milliseconds_since(const event& start) const {
  if (!where_.is_host()) return detail::cuda::event_milliseconds(start.native_, native_);
  const auto& from = *static_cast<const detail::host_event*>(start.native_);
  const auto& to = *static_cast<const detail::host_event*>(native_);
  STEPGRAPH_EXPECTS(from.timed && to.timed, "event::milliseconds_since: both events need timing::on");
  return std::chrono::duration<float, std::milli>(*to.when - *from.when).count();
}

void enqueue_host(stream_ref at, const char* name, std::function<void()> body) {
  STEPGRAPH_EXPECTS(at.is_host(), "enqueue_host: ", name, " on a stream of ", at.where().name());
  detail::require_in_capture(at, name);
  if (auto& recording = detail::host_stream::of(at).recording)
    recording->nodes.push_back({name, std::move(body)});
  else
    body();
}

}  // namespace stepgraph
