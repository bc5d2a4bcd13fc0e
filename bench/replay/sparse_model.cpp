#include "bench/replay/sparse_model.hpp"

#include <algorithm>

#include "bench/replay/device_work.hpp"
#include "graphs/error.hpp"
#include "kernels/metadata/dsa_metadata.hpp"

namespace stepgraph::bench {
namespace {

class sparse_model final : public replay_model {
 public:
  explicit sparse_model(const model_shape& shape) : config_(shape.config), topk_(shape.sparse_topk) {}

  /// A token's latent lies half in the keys, half in the values.
  kv_layout layout() const override {
    return {.type = element_type::bf16,
            .layers = config_.layers,
            .kv_heads = 1,
            .head_size = config_.head_size / 2};
  }
  int vocab_size() const override { return config_.vocab_size; }
  std::size_t scratch_bytes(const step_key& key) const override { return place(nullptr, key).bytes; }

  void enqueue(const step_context& step, const step_environment& around) const override {
    const scratch s = place(step.scratch.data(), step.key);
    const step_key& key = step.key;
    dsa_metadata(
        step.stream,
        {.lengths = around.lengths(step),
         .requests = step.requests,
         .source = around.source,
         .query = {.counts = step.query_counts, .max_count = around.max_query_count, .tokens = key.tokens},
         .topk = topk_,
         .cache_seqlens = s.cache_seqlens,
         .cu_seqlens_k = s.cu_seqlens_k,
         .cu_seqlens_q = s.cu_seqlens_q,
         .row_of = s.row_of,
         .expanded = s.expanded,
         .dsa_cache_seqlens = s.dsa_lengths,
         .dsa_cu_seqlens_k = s.dsa_cu_lengths,
         .faults = step.faults});
    for (int layer = 0; layer < config_.layers; ++layer)
      for (const void* half : {step.kv->layers[layer].keys, step.kv->layers[layer].values})
        gather_attention_stand_in(step.stream,
                                  {.cache = half,
                                   .slots = around.topk_indices,
                                   .tokens = key.tokens,
                                   .topk = topk_,
                                   .line_bytes = config_.head_size,  // half of a latent, 2 bytes each
                                   .sink = s.sink});
  }

  std::int64_t step_bytes(int, int tokens, std::int64_t live) const override {
    return tokens * std::min<std::int64_t>(topk_, live) * config_.layers * config_.head_size * 2;
  }

 private:
  struct scratch {
    std::int32_t *cache_seqlens, *cu_seqlens_k, *cu_seqlens_q, *row_of, *expanded, *dsa_lengths,
        *dsa_cu_lengths;
    std::uint32_t* sink;
    std::size_t bytes;
  };
  static scratch place(std::byte* at, const step_key& key) {
    scratch s{};
    const auto take = [&]<class T>(T*& part, std::size_t count) {
      part = reinterpret_cast<T*>(at + s.bytes);
      s.bytes += (count * sizeof(T) + 255) / 256 * 256;
    };
    take(s.cache_seqlens, key.rows);
    take(s.cu_seqlens_k, key.rows + 1);
    take(s.cu_seqlens_q, key.rows + 1);
    take(s.row_of, key.tokens);
    take(s.expanded, key.tokens);
    take(s.dsa_lengths, key.tokens);
    take(s.dsa_cu_lengths, key.tokens + 1);
    take(s.sink, 1);
    return s;
  }

  llama::llama_config config_;
  int topk_;
};

}  // namespace

std::unique_ptr<replay_model> make_sparse_model(const model_shape& shape, device, std::uint64_t) {
  return std::make_unique<sparse_model>(shape);
}

}  // namespace stepgraph::bench
