#pragma once

#include "kernels/attention/paged_attention.hpp"

namespace stepgraph::detail {

/// The host's loops over (token, KV head) pairs.
void paged_attention_host(const paged_attention_params& params);

/// The CUDA launch; defined in paged_attention.cu.
void paged_attention_cuda(stream_ref at, const paged_attention_params& params);

}  // namespace stepgraph::detail
