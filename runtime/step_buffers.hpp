#pragma once

#include <cstdint>
#include <span>

#include "graphs/arena.hpp"
#include "kernels/sample/row_distribution.hpp"
#include "kernels/speculate/accept_result.hpp"
#include "kernels/speculate/commit.hpp"
#include "kernels/step/request_state.hpp"
#include "runtime/kv_cache.hpp"
#include "runtime/step_limits.hpp"

namespace stepgraph::detail {

/// How one round's inputs lie in a staging block: header, six numbers a row, tokens, parents, then joins and
/// patches, where the header says. The same on both sides of the copy. What a step of the draft reads depends
/// on the rows alone.
struct staging_layout {
  int rows;
  int tokens;
  bool tree = false;

  std::size_t requests() const { return sizeof(staged_header); }
  std::size_t query_counts() const { return requests() + 4ul * rows; }
  std::size_t token_starts() const { return query_counts() + 4ul * rows; }
  std::size_t following() const { return token_starts() + 4ul * rows; }
  std::size_t capacities() const { return following() + 4ul * rows; }
  std::size_t joins_of() const { return capacities() + 4ul * rows; }
  std::size_t token_ids() const { return joins_of() + 4ul * rows; }
  std::size_t parents() const { return token_ids() + 4ul * tokens; }
  std::size_t joins() const { return (parents() + (tree ? 4ul * tokens : 0) + 7) / 8 * 8; }
  std::size_t bytes() const {
    return joins() + sizeof(request_join) * rows + sizeof(page_patch) * max_patches();
  }
  /// Each row may end one page and each token may begin one.
  int max_patches() const { return rows + tokens; }
};

/// The vectors of a step's rows and tokens.
struct step_vectors {
  std::int32_t *query_counts, *seq_lens, *cu_seqlens_q, *cu_seqlens_k, *last_row, *cache_seqlens;  // by row
  std::int32_t *token_ids, *row_of, *positions, *causal_length, *out_cache_loc;                    // by token
};

/// All device memory of an executor, carved for the largest buckets and shared by every step.
struct step_buffers {
  // the round's vectors and page table: undefined before each round
  std::int32_t *live_rows, *requests, *row_status, *next_token;  // by row
  step_vectors target;
  std::int32_t* argmax;                                       // by token
  std::uint64_t* ranked;                                      // by token
  accept_result accepted;                                     // by row, of verify steps
  std::int32_t *wanted, *drafts, *draft_lines, *row_parents;  // by row, of verify steps
  std::int32_t* parents;                                      // by token, with trees
  std::uint64_t* ancestors;                                   // by token, with trees
  row_distribution* distributions;                            // by token, of sampled verify steps
  float* hidden;                                              // [tokens, hidden_size]
  std::int32_t* page_table;
  std::int64_t page_columns, page_table_stride;
  std::span<std::byte> scratch;

  // of the draft's steps: by token and row, or by step and row
  step_vectors draft;
  std::int32_t *hidden_row, *out_line, *drafting;
  std::int32_t *chain, *feed;      // [max steps, rows] d2, d3, ...; what the step after it is fed
  std::uint64_t* ranked_chain;     // likewise
  std::int32_t* chain_drawn;       // [1], or null where no step of the draft draws
  float* chain_hidden[2];          // [rows, hidden_size], in turn
  std::span<std::byte> undefined;  // the part of the step's block that holds all of the above
  std::byte* staging;
  float* probabilities;  // [probability_lines, vocabulary of the draft]
  std::int32_t probability_lines;

  // what lasts
  std::int32_t* fault_taken;
  std::int32_t* end_ids;
  kv_plane* planes;     // [2 * layers], with trees
  float* first_hidden;  // [requests + 1, hidden_size] of the draft, after its last draft_extend
  std::int32_t *live_pages, *live_tokens;  // by request, by page, where they and the KV cache are poisoned
  request_state state;
  kv_cache_view kv, draft_kv;
};

struct buffer_sizes {
  int rows;      // largest row bucket
  int tokens;    // largest token bucket
  int emitted;   // tokens a row may emit in one step
  int requests;  // lines of the request table
  std::int64_t page_columns;
  std::int64_t kv_pages;
  std::size_t scratch_bytes;
  bool own_requests;
  bool own_kv;
  bool trees;
  bool sampled;
  std::int32_t hidden_size;  // 0: no draft
  std::int32_t draft_vocab;  // 0: no sampled draft
  bool finishes;
  std::int32_t end_ids;
  bool poison_requests, poison_kv;
  std::size_t gap;  // bytes behind each carving, as canaries
};

/// Two blocks: what lasts, and what each round makes anew, which can be made again with other sizes.
struct blocks {
  arena lasting;
  arena step;
};

/// Counts both: the step's block first, then what lasts.
arena_plan plan_blocks(const kv_layout& layout, const kv_layout* draft_layout, int page_size,
                       const buffer_sizes& sizes);

/// Counts both, then allocates. Views of what is adopted stay null.
blocks carve(const kv_layout& layout, const kv_layout* draft_layout, int page_size, const buffer_sizes& sizes,
             memory_resource& memory, std::size_t budget, step_buffers& buffers);

/// The second block alone.
arena carve_step(const buffer_sizes& sizes, memory_resource& memory, std::size_t budget,
                 step_buffers& buffers);

}  // namespace stepgraph::detail
