#pragma once

#include "graphs/memory_resource.hpp"
#include "graphs/stream.hpp"

namespace stepgraph::bench {

/// The first kernel of the example's draft head, fed plain tokens or what the step before has ranked: what reading
/// ranked numbers costs where the tokens are used.
class fed_tokens {
 public:
  fed_tokens(device where, int rows, int vocab_size);

  void enqueue(stream_ref at, bool ranked) const;

 private:
  static constexpr int hidden_size = 576, states = 3;
  int rows_;
  buffer embedding_, tokens_, target_ids_, ranked_, hidden_in_, hidden_row_, live_, norms_, pair_, residual_;
};

}  // namespace stepgraph::bench
