#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph {

/// One piece of a row's cached tokens, [begin, end).
struct kv_split_chunk {
  std::int32_t row;
  std::int32_t begin;
  std::int32_t end;
  std::int32_t index;  // among the row's chunks
};

/// How attention shares a batch's cached tokens out, from device lengths. A row's chunks cover [0, len) in
/// order; all but its last are the same multiple of `tile`, and there are at most `max_splits` of them. Rows
/// of length 0 have none.
///
/// Without `batch_invariant` the chunks are as long as an even share of the batch's work asks, so that live
/// work spreads over `workers`; with it a row's chunks depend on its own length alone. The embedder owns all
/// memory; addresses and numbers are baked into a capture, contents are not.
struct kv_split_plan_params {
  row_lengths lengths{};
  std::int32_t tile = 0;        // tokens
  std::int32_t max_splits = 0;  // chunks of one row
  std::int32_t workers = 0;     // blocks that take chunks, multiprocessors say
  bool batch_invariant = false;
  std::int32_t capacity = 0;  // chunks in all; at least rows, and rows * max_splits where batch invariant
  kv_split_chunk* chunks = nullptr;   // out [capacity]; those past the count are not written
  std::int32_t* cu_chunks = nullptr;  // out [rows + 1]: a row's chunks; the last is the count
  fault_sink faults{};
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void kv_split_plan(stream_ref at, const kv_split_plan_params& params);

}  // namespace stepgraph
