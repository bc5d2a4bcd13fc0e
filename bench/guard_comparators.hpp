#pragma once

#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"

/// Other ways to keep the cost of metadata near the live region, on the same inputs as stepgraph's own and with
/// the same bodies; each is one kernel launched without programmatic overlap, as engines do.
namespace stepgraph::bench {

enum class guard_policy {
  full_width,    // every captured column is computed
  early_exit,    // a block for every 1,024 captured columns of a row, which ends if they are dead
  bounded_grid,  // 8,192 blocks in a loop over all captured column blocks
  block_a_row,   // a block walks its row's live columns
};
const char* to_string(guard_policy policy);

void decode_by(guard_policy policy, stream_ref at, const decode_metadata_params& params);
void dsa_by(guard_policy policy, stream_ref at, const dsa_metadata_params& params);
void compressed_by(guard_policy policy, stream_ref at, const compressed_metadata_params& params);
void draft_steps_by(guard_policy policy, stream_ref at, draft_steps_metadata_params params);

/// Other grids of stepgraph's own kernel; what is negative is as the driver chooses.
struct kernel_shape {
  int head_blocks = -1;      // that lines' parts may fill
  int helpers = -1;          // blocks
  int lets_in_late = -1;     // 0 or 1: the successor is let in as blocks end
  bool programmatic = true;  // launched programmatically
};
void decode_shaped(stream_ref at, const decode_metadata_params& params, const kernel_shape& shape);

/// The bare chain of loads (length and request, entry, store), a column a thread: no checks, no vectors.
void decode_chain_only(stream_ref at, const decode_metadata_params& params);

/// stepgraph's own kernel with its guard compiled out: every row is taken to be `page_columns` long.
void decode_unguarded(stream_ref at, const decode_metadata_params& params);

/// A kernel of `blocks` blocks that does nothing, launched programmatically or not.
void empty_kernel(stream_ref at, int blocks, bool programmatic);

/// 16-byte copy of `bytes`, 8 blocks of 256 threads a multiprocessor: the bandwidth that heavy cases are held
/// against.
void plain_copy(stream_ref at, void* to, const void* from, std::int64_t bytes);

}  // namespace stepgraph::bench
