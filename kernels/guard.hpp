#pragma once

#include <cstdint>

#include "graphs/guard_off.hpp"

#if defined(__CUDACC__)
#define STEPGRAPH_HD __host__ __device__ __forceinline__
#else
#define STEPGRAPH_HD inline
#endif

// unrolls the loop that follows in device code; the host compiler decides for itself
#if defined(__CUDA_ARCH__)
#define STEPGRAPH_UNROLL _Pragma("unroll")
#else
#define STEPGRAPH_UNROLL
#endif

/// The live region: which rows, tokens and columns of a step's buffers exist at all, read from device memory,
/// and how a value that does not fit is reported. Everything outside is undefined and is neither read nor
/// written.
namespace stepgraph {

/// What became of a row. The first offence of a step stays.
enum class row_status : std::int32_t {
  ok = 0,
  length_clamped = 1,        // a length outside [0, cap]
  query_count_clamped = 2,   // E outside [0, Emax], or tokens past the token bucket
  request_out_of_range = 3,  // a request index outside its table
  slot_out_of_range = 4,     // a slot or page entry that is negative or outside pool or map; value: the entry
  token_out_of_range = 5,    // a token id outside the vocabulary
  nan_logits = 6,            // a NaN among the row's logits
  live_rows_clamped = 7,     // n outside [0, B]
  no_allowed_token = 20,     // a mask that allows no token
  nan_probabilities = 21,    // a draft's probabilities hold a NaN or a negative number
  not_a_tree = 22,           // a node whose parent does not come before it
  out_of_pages = 23,         // the pages given hold no further token of the row
  capacity_exceeded = 8,     // more entries than an output holds; those past it are dropped
  start_clamped = 9,         // a start outside [0, len]
  top_k_out_of_range = 30,   // a top-k index past its table
  window_not_gathered = 31,  // a window that begins before the row's gathered tokens
};

/// Which op reported.
enum class op_id : std::int32_t {
  none = 0,
  step_prologue = 1,
  token_inputs = 2,
  decode_metadata = 3,
  paged_attention = 4,
  greedy_sample = 5,
  step_epilogue = 6,
  // metadata
  draft_steps_metadata = 20,
  dsa_metadata = 21,
  compressed_metadata = 22,
  spec_page_table = 23,
  kv_indices = 24,
  unified_kv_indices = 25,
  kv_split_plan = 26,
  // sampling and speculation
  sample_tokens = 40,
  verify_inputs = 41,
  greedy_accept = 42,
  rejection_accept = 43,
  commit_slots = 44,
  commit_kv = 45,
  finish_rows = 46,
  draft_extend_inputs = 47,
  // sparse attention
  set_k_and_s = 60,
  get_k_and_s = 61,
  top_k_to_slots = 62,
  combine_top_k_and_window = 63,
  window_token_ids = 64,
  embedder = 1000,  // an embedder's own kernels report from here on
};

const char* to_string(row_status status) noexcept;
const char* to_string(op_id op) noexcept;

/// The first fault since the last reset. Lies in host-visible memory; `status` is written last.
struct fault_record {
  std::int64_t value;   // the offending number
  std::int32_t op;      // op_id
  std::int32_t row;     // row of the step, or token where the op works by token
  std::int32_t status;  // row_status, 0 while nothing was reported
  std::int32_t reserved;
};

/// Where an op reports. All null: faults are clamped in silence (kernel-level users).
struct fault_sink {
  fault_record* record = nullptr;  // host-visible, or null
  std::int32_t* taken = nullptr;   // device word that lets one reporter through, or null exactly if record is
  std::int32_t* row_status = nullptr;  // [rows], or null

  STEPGRAPH_HD void report(op_id op, int row, stepgraph::row_status status, std::int64_t value) const {
#if defined(__CUDA_ARCH__)
    if (row_status && row >= 0) atomicCAS(row_status + row, 0, static_cast<int>(status));
    if (record && atomicCAS(taken, 0, 1) == 0) {
      record->value = value;
      record->op = static_cast<std::int32_t>(op);
      record->row = row;
      __threadfence_system();
      *const_cast<volatile std::int32_t*>(&record->status) = static_cast<std::int32_t>(status);
    }
#else
    // host teams report from several threads
    std::int32_t none = 0;
    if (row_status && row >= 0)
      __atomic_compare_exchange_n(row_status + row, &none, static_cast<std::int32_t>(status), false,
                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    none = 0;
    if (record && __atomic_compare_exchange_n(taken, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
      record->value = value;
      record->op = static_cast<std::int32_t>(op);
      record->row = row;
      __atomic_store_n(&record->status, static_cast<std::int32_t>(status), __ATOMIC_RELEASE);
    }
#endif
  }
};

/// `value` moved into [low, high]; reported if it had to move.
STEPGRAPH_HD std::int64_t clamp_reported(std::int64_t value, std::int64_t low, std::int64_t high,
                                         const fault_sink& faults, op_id op, int row, row_status status) {
  if (value >= low && value <= high) return value;
  faults.report(op, row, status, value);
  return value < low ? low : high;
}

/// `n`, the live rows, from device memory, in [0, rows].
STEPGRAPH_HD int live_count(const std::int32_t* n, int rows) {
  const int live = *n;
  return live < 0 ? 0 : live > rows ? rows : live;
}

/// Tokens to pages: ceil(tokens / page size), for a page size of 2^shift.
STEPGRAPH_HD std::int64_t pages_of(std::int64_t tokens, int page_shift) {
  return (tokens + (std::int64_t{1} << page_shift) - 1) >> page_shift;
}

}  // namespace stepgraph
