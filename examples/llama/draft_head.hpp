#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "examples/llama/draft_model.hpp"
#include "examples/llama/llama_weights.hpp"
#include "examples/llama/safetensors.hpp"

namespace stepgraph::llama {

/// A feature-level draft: one decoder layer whose input pairs a token's embedding with hidden states, and which
/// chooses among a part of the target's tokens with the target's own output matrix.
struct draft_head_weights {
  llama_weights
      model;  // one layer, `fusion` set; the embedding is the target's, the output its draft tokens' rows
  std::vector<std::int32_t> target_ids;  // [model.config.vocab_size] token of the target, ascending
  int target_vocab_size = 0;
  // layers of the target whose states it is fed, ascending; none: the last. The target must be made with them
  // (`llama_config::taps`), and the executor's hidden_size be the draft's (`draft_shape::hidden_size`)
  std::vector<int> taps;
};

/// The head in `file`, as examples/train_draft/README.md describes it, for `target`, whose embedding it uses. Throws
/// invalid_argument if the file is of another format, made for another hidden size or vocabulary, or if a tensor is
/// missing, unknown, of another shape or type.
draft_head_weights load_draft_head(const safetensors_file& file, const llama_weights& target);
draft_head_weights load_draft_head(const std::filesystem::path& path, const llama_weights& target);

/// The head as the body of a draft's steps: float32 activations and KV cache on the host, bfloat16 ones (float32
/// where the head's matrices are) on a GPU.
std::unique_ptr<draft_model> make_draft_head(device where, const draft_head_weights& weights);

}  // namespace stepgraph::llama
