#pragma once

#include "kernels/attention/split_attention.hpp"

namespace stepgraph::bench {

/// `split_attention_cuda` with the guard compiled out of the same kernels: all lengths and page entries are
/// taken as they are, all of every KV tile as there, dead tokens are left. For bfloat16, head size 128 and up
/// to 32 packed query rows a tile, or warpgroups.
void attend_unguarded(stream_ref at, const paged_attention_params& p, const detail::split_options& options);

}  // namespace stepgraph::bench
