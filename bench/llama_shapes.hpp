#pragma once

#include <span>
#include <string_view>

#include "examples/llama/llama_weights.hpp"

namespace stepgraph::bench {

/// A model shape by its name, and what a draft model beside it looks like.
struct model_shape {
  const char* name;
  llama::llama_config config;  // max_context is set by the run
  bool tied;                   // the output head is the embedding
  int sparse_topk = 0;         // not 0: the stand-in for sparse attention with an indexer
  bool is_sparse() const { return sparse_topk > 0; }
};

std::span<const model_shape> model_shapes();

/// Throws `invalid_argument` with the known names if there is none of this one.
const model_shape& model_named(std::string_view name);

/// The draft that goes with a shape: one layer of it and its head, as feature-level drafts are.
model_shape draft_of(const model_shape& shape);

}  // namespace stepgraph::bench
