#pragma once

#include <atomic>
#include <bit>
#include <map>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "kernels/speculate/accept_result.hpp"
#include "kernels/step/step_rows.hpp"
#include "runtime/step_buffers.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph {

/// Refuses a call while another is inside.
class one_thread {
 public:
  explicit one_thread(std::atomic<bool>& busy) : busy_(busy) {
    STEPGRAPH_EXPECTS(!busy_.exchange(true, std::memory_order_acquire),
                      "step_executor: called while a call is inside, from a second thread or from a body");
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
    event results;               // the target step is done
    event extended;              // and draft_extend after it, where there is one
    bool extends = false;        // there is
    bool late = false;           // timed: the round before had ended when this one's last launch returned
    std::uint64_t sequence = 0;  // of the round that used it last, 0: none
    int rows = 0;                // of that round
    std::vector<request_id> requests;  // of those rows
    std::vector<line_mark> marks;      // likewise
    std::vector<line_growth> growth;   // what staging it changed, to be taken back if it is not launched
    std::vector<step_key> timed;       // steps whose times are still to be read

    // note: a mark between two graphs costs the device time, so where one serves there is one
    const event& done() const { return extends ? extended : results; }
  };
  /// A round's steps, in order, and what the host must give for it.
  struct plan {
    std::optional<step_key> before;  // draft_decode
    step_key target;
    std::optional<step_key> after;  // draft_extend
    std::int64_t pages = 0;         // that the round takes from the pool
  };

  std::uint64_t id = next_executor_id();  // tells tickets of this executor from another's
  device where;
  step_limits limits;
  std::vector<step_definition> steps;
  executor_options options;
  bucket_policy row_buckets, token_buckets;
  std::optional<stepgraph::stream> own_stream;
  std::optional<stepgraph::stream> fence_stream;  // a branch of each graph, with read_fence
  std::optional<event> fence_forked, fence_joined;
  stream_ref stream;
  int page_shift;                         // log2 of the page size
  std::optional<request_table> requests;  // none if adopted
  page_source source;
  detail::step_buffers buffers{};
  detail::blocks blocks;
  arena pinned_block;            // what lasts
  arena ring_block;              // a slot for each round in flight
  std::span<std::byte> staging;  // [in_flight][staging_bytes], pinned
  std::size_t staging_bytes = 0;
  static constexpr std::size_t direct_bytes = 32 << 10;  // most that goes by direct_staging
  std::vector<std::byte> direct_staging;  // [in_flight][direct_bytes], pageable: small copies go by it
  std::span<row_result> results;          // [in_flight][rows], pinned
  std::span<std::int32_t> result_tokens;  // [in_flight][rows][max_draft_tokens + 1], pinned
  std::span<std::int64_t> times;          // [in_flight][clock_marks], pinned; empty unless asked for
  std::span<std::int32_t> live_pages;     // [in_flight][requests], pinned; for poison
  fault_record* faults = nullptr;         // pinned
  std::uint64_t* read_fence = nullptr;    // pinned: the round that has read the request table last
  std::vector<carving_info> carvings;     // of both blocks
  std::vector<slot> slots;
  std::uint64_t sequence = 0;           // of the step launched last
  std::uint64_t completed = 0;          // all steps up to this one are known to be done
  std::vector<std::uint64_t> named_in;  // [requests] number of the check that saw the request last
  std::uint64_t checks = 0;
  std::map<step_key, captured> captures;
  std::vector<capture_report> reports;
  executor_statistics statistics;
  std::atomic<bool> busy = false;

  // the clock's marks of a round: draft_decode, target step, draft_extend; of each its begin, nodes and end
  static constexpr int part_marks = 72, clock_marks = 3 * part_marks;
  int next_mark = 0;  // of the step being enqueued

  static int part_of(step_kind kind) {
    return kind == step_kind::draft_decode ? 0 : kind == step_kind::draft_extend ? 2 : 1;
  }

  std::int32_t end_id_count() const {
    return options.finish ? static_cast<std::int32_t>(options.finish->end_ids.size()) : 0;
  }

  static std::uint64_t next_executor_id() {
    static std::atomic<std::uint64_t> last = 0;
    return ++last;
  }

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

  ~state() {
    if (blocks.lasting.bytes() == 0) return;  // never allocated: nothing is in flight
    try {
      stream.synchronize();  // steps in flight use what is about to be freed
    } catch (...) {          // a destructor never throws; after a lost device nothing is in flight
    }
  }

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
  detail::buffer_sizes sizes() const;
  void allocate(const kv_layout& layout);
  std::vector<carving_info> list_carvings(const arena& step) const;
  void make_ring(const detail::buffer_sizes& sizes);
  void clear(const kv_layout& layout);
  void clear_step();
  void stage_nothing();
  memory_resource& memory() const { return options.memory ? *options.memory : device_memory(where); }

