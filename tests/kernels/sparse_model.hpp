#pragma once

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "kernels/sparse/window_token_ids.hpp"
#include "runtime/choose_tokens.hpp"
#include "tests/kernels/sparse_fixture.hpp"

/// The index kernels as a model's steps have them, between the executor's metadata and its choice of tokens.
namespace stepgraph::sparse_steps {

constexpr int max_rows = 4, max_tokens = 64, max_drafts = 3, page_size = 64, topk = 40, window = 30,
              vocab = 2;
constexpr std::int64_t pool_pages = 128, combined = 128;

/// Columns of the tables in tokens: what every step is captured at.
inline std::int64_t max_context() {
  return test_small() ? 4096 : test_device().is_host() ? 131072 : std::int64_t{1} << 20;
}

/// What the rows of one model's step have, at most.
struct row_sizes {
  std::int64_t usual = 2000;  // tokens of a row
  std::int64_t longest;       // of one row of a step
  std::int64_t capacity() const { return max_rows * usual + longest; }
};

inline row_sizes sizes() {
  return {.usual = test_small() ? 300 : 2000,
          .longest = std::min<std::int64_t>(max_context(), 40000) - max_tokens};
}

/// What the executors of a test read alike: a request table, a window's map, a step's top-k indices and logits.
struct shared_inputs {
  explicit shared_inputs(stream_ref at)
      : columns(max_context() / page_size),
        table(at, max_rows * columns, 0),
        full_to_swa(at, pool_pages * page_size, 0),
        base(at, max_rows, 5),
        indices(at, max_tokens * topk, 0),
        logits(at, max_tokens * vocab, 0.0f) {
    std::vector<std::int32_t> pages, map;
    // no two rows have a page in common; a long row comes by its own again
    for (std::int64_t i = 0; i < max_rows * columns; ++i)
      pages.push_back(static_cast<std::int32_t>(i % columns * max_rows % (pool_pages - max_rows) + max_rows +
                                                i / columns));
    for (std::int64_t slot = 0; slot < pool_pages * page_size; ++slot)
      map.push_back(static_cast<std::int32_t>(slot % 7 == 3 ? -1 : slot * 3 % (pool_pages * page_size)));
    table.set(pages);
    full_to_swa.set(map);
  }
  page_source source() const {
    return {.table = table.data(),
            .row_stride = columns,
            .requests = max_rows,
            .columns = columns,
            .page_shift = log2_of(page_size),
            .page_granular = true,
            .pool_pages = pool_pages};
  }
  std::int64_t columns;
  device_vector<std::int32_t> table, full_to_swa, base, indices;
  device_vector<float> logits;
};

/// The index kernels of one model, target or draft, in the bodies of its steps: stores the tokens' index keys,
/// gathers the rows', and makes the indices of sparse attention from the step's own metadata.
class sparse_model {
 public:
  sparse_model(stream_ref at, const shared_inputs& inputs, std::uint64_t seed)
      : inputs_(inputs),
        random_(seed),
        capacity_(sizes().capacity()),
        new_keys_(at, random_bytes(random_, max_tokens * 128)),
        new_scales_(at, random_bytes(random_, max_tokens * 4)),
        cache_(at, pool_pages * page_size * 132, std::uint8_t{0}),
        keys_(at, capacity_ * 128, poison_byte),
        scales_(at, capacity_, poison_word),
        sums_(at, max_rows + 1, output_poison),
        slots_(at, max_tokens * topk, output_poison),
        combined_(at, max_tokens * combined, output_poison),
        length_(at, max_tokens, output_poison),
        gather_len_(at, max_rows, output_poison),
        offsets_(at, max_rows + 1, output_poison),
        ids_(at, max_rows * (window + max_tokens), output_poison) {}

