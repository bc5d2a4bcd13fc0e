#pragma once

#include <cstdint>
#include <span>

#include "graphs/stream.hpp"
#include "kernels/metadata/token_inputs.hpp"

namespace stepgraph {

/// The inputs of a ragged verify step, packed: row r's node 0 is its last token, node j its draft j - 1, a
/// chain or a tree given by parents. A row's count is what the caller wants, less what its pages cannot hold;
/// a finished row, or one that wants none, sits the round out. A draft that outruns the pages or the context
/// is cut short (nodes come after their parents, so what is left of a tree is a tree); a row with no place
/// even for its last token sits out and is reported, `out_of_pages` or at the context's end `length_clamped`.
/// Vectors are written in full at every replay; dead rows and tokens get 0.
struct verify_inputs_params {
  const std::int32_t* wanted = nullptr;  // [rows] W, the last token included; clamped to [0, Emax], reported
  const std::int32_t* finished = nullptr;        // [requests] or null: not 0 once a request is finished
  const std::int32_t* token_capacity = nullptr;  // [requests] or null: tokens that the pages given can hold
  const std::int32_t* last_token = nullptr;      // [requests] the token emitted last, not in the cache yet
  const std::int32_t* drafts = nullptr;  // [rows, draft_stride] draft of node j at j - 1; null if Emax is 1
  std::int64_t draft_stride = 0;         // entries between rows
  const std::int32_t* parents =
      nullptr;                     // [rows, parent_stride] node of the same row, entry 0 unread; null: chains
  std::int64_t parent_stride = 0;  // entries between rows; 0: one tree for all
  std::int32_t vocab_size = 0;     // token ids outside [0, vocab_size) are reported and become 0

  std::int32_t* query_counts = nullptr;  // out [rows] E
  std::int32_t* token_ids = nullptr;     // out [tokens]
  std::int32_t* parent_of = nullptr;     // out [tokens], required for trees: parents as clamped; 0 for roots
  std::int32_t* depth = nullptr;         // out [tokens] or null; 0 for roots
  std::uint64_t* ancestors =
      nullptr;  // out [tokens] or null: bit i: node i is the node itself or an ancestor
  /// lengths.delta_by_row and query_counts must be the output above; seq_lens + delta are tokens before the
  /// step. In a tree `position` is base + depth.
  token_inputs_params inputs{};
};

/// Throws `invalid_argument` naming the node unless `parents` are a tree: node 0 the root with a negative
/// parent, every other after its parent, 64 nodes at most. For trees that the host can see, before they are
/// copied to a device.
void check_tree(std::span<const std::int32_t> parents);

/// Throws `invalid_argument` naming the field that cannot be.
void check(const verify_inputs_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void verify_inputs(stream_ref at, const verify_inputs_params& params);

}  // namespace stepgraph
