#include "bench/replay/sparse_model.hpp"

#include <algorithm>

#include "bench/replay/device_work.hpp"
#include "graphs/error.hpp"
#include "kernels/metadata/dsa_metadata.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"

namespace stepgraph::bench {
namespace {

class sparse_model final : public replay_model {
 public:
  sparse_model(const model_shape& shape, std::int64_t width)
      : config_(shape.config), topk_(shape.sparse_topk), width_(width) {}

  /// A token's latent lies half in the keys, half in the values.
  kv_layout layout() const override {
    return {.type = element_type::bf16,
            .layers = config_.layers,
            .kv_heads = 1,
            .head_size = config_.head_size / 2};
  }
  int vocab_size() const override { return config_.vocab_size; }
  std::size_t scratch_bytes(const step_key& key) const override { return place(nullptr, key, width_).bytes; }

  void enqueue(const step_context& step, const step_environment& around) const override {
    const scratch s = place(step.scratch.data(), step.key, around.width);
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
         .page_table_1 = {.data = s.token_table, .stride = around.width, .columns = around.width},
         .faults = step.faults});
    for (int layer = 0; layer < config_.layers; ++layer) {
      move_index_keys(step, around, s, layer);
      top_k_to_slots(step.stream, {.live_tokens = s.cu_seqlens_q + key.rows,
                                   .tokens = key.tokens,
                                   .row_of = s.row_of,
                                   .indices = around.topk_indices,
                                   .index_stride = topk_,
                                   .index_columns = topk_,
                                   .topk = topk_,
                                   .table = s.token_table,
                                   .table_stride = around.width,
                                   .table_lines = key.rows,
                                   .table_columns = around.width,
                                   .slots = {.data = s.slots, .stride = topk_, .columns = topk_},
                                   .faults = step.faults});
      for (const void* half : {step.kv->layers[layer].keys, step.kv->layers[layer].values})
        gather_attention_stand_in(step.stream,
                                  {.cache = half,
                                   .slots = s.slots,
                                   .tokens = key.tokens,
                                   .topk = topk_,
                                   .line_bytes = config_.head_size,  // half of a latent, 2 bytes each
                                   .sink = s.sink});
    }
    sampling_stand_in(step, s);
  }

  std::int64_t step_bytes(int rows, int tokens, std::int64_t live) const override {
    const std::int64_t latents = tokens * std::min<std::int64_t>(topk_, live) * config_.head_size * 2;
    const std::int64_t index = 2 * rows * live * (index_k_cache::key_bytes + index_k_cache::scale_bytes);
    return config_.layers * (latents + index);
  }

 private:
  struct scratch {
    std::int32_t *cache_seqlens, *cu_seqlens_k, *cu_seqlens_q, *row_of, *expanded, *dsa_lengths,
        *dsa_cu_lengths;
    std::int32_t *slots, *token_table;
    std::uint32_t* sink;
    std::uint8_t* new_keys;
    float* new_scales;
    std::size_t bytes;
  };
  scratch place(std::byte* at, const step_key& key, std::int64_t width) const {
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
    take(s.slots, std::size_t(key.tokens) * topk_);
    take(s.new_keys, std::size_t(key.tokens) * index_k_cache::key_bytes);
    take(s.new_scales, key.tokens);
    take(s.token_table, key.rows * width);
    return s;
  }

  /// The new tokens' keys go into the indexer's cache, all live ones come out packed, as its logits read them.
  void move_index_keys(const step_context& step, const step_environment& around, const scratch& s,
                       int layer) const {
    const int shift = around.source.page_shift;
    const std::int64_t page_bytes = std::int64_t{index_k_cache::key_bytes + index_k_cache::scale_bytes}
                                    << shift;
    const index_k_cache cache{.data = around.index_cache + layer * around.source.pool_pages * page_bytes,
                              .pages = around.source.pool_pages,
                              .page_stride = page_bytes,
                              .page_shift = shift};
    set_k_and_s(step.stream, {.live_tokens = s.cu_seqlens_q + step.key.rows,
                              .tokens = step.key.tokens,
                              .loc = step.out_cache_loc,
                              .keys = s.new_keys,
                              .scales = s.new_scales,
                              .cache = cache,
                              .faults = step.faults});
    get_k_and_s(step.stream, {.lengths = around.lengths(step),
                              .page_table = step.page_table,
                              .page_table_stride = step.page_table_stride,
                              .page_columns = step.page_columns,
                              .cache = cache,
                              .keys = around.index_keys,
                              .scales = around.index_scales,
                              .capacity = around.index_capacity,
                              .faults = step.faults});
  }

  /// No logits: every row's next token is what its slots happen to say, so that the step ends as others do.
  static void sampling_stand_in(const step_context& step, const scratch& s) {
    if (step.key.kind == step_kind::decode)
      step.stream.copy(step.next_token, s.dsa_lengths, step.key.rows * sizeof(std::int32_t));
  }

  llama::llama_config config_;
  int topk_;
  std::int64_t width_;
};

}  // namespace

std::unique_ptr<replay_model> make_sparse_model(const model_shape& shape, std::int64_t width) {
  return std::make_unique<sparse_model>(shape, width);
}

}  // namespace stepgraph::bench
