#pragma once

#include <atomic>
#include <bit>
#include <map>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "runtime/step_buffers.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph {

/// Refuses a second thread while the first is inside.
class one_thread {
 public:
  explicit one_thread(std::atomic<bool>& busy) : busy_(busy) {
    STEPGRAPH_EXPECTS(!busy_.exchange(true, std::memory_order_acquire),
                      "step_executor: called from a second thread while the first is inside");
  }
  ~one_thread() { busy_.store(false, std::memory_order_release); }
  one_thread(const one_thread&) = delete;
  one_thread& operator=(const one_thread&) = delete;

 private:
  std::atomic<bool>& busy_;
};

struct step_executor::state {
  struct captured {
    graph_exec exec;
    std::size_t statistics;  // index among the buckets' statistics
  };
  /// One staging buffer and its slot of the result ring.
  struct slot {
    event done;
    std::uint64_t sequence = 0;  // of the step that used it last, 0: none
  };

  device where;
  step_limits limits;
  std::vector<step_definition> steps;
  executor_options options;
  bucket_policy row_buckets, token_buckets;
  std::optional<stepgraph::stream> own_stream;
  stream_ref stream;
  int page_shift;                         // log2 of the page size
  std::optional<request_table> requests;  // none if adopted
  page_source source;
  detail::step_buffers buffers{};
  arena device_block;
  arena pinned_block;
  std::span<std::byte> staging;  // [in_flight][staging_bytes], pinned
  std::size_t staging_bytes = 0;
  std::span<row_result> results;   // [in_flight][rows], pinned
  fault_record* faults = nullptr;  // pinned
  std::vector<slot> slots;
  std::uint64_t sequence = 0;           // of the step launched last
  std::uint64_t completed = 0;          // all steps up to this one are known to be done
  std::vector<std::uint64_t> named_in;  // [requests] number of the check that saw the request last
  std::uint64_t checks = 0;
  std::map<step_key, captured> captures;
  std::vector<capture_report> reports;
  executor_statistics statistics;
  std::atomic<bool> busy = false;

  state(device where, const step_limits& limits, std::vector<step_definition> steps, executor_options options)
      : where(where),
        limits(limits),
        steps(std::move(steps)),
        options(std::move(options)),
        row_buckets(this->options.row_buckets.value_or(bucket_policy::powers_of_two(limits.max_rows))),
        token_buckets(
            this->options.token_buckets.value_or(bucket_policy::powers_of_two(limits.max_step_tokens))),
        stream(make_stream()),
        page_shift(std::countr_zero(static_cast<unsigned>(limits.page_size))) {}

  stream_ref make_stream() {
    if (options.stream) return *options.stream;
    own_stream.emplace(where);
    return own_stream->ref();
  }

  fault_sink sink() {
    return {.record = faults, .taken = buffers.fault_taken, .row_status = buffers.row_status};
  }

  row_result* results_of(int slot) { return results.data() + std::size_t(slot) * row_buckets.largest(); }

  // executor_memory.cpp: everything is carved, and filled once
  void allocate(const kv_layout& layout);
  void poison();

  // executor_capture.cpp: one step, captured or eager, by the same calls
  const step_definition& definition(step_kind kind, int variant) const;
  step_key key_for(step_kind kind, int rows, int tokens, int variant) const;
  void enqueue(const step_key& key, const step_definition& step);
  step_context context(const step_key& key);
  void capture_one(const step_key& key, const step_definition& step);

  // executor_plan.cpp: what the host does for one step
  std::int64_t check_rows(step_kind kind, std::span<const step_row> rows);
  bool reclaim(std::int64_t pages_needed);
  std::optional<int> take_slot(when_full full);
  std::optional<int> admit(step_kind kind, std::span<const step_row> rows, when_full full);
  void stage(const step_key& key, std::span<const step_row> rows, int slot);
  step_ticket finish(const step_key& key, std::span<const step_row> rows, int slot, bool eager);
  void count(bucket_statistics& counted, const step_key& key, std::span<const step_row> rows);
};

}  // namespace stepgraph
