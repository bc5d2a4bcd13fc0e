#pragma once

#include <memory>

#include "bench/replay/models.hpp"

namespace stepgraph::bench {

/// A Llama shape on a GPU by the example's layers, its weights filled where they lie.
std::unique_ptr<replay_model> make_cuda_llama_step(const model_shape& shape, device where,
                                                   std::uint64_t seed);

}  // namespace stepgraph::bench
