#pragma once

#include <memory>

#include "bench/replay/models.hpp"

namespace stepgraph::bench {

/// A DeepSeek-like sparse step, captured at `width` tokens at most: the metadata of sparse attention and the index
/// kernels are the library's own; attention is a stand-in that reads the bytes of the kept tokens' latents and
/// computes nothing; matrix products, the indexer's choice and the output head are left out.
std::unique_ptr<replay_model> make_sparse_model(const model_shape& shape, std::int64_t width);

}  // namespace stepgraph::bench