  // executor_poison.cpp: what is undefined becomes wild
  static constexpr unsigned char wild = 0x7f;     // as an index far outside every table, as a float 3.4e38
  static constexpr unsigned char wild_kv = 0xff;  // NaN in every element type
  void poison_host(int index);
  void poison(int index);
  /// Lines of the request table, where the executor knows who has them.
  bool poisons_requests() const { return options.poison && !options.requests; }
  /// The KV cache, where it knows whose every page is.
  bool poisons_kv() const { return poisons_requests() && !options.kv_cache; }

  // executor_canaries.cpp: with poison, what lies behind each carving
  static constexpr std::size_t canary_bytes = 64;
  bool in_host_memory(const arena& block) const { return &block == &ring_block || &block == &pinned_block; }
  unsigned char canary_of(const arena& block) const;
  void mark_canaries(const arena& block);
  std::optional<std::string> first_overrun(const arena& block) const;

  // executor_capture.cpp: what is captured
  const step_definition& definition(step_kind kind, int variant) const;
  std::vector<int> token_sizes(step_kind kind, int rows) const;
  std::vector<int> step_counts(step_kind kind) const;
  step_key key_for(step_kind kind, int rows, int tokens, int variant) const;
  void capture_one(const step_key& key, const step_definition& step);
  std::size_t held_bytes() const;
  void require_executables_fit() const;
  void drop_captures(std::size_t first) noexcept;

  // executor_enqueue.cpp, executor_draft.cpp: one step, captured or eager, by the same calls
  void enqueue(const step_key& key, const step_definition& step);
  void enqueue_target(const step_key& key, const step_definition& step);
  void enqueue_epilogue(const step_key& key, const step_definition& step);
  void enqueue_draft_extend(const step_key& key, const step_definition& step);
  void enqueue_draft_decode(const step_key& key, const step_definition& step);
  step_context context(const step_key& key, const step_definition& step);
  step_context draft_context(const step_key& key, const step_definition& step);
  step_rows_params staged_rows(const step_key& key, std::int32_t* query_counts);
  row_lengths lengths(const step_key& key, std::int32_t* seq_lens, std::int32_t* delta);
  verify_view verified(const step_key& key, bool tree);
  void mark_clock(const step_key& key, int mark);
  void mark_node(const step_key& key, const char* name);
  const std::int32_t* staged(std::size_t offset) const {
    return reinterpret_cast<const std::int32_t*>(buffers.staging + offset);
  }
  const staged_header* header() const { return reinterpret_cast<const staged_header*>(buffers.staging); }

  void enqueue_page_table(const detail::step_vectors& own, const row_lengths& length,
                          const fault_sink& faults);
  void enqueue_read_fence(step_kind kind);
  void join_read_fence();

  // executor_recapture.cpp
  void settle_all();

  // executor_plan.cpp: what the host does for one round
  plan check_round(const step_round& round);
  void check_row(const step_round& round, const step_row& row, bool tree);
  bool reclaim(std::int64_t pages_needed);
  std::optional<int> take_slot(when_full full);
  std::optional<int> admit(const plan& wanted, when_full full);
  int slot_of(step_ticket ticket) const;

  // executor_stage.cpp: the copy, and what is remembered of it
  void stage(const plan& wanted, const step_round& round, int slot);
  template <class Launch>
  step_ticket run(const plan& wanted, const step_round& round, int slot, Launch&& launch);
  void count(const plan& wanted, std::span<const step_row> rows);
  void read_times(slot& used);
};

/// Stages the rows, runs `launch` for each step, and notes the round. If one throws, no request has changed: pages
/// are given back behind this round's fence, for part of it may be under way.
template <class Launch>
step_ticket step_executor::state::run(const plan& wanted, const step_round& round, int index,
                                      Launch&& launch) {
  detail::refuse_in_capture("a step");
  STEPGRAPH_EXPECTS(!stream.is_capturing(),
                    "step_executor: a step cannot be launched while its stream captures");
  slot& used = slots[index];
  used.sequence = ++sequence;
  used.extends = wanted.after.has_value();
  try {
    stage(wanted, round, index);
    if (wanted.before) launch(*wanted.before);
    launch(wanted.target);
    used.results.record(stream);
    if (wanted.after) {
      launch(*wanted.after);
      used.extended.record(stream);
    }
  } catch (...) {
    used.rows = 0;
    if (requests)
      for (const line_growth& each : used.growth) requests->shrink(each, sequence);
    try {
      used.results.record(stream);
      used.extended.record(stream);
    } catch (...) {  // a lost device: the first cause is the one to tell
    }
    throw;
  }
  // read, not waited for: so that a gap between the two rounds is known not to be for the host
  if (!times.empty())
    used.late = slots.size() == 1 || slots[(index + slots.size() - 1) % slots.size()].done().query();
  used.rows = static_cast<int>(round.rows.size());
  used.requests.clear();
  used.marks.clear();
  for (const step_row& row : round.rows) {
    used.requests.push_back(row.request);
    if (requests) used.marks.push_back(requests->note_step(row.request, row.tokens));
  }
  if (!times.empty()) {
    used.timed.clear();
    for (const auto& key : {wanted.before, std::optional(wanted.target), wanted.after})
      if (key) used.timed.push_back(*key);
  }
  return {.executor = id, .sequence = sequence};
}

}  // namespace stepgraph
