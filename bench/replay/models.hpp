#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "bench/replay/step_environment.hpp"
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

/// The body of a step under measurement.
class replay_model {
 public:
  virtual ~replay_model() = default;
  virtual kv_layout layout() const = 0;
  virtual int vocab_size() const = 0;
  virtual std::size_t scratch_bytes(const step_key& key) const = 0;
  virtual void enqueue(const step_context& step, const step_environment& around) const = 0;
  /// Bytes that a step of `tokens` query tokens must move at least, each row `live` tokens long.
  virtual std::int64_t step_bytes(int rows, int tokens, std::int64_t live) const = 0;
};

/// Keys and values that a step reads and writes at least, all layers.
std::int64_t llama_kv_bytes(const kv_layout& kv, int rows, int tokens, std::int64_t live);

/// Bytes of device memory that the model's weights and tables take at `width` positions, within a few per cent.
std::int64_t model_bytes(const model_shape& shape, std::int64_t width, bool on_host);

/// Seeded synthetic weights: the same on every machine.
std::unique_ptr<replay_model> make_model(const model_shape& shape, std::int64_t width, device where,
                                         std::uint64_t seed);

}  // namespace stepgraph::bench
