#pragma once

#include <filesystem>

#include "examples/llama/gguf.hpp"
#include "examples/llama/llama_weights.hpp"

namespace stepgraph::llama {

/// The configuration of the Llama model in `file`. Throws invalid_argument for another architecture, a
/// missing or contradictory number, and features that the forward pass does not have (scaled rotary
/// embedding, experts, biases).
llama_config read_llama_config(const gguf_file& file);

/// The weights in `file`, matrices as views of its bytes, which `storage` keeps alive if `file` mapped them.
/// Throws invalid_argument if a tensor is missing, of another shape or of a type that `tensor_type` does not
/// have, or if the file holds a tensor that would go unread.
llama_weights load_llama_weights(const gguf_file& file);

/// Opens the GGUF file at `path` and loads its weights.
llama_weights load_llama_weights(const std::filesystem::path& path);

}  // namespace stepgraph::llama