  void operator()(const step_context& step) const {
    const row_lengths lengths{.live_rows = step.live_rows,
                              .rows = step.key.rows,
                              .seq_lens = step.cache_seqlens,
                              .cap = max_context()};
    const index_k_cache cache{.data = cache_.data(),
                              .pages = pool_pages,
                              .page_stride = page_size * 132,
                              .page_shift = step.page_shift};
    const std::int32_t* const live_tokens = step.cu_seqlens_q + step.key.rows;
    set_k_and_s(step.stream, {.live_tokens = live_tokens,
                              .tokens = step.key.tokens,
                              .loc = step.out_cache_loc,
                              .keys = new_keys_.data(),
                              .scales = reinterpret_cast<const float*>(new_scales_.data()),
                              .cache = cache,
                              .faults = step.faults});
    get_k_and_s(step.stream, {.lengths = lengths,
                              .page_table = step.page_table,
                              .page_table_stride = step.page_table_stride,
                              .page_columns = step.page_columns,
                              .cache = cache,
                              .cu_seqlens_k = sums_.data(),
                              .keys = keys_.data(),
                              .scales = scales_.data(),
                              .capacity = capacity_,
                              .faults = step.faults});
    top_k_to_slots(step.stream, {.live_tokens = live_tokens,
                                 .tokens = step.key.tokens,
                                 .row_of = step.row_of,
                                 .indices = inputs_.indices.data(),
                                 .index_stride = topk,
                                 .index_columns = topk,
                                 .topk = topk,
                                 .table = step.page_table,
                                 .table_stride = step.page_table_stride,
                                 .table_lines = step.key.rows,
                                 .table_columns = step.page_columns,
                                 .slots = {.data = slots_.data(), .stride = topk, .columns = topk},
                                 .faults = step.faults});
    combine_top_k_and_window(step.stream,
                             {.lengths = lengths,
                              .query_start_loc = step.cu_seqlens_q,
                              .tokens = step.key.tokens,
                              .topk_indices = inputs_.indices.data(),
                              .topk_stride = topk,
                              .topk_columns = topk,
                              .topk = topk,
                              .window = window,
                              .ratio = 4,
                              .gather_len = step.cache_seqlens,
                              .compressed_base = inputs_.base.data(),
                              .swa_base = inputs_.base.data(),
                              .indices = {.data = combined_.data(), .stride = combined, .columns = combined},
                              .length = length_.data(),
                              .faults = step.faults});
    window_token_ids(step.stream, {.lengths = lengths,
                                   .requests = step.requests,
                                   .source = inputs_.source(),
                                   .query = {step.query_counts, false, step.key.tokens, step.key.tokens},
                                   .window = window,
                                   .full_to_swa = {inputs_.full_to_swa.data(), pool_pages * page_size},
                                   .gather_len = gather_len_.data(),
                                   .offsets = offsets_.data(),
                                   .ids = ids_.data(),
                                   .capacity = static_cast<std::int64_t>(ids_.size()),
                                   .faults = step.faults});
    choose_tokens(step, {.data = inputs_.logits.data(), .stride = vocab, .vocab_size = vocab});
  }

  void poison() {
    keys_.set(std::vector<std::uint8_t>(keys_.size(), poison_byte));
    scales_.set(std::vector<std::uint32_t>(scales_.size(), poison_word));
    for (auto* each : {&sums_, &slots_, &combined_, &length_, &gather_len_, &offsets_, &ids_})
      each->set(std::vector<std::int32_t>(each->size(), output_poison));
  }

  void expect_equal(const sparse_model& eager) const {
    CHECK(cache_.get() == eager.cache_.get());
    CHECK(keys_.get() == eager.keys_.get());
    CHECK(scales_.get() == eager.scales_.get());
    CHECK(sums_.get() == eager.sums_.get());
    CHECK(slots_.get() == eager.slots_.get());
    CHECK(combined_.get() == eager.combined_.get());
    CHECK(length_.get() == eager.length_.get());
    CHECK(gather_len_.get() == eager.gather_len_.get());
    CHECK(offsets_.get() == eager.offsets_.get());
    CHECK(ids_.get() == eager.ids_.get());
  }

  /// Of the target: `lengths` and `counts` are the rows' after and in the step.
  void expect_rows(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& counts) const {
    const auto keys = keys_.get(), new_keys = new_keys_.get();
    const auto scales = scales_.get();
    const auto gathered = gather_len_.get();
    std::int64_t packed = 0, token = 0;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      packed += lengths[r];
      token += counts[r];
      CHECK(gathered[r] == std::min<std::int64_t>(lengths[r], counts[r] + window - 1));
      // the row's newest token has the key that this step stored
      for (int b = 0; counts[r] > 0 && b < 128; ++b)
        REQUIRE(keys[(packed - 1) * 128 + b] == new_keys[(token - 1) * 128 + b]);
    }
    // the packed rows end where the lengths do
    for (std::int64_t x = packed; x < capacity_; ++x) REQUIRE(scales[x] == poison_word);
  }
  /// Tokens that the step's `rows` rows have in the cache.
  std::int32_t tokens_gathered(std::size_t rows) const { return sums_.get()[rows]; }

 private:
  static constexpr std::uint8_t poison_byte = 7;
  static constexpr std::uint32_t poison_word = 7;
  const shared_inputs& inputs_;
  reference::random_integers random_;
  std::int64_t capacity_;
  device_vector<std::uint8_t> new_keys_, new_scales_, cache_, keys_;
  device_vector<std::uint32_t> scales_;
  device_vector<std::int32_t> sums_, slots_, combined_, length_, gather_len_, offsets_, ids_;
};

}  // namespace stepgraph::sparse_steps
