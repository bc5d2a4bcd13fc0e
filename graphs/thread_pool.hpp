#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace stepgraph {

/// The worker threads of the host backend. Thread-safe to construct; one `parallel_for` runs at a time, a
/// second caller waits; a call from inside a body runs inline. Workers spin briefly between calls, then
/// sleep.
class thread_pool {
 public:
  /// Threads that take part, the caller included; 0 asks for one per core the process may run on.
  explicit thread_pool(int threads = 0);
  ~thread_pool();
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  int size() const noexcept;

  /// Calls `body(begin, end)` on disjoint ranges that cover [0, count), each at least `grain` long but the
  /// last, and returns when all are done. The ranges are fixed by `count`, `grain` and `size()`; which thread
  /// runs which is not, and a thread may run several. The first exception of a body is thrown again here,
  /// after all ranges have ended.
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    run(
        count, grain,
        [](void* context, std::int64_t begin, std::int64_t end) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end);
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

  /// The pool that host launches use. STEPGRAPH_THREADS in the environment sets its size; made at first use.
  static thread_pool& shared();

 private:
  using range_body = void (*)(void*, std::int64_t, std::int64_t);
  void run(std::int64_t count, std::int64_t grain, range_body body, void* context);
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace stepgraph
