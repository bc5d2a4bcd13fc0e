#pragma once

#include <cstdint>
#include <span>

#include "graphs/arena.hpp"
#include "kernels/step/step_epilogue.hpp"
#include "runtime/kv_cache.hpp"
#include "runtime/step_limits.hpp"

namespace stepgraph::detail {

/// How one step's inputs lie in a staging block of a bucket: header, then requests, counts, lengths [rows],
/// tokens [tokens], patches. The same on both sides of the copy.
struct staging_layout {
  int rows;
  int tokens;

  std::size_t requests() const { return sizeof(staged_header); }
  std::size_t query_counts() const { return requests() + 4ul * rows; }
  std::size_t lengths() const { return query_counts() + 4ul * rows; }
  std::size_t token_ids() const { return lengths() + 4ul * rows; }
  std::size_t patches() const { return token_ids() + 4ul * tokens; }
  /// Each row may end one page and each token may begin one.
  int max_patches() const { return rows + tokens; }
  std::size_t bytes() const { return patches() + sizeof(page_patch) * max_patches(); }
};

/// All device memory of an executor, carved once for the largest buckets and shared by every step.
struct step_buffers {
  // the step's vectors and page table: undefined before each step
  std::int32_t *live_rows, *requests, *query_counts, *seq_lens, *row_status, *cu_seqlens_q, *cu_seqlens_k,
      *last_row, *cache_seqlens, *next_token;                                    // by row
  std::int32_t *token_ids, *row_of, *positions, *causal_length, *out_cache_loc;  // by token
  std::int32_t* page_table;
  std::int64_t page_columns, page_table_stride;
  std::span<std::byte> scratch;
  std::span<std::byte> undefined;  // the block that holds all of the above

  // what lives from step to step
  std::byte* staging;
  std::int32_t* fault_taken;
  request_state state;
  kv_cache_view kv;
};

struct buffer_sizes {
  int rows;    // largest row bucket
  int tokens;  // largest token bucket
  std::int64_t page_columns;
  std::int64_t kv_pages;
  std::size_t scratch_bytes;
  bool own_requests;
  bool own_kv;
};

/// Counts, then allocates. Views of what is adopted stay null.
arena carve(const step_limits& limits, const kv_layout& layout, const buffer_sizes& sizes,
            memory_resource& memory, std::size_t budget, step_buffers& buffers);

}  // namespace stepgraph::detail
