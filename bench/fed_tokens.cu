#include "bench/fed_tokens.hpp"

#include <numeric>
#include <vector>

#include "examples/llama/fuse_inputs.cuh"

namespace stepgraph::bench {

fed_tokens::fed_tokens(device where, int rows, int vocab_size)
    : rows_(rows),
      embedding_(device_memory(where), sizeof(bf16) * std::size_t(vocab_size) * hidden_size),
      tokens_(device_memory(where), sizeof(std::int32_t) * rows),
      target_ids_(device_memory(where), sizeof(std::int32_t) * vocab_size),
      ranked_(device_memory(where), sizeof(std::uint64_t) * rows),
      hidden_in_(device_memory(where), sizeof(float) * rows * states * hidden_size),
      hidden_row_(device_memory(where), sizeof(std::int32_t) * rows),
      live_(device_memory(where), sizeof(std::int32_t)),
      norms_(device_memory(where), sizeof(float) * (states + 1) * hidden_size),
      pair_(device_memory(where), sizeof(bf16) * rows * (states + 1) * hidden_size),
      residual_(device_memory(where), sizeof(float) * rows * hidden_size) {
  std::vector<std::int32_t> tokens(rows), rows_in_turn(rows), ids(vocab_size);
  std::vector<std::uint64_t> ranked(rows);
  std::iota(rows_in_turn.begin(), rows_in_turn.end(), 0);
  std::iota(ids.begin(), ids.end(), 0);
  for (int row = 0; row < rows; ++row) {
    tokens[row] = static_cast<std::int32_t>((row + 1LL) * 7919 % vocab_size);
    ranked[row] = ranked_logit(1.0f, tokens[row]);
  }
  const stream loading(where);
  const auto put = [&](const buffer& to, const auto& values) {
    loading.ref().copy(to.data(), values.data(), to.bytes());
  };
  put(tokens_, tokens);
  put(target_ids_, ids);
  put(ranked_, ranked);
  put(hidden_row_, rows_in_turn);
  put(live_, std::vector<std::int32_t>{rows});
  for (const buffer* each : {&embedding_, &hidden_in_, &norms_})
    loading.ref().fill(each->data(), 0, each->bytes());
  loading.synchronize();
}

void fed_tokens::enqueue(stream_ref at, bool ranked) const {
  ranked_feed feed;
  if (ranked) feed = {ranked_.as<const std::uint64_t>(), target_ids_.as<const std::int32_t>()};
  launch<llama::fuse_inputs_params<bf16>>(at, "fuse_inputs", llama::fuse_inputs_kernel<bf16>, dim3(rows_),
                                          dim3(llama::threads),
                                          {.embedding = embedding_.as<const bf16>(),
                                           .token_ids = tokens_.as<const std::int32_t>(),
                                           .feed = feed,
                                           .hidden_in = hidden_in_.as<const float>(),
                                           .hidden_row = hidden_row_.as<const std::int32_t>(),
                                           .live_tokens = live_.as<const std::int32_t>(),
                                           .embedding_norm = norms_.as<const float>(),
                                           .hidden_norm = norms_.as<const float>() + hidden_size,
                                           .pair = pair_.as<bf16>(),
                                           .residual = residual_.as<float>(),
                                           .hidden_size = hidden_size,
                                           .states = states,
                                           .epsilon = 1e-5f});
}

}  // namespace stepgraph::bench
