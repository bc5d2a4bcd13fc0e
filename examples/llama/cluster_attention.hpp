#pragma once

#include "graphs/stream.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::llama {

/// What may be varied to measure and to test it.
struct cluster_options {
  int long_tiles = 16;  // 64-token tiles for each block of a row's cluster, above which a row is long
  int blocks = 0;       // that share a step with a long row if the rows' own are fewer; 0: what the GPU holds
};

/// Attention of small steps, where latency is all that costs: a cluster of blocks shares a row's KV head,
/// merges in shared memory, and fetches the keys and values of earlier steps before it waits for its
/// predecessor. So only work that is complete by then may have written lengths, page table and older cache:
/// before the first layer the chain needs a kernel that lets no successor start before its own wait (`embed`
/// is one; successor.cuh).
///
/// If a row is too long for its own blocks, all blocks take even shares of all rows' tiles as split attention
/// does, by its code. Which of the two it is each launch reads from the lengths, whatever the captured width.
///
/// bfloat16, head size 64 (models with larger heads wait for memory, not for latency), chains alone, without
/// logit cap, window, sink or log-sum-exp, on a GPU with clusters. Dead tokens' outputs are left alone. Where no
/// row is long, a row's result has the same bits whatever the batch, for one cluster size.
///
/// True if it serves `params` (pointers are not looked at) of which no row has more than `row_tokens` tokens,
/// and does so better than `paged_attention`: up to as many rows as the GPU holds blocks for.
bool has_cluster_attention(device where, const paged_attention_params& params, int row_tokens);

/// Bytes of `params.workspace` that a table with room for a long row asks for; zeroed once before the first
/// use, left to the op afterwards, shared by launches that follow each other in a stream, those of
/// `paged_attention` too.
std::size_t cluster_attention_workspace_bytes(device where);

/// Enqueues the op: one launch. `params` as has_cluster_attention wants them, with the rows' lengths and a
/// workspace. Throws `invalid_argument` where it does not serve them or the workspace is too small.
void cluster_attention(stream_ref at, const paged_attention_params& params, int row_tokens,
                       const cluster_options& options = {});

}  // namespace stepgraph::llama
