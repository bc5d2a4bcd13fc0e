#pragma once

#include <cstdint>
#include <memory>

#include "bench/llama_shapes.hpp"
#include "bench/replay/step_environment.hpp"

namespace stepgraph::bench {

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
