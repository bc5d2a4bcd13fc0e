#pragma once

#include "kernels/metadata/decode_metadata.hpp"

/// Other ways to keep decode metadata's cost near the live region, on the same inputs as stepgraph's own;
/// each is one kernel launched without programmatic overlap, as engines do.
namespace stepgraph::bench {

enum class guard_policy {
  full_width,    // every captured column is computed
  early_exit,    // a block for every 1,024 captured columns of a row, which ends if they are dead
  bounded_grid,  // 8,192 blocks in a loop over all captured column blocks
  block_a_row,   // a block walks its row's live columns
};
const char* to_string(guard_policy policy);

void decode_by(guard_policy policy, stream_ref at, const decode_metadata_params& params);

/// Other shapes of stepgraph's own kernel.
struct kernel_shape {
  int blocks_a_multiprocessor = 0;  // 0: as the driver chooses
  bool programmatic = true;         // launched programmatically
  bool early_trigger = false;       // lets the successor in before it waits for its predecessor
  bool large_heads = false;         // heads four times the driver's least
};
void decode_shaped(stream_ref at, const decode_metadata_params& params, const kernel_shape& shape);

/// Parts of stepgraph's own kernel, to see what each costs: heads of rows without help, and the bare chain of
/// loads (length and request, entry, store). Right only where rows are no longer than their heads.
void decode_heads_only(stream_ref at, const decode_metadata_params& params);
void decode_chain_only(stream_ref at, const decode_metadata_params& params);

/// stepgraph's own kernel with its guard compiled out: every row is taken to be `page_columns` long.
void decode_unguarded(stream_ref at, const decode_metadata_params& params);

/// A kernel of `blocks` blocks that does nothing, launched programmatically or not.
void empty_kernel(stream_ref at, int blocks, bool programmatic);

/// 16-byte copy of `bytes`, 8 blocks of 256 threads a multiprocessor: the bandwidth that heavy cases are held
/// against.
void plain_copy(stream_ref at, void* to, const void* from, std::int64_t bytes);

}  // namespace stepgraph::bench
