#include "graphs/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "graphs/error.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace stepgraph {
namespace {

// more ranges than threads, so that a thread which starts late or loses its core holds up little
constexpr std::int64_t ranges_per_thread = 4;
constexpr std::int64_t max_ranges = 0xffff;
constexpr auto spin_time = std::chrono::microseconds(100);
constexpr int pauses_per_look_at_clock = 16;

thread_local bool inside_body = false;

int available_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits for `ready` for `spin_time`; says whether it came. With more threads than cores it gives the core
/// away.
template <class Ready>
bool spin(bool share_core, Ready ready) {
  const auto end = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < pauses_per_look_at_clock; ++i) {
      if (ready()) return true;
      if (share_core) {
        std::this_thread::yield();
      } else {
        pause_core();
      }
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

int threads_from_environment() {
  const char* text = std::getenv("STEPGRAPH_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  int threads = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, fault] = std::from_chars(text, end, threads);
  STEPGRAPH_EXPECTS(fault == std::errc() && stop == end && threads >= 0,
                    "thread_pool: STEPGRAPH_THREADS must be a number of threads or 0, got \"", text, "\"");
  return threads;
}

}  // namespace

// note: a job's ranges are claimed by compare-and-swap on `ticket`, (epoch << 16 | ranges left), and the job
// is over when `pending` ranges have ended, whoever ran them. A worker that sleeps through a job is never
// waited for. It may read the job's fields late, while the next job writes them (so they are atomics), but
// its claim then fails, for the epoch has changed: fields of epoch e are only overwritten after every range
// of e was claimed and has ended.
struct thread_pool::state {
  int threads = 1;
  bool share_core = false;
  std::vector<std::thread> workers;

  alignas(64) std::atomic<std::uint64_t> ticket{0};
  alignas(64) std::atomic<std::int64_t> pending{0};
  alignas(64) std::atomic<range_body> body{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> ranges{0};

  alignas(64) std::mutex one_caller;
  std::mutex sleep;
  std::condition_variable job_there;
  std::condition_variable job_over;
  std::atomic<int> workers_asleep{0};
  std::atomic<bool> caller_asleep{false};
  std::atomic<bool> stopping{false};
  std::exception_ptr first_fault;  // guarded by `sleep`

  /// Runs ranges of the job of the moment until none is left to claim.
  void work() {
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    while ((seen & max_ranges) != 0) {
      const range_body call = body.load(std::memory_order_relaxed);
      void* const argument = context.load(std::memory_order_relaxed);
      const std::int64_t total = count.load(std::memory_order_relaxed);
      const std::int64_t parts = ranges.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      const std::int64_t part = parts - static_cast<std::int64_t>(seen & max_ranges);
      inside_body = true;
      try {
        call(argument, range_begin(total, parts, part), range_begin(total, parts, part + 1));
      } catch (...) {
        std::lock_guard lock(sleep);
        if (!first_fault) first_fault = std::current_exception();
      }
      inside_body = false;
      if (pending.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
          caller_asleep.load(std::memory_order_seq_cst)) {
        { std::lock_guard lock(sleep); }
        job_over.notify_one();
      }
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  /// What a worker thread does: a new epoch or the end wakes it.
  void serve() {
    while (!stopping.load(std::memory_order_acquire)) {
      work();
      const auto ready = [&] {
        return (ticket.load(std::memory_order_acquire) & max_ranges) != 0 ||
               stopping.load(std::memory_order_acquire);
      };
      if (spin(share_core, ready)) continue;
      std::unique_lock lock(sleep);
      workers_asleep.fetch_add(1, std::memory_order_seq_cst);
      job_there.wait(lock, [&] {
        return (ticket.load(std::memory_order_seq_cst) & max_ranges) != 0 || stopping.load();
      });
      workers_asleep.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  void stop() {
    stopping.store(true);
    { std::lock_guard lock(sleep); }
    job_there.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  /// The first range_begin(total, parts, parts) = total elements fall into `parts` ranges whose lengths
  /// differ by one at most.
  static std::int64_t range_begin(std::int64_t total, std::int64_t parts, std::int64_t part) {
    return total / parts * part + std::min(part, total % parts);
  }
};

thread_pool::thread_pool(int threads) : state_(std::make_unique<state>()) {
  STEPGRAPH_EXPECTS(threads >= 0, "thread_pool: the number of threads must not be negative, got ", threads);
  const int cores = available_cores();
  state_->threads = threads == 0 ? cores : threads;
  state_->share_core = state_->threads > cores;
  try {
    for (int i = 1; i < state_->threads; ++i) {
      state_->workers.emplace_back([pool = state_.get()] { pool->serve(); });
    }
  } catch (...) {
    state_->stop();
    throw;
  }
}

thread_pool::~thread_pool() {
  state_->stop();
}

int thread_pool::size() const noexcept {
  return state_->threads;
}

void thread_pool::run(std::int64_t count, std::int64_t grain, range_body body, void* context) {
  STEPGRAPH_EXPECTS(count >= 0 && grain > 0, "parallel_for: needs count >= 0 and grain > 0, got count ",
                    count, ", grain ", grain);
  if (count == 0) return;
  state& pool = *state_;
  const std::int64_t most = std::min(max_ranges, pool.threads * (pool.threads > 1 ? ranges_per_thread : 1));
  const std::int64_t ranges = std::clamp<std::int64_t>(count / grain, 1, most);
  if (ranges == 1) return body(context, 0, count);
  if (inside_body) {
    std::exception_ptr fault;
    for (std::int64_t i = 0; i < ranges; ++i) {
      try {
        body(context, state::range_begin(count, ranges, i), state::range_begin(count, ranges, i + 1));
      } catch (...) {
        if (!fault) fault = std::current_exception();
      }
    }
    if (fault) std::rethrow_exception(fault);
    return;
  }

  std::lock_guard one(pool.one_caller);
  pool.body.store(body, std::memory_order_relaxed);
  pool.context.store(context, std::memory_order_relaxed);
  pool.count.store(count, std::memory_order_relaxed);
  pool.ranges.store(ranges, std::memory_order_relaxed);
  pool.pending.store(ranges, std::memory_order_relaxed);
  const std::uint64_t epoch = (pool.ticket.load(std::memory_order_relaxed) >> 16) + 1;
  pool.ticket.store(epoch << 16 | static_cast<std::uint64_t>(ranges), std::memory_order_seq_cst);
  if (pool.workers_asleep.load(std::memory_order_seq_cst) != 0) {
    { std::lock_guard lock(pool.sleep); }
    pool.job_there.notify_all();
  }
  pool.work();
  const auto over = [&] { return pool.pending.load(std::memory_order_seq_cst) == 0; };
  if (!over() && !spin(pool.share_core, over)) {
    std::unique_lock lock(pool.sleep);
    pool.caller_asleep.store(true, std::memory_order_seq_cst);
    pool.job_over.wait(lock, over);
    pool.caller_asleep.store(false, std::memory_order_relaxed);
  }
  std::exception_ptr fault;
  {
    std::lock_guard lock(pool.sleep);
    fault = std::exchange(pool.first_fault, nullptr);
  }
  if (fault) std::rethrow_exception(fault);
}

thread_pool& thread_pool::shared() {
  static thread_pool pool(threads_from_environment());
  return pool;
}

}  // namespace stepgraph
