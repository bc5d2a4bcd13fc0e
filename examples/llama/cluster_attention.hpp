#pragma once

#include "graphs/stream.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::llama {

/// Attention of small steps, where latency is all that costs: a cluster of blocks shares a row's KV head, merges in
/// shared memory, and fetches the keys and values of earlier steps before it waits for its predecessor. So in its graph
/// nothing but earlier work may write what it reads, queries and this step's keys and values apart: a kernel that
/// every one before depends on must have let no successor start before its own wait (embed does that).
///
/// bfloat16, head size 64 or 128, chains alone, without logit cap, window, sink or log-sum-exp, on a GPU
/// with clusters. Dead tokens' outputs are left alone. A row's result has the same bits whatever the batch, for one
/// cluster size.
///
/// True if it serves `params` (pointers are not looked at) of which no row has more than `row_tokens` tokens, and
/// does so better than `paged_attention`.
bool has_cluster_attention(device where, const paged_attention_params& params, int row_tokens);

/// Enqueues the op: one launch. `params` as has_cluster_attention wants them, with the rows' lengths.
void cluster_attention(stream_ref at, const paged_attention_params& params, int row_tokens);

}  // namespace stepgraph::llama
