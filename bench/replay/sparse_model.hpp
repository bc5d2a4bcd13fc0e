#pragma once

#include <memory>

#include "bench/replay/models.hpp"

namespace stepgraph::bench {

/// A DeepSeek-like sparse step: the metadata of sparse attention and the index kernels are the library's own;
/// attention is a stand-in that reads the bytes of the kept tokens' latents and computes nothing; matrix products
/// are left out.
std::unique_ptr<replay_model> make_sparse_model(const model_shape& shape, device where, std::uint64_t seed);

}  // namespace stepgraph::bench
