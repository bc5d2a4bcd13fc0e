#include <doctest/doctest.h>

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "runtime/step_executor.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr int max_rows = 4, max_tokens = 16, max_context = 256, page_size = 64, topk = 40, window = 30;
constexpr std::int64_t cache_pages = 64, capacity = max_rows * max_context;

/// A step whose body stores its tokens' index keys, gathers its rows', and makes the indices of sparse
/// attention from the step's own metadata.
class sparse_body {
 public:
  explicit sparse_body(stream_ref at)
      : random_(11),
        new_keys_(at, random_bytes(random_, max_tokens * 128)),
        new_scales_(at, random_bytes(random_, max_tokens * 4)),
        cache_(at, cache_pages * page_size * 132, std::uint8_t{0}),
        base_(at, max_rows, 5),
        indices_(at, first_page_or_none()),
        keys_(at, capacity * 128, std::uint8_t{7}),
        scales_(at, capacity, 7u),
        slots_(at, max_tokens * topk, 7),
        combined_(at, max_tokens * 128, 7),
        length_(at, max_tokens, 7) {}

  void operator()(const step_context& step) const {
    const row_lengths lengths{.live_rows = step.live_rows,
                              .rows = step.key.rows,
                              .seq_lens = step.cache_seqlens,
                              .cap = max_context};
    const index_k_cache cache{.data = cache_.data(),
                              .pages = cache_pages,
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
                              .keys = keys_.data(),
                              .scales = scales_.data(),
                              .capacity = capacity,
                              .faults = step.faults});
    top_k_to_slots(step.stream, {.live_tokens = live_tokens,
                                 .tokens = step.key.tokens,
                                 .row_of = step.row_of,
                                 .indices = indices_.data(),
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
                              .topk_indices = indices_.data(),
                              .topk_stride = topk,
                              .topk_columns = topk,
                              .topk = topk,
                              .window = window,
                              .ratio = 4,
                              .gather_len = step.cache_seqlens,
                              .compressed_base = base_.data(),
                              .swa_base = base_.data(),
                              .indices = {.data = combined_.data(), .stride = 128, .columns = 128},
                              .length = length_.data(),
                              .faults = step.faults});
    step.stream.fill(step.next_token, 0, sizeof(std::int32_t) * step.key.rows);
  }

  void poison() {
    keys_.set(std::vector<std::uint8_t>(keys_.size(), 7));
    scales_.set(std::vector<std::uint32_t>(scales_.size(), 7));
    slots_.set(std::vector<std::int32_t>(slots_.size(), 7));
    combined_.set(std::vector<std::int32_t>(combined_.size(), 7));
    length_.set(std::vector<std::int32_t>(length_.size(), 7));
  }
  std::vector<std::uint8_t> keys() const { return keys_.get(); }
  std::vector<std::uint32_t> scales() const { return scales_.get(); }
  std::vector<std::int32_t> slots() const { return slots_.get(); }
  std::vector<std::int32_t> combined() const { return combined_.get(); }
  std::vector<std::int32_t> length() const { return length_.get(); }
  std::vector<std::uint8_t> new_keys() const { return new_keys_.get(); }

 private:
  static std::vector<std::int32_t> first_page_or_none() {
    std::vector<std::int32_t> indices;
    for (int i = 0; i < max_tokens * topk; ++i) indices.push_back(i % 3 == 0 ? 0 : -1);
    return indices;
  }
  reference::random_integers random_;
  device_vector<std::uint8_t> new_keys_, new_scales_, cache_;
  device_vector<std::int32_t> base_, indices_;
  device_vector<std::uint8_t> keys_;
  device_vector<std::uint32_t> scales_;
  device_vector<std::int32_t> slots_, combined_, length_;
};

step_executor executor_of(const sparse_body& body) {
  std::vector<step_definition> steps;
  for (const step_kind kind : {step_kind::decode, step_kind::extend})
    steps.push_back({.kind = kind,
                     .variant = 0,
                     .body = [&body](const step_context& step) { body(step); },
                     .scratch_bytes = {}});
  return step_executor(test_device(),
                       {.max_rows = max_rows,
                        .max_step_tokens = max_tokens,
                        .max_requests = max_rows,
                        .max_context = max_context,
                        .page_size = page_size,
                        .vocab_size = 100},
                       {.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64},
                       std::move(steps));
}

}  // namespace

TEST_CASE("sparse: index kernels in a step's body, replayed, equal the step run eagerly") {
  const stream at(test_device());
  sparse_body replayed_body(at), eager_body(at);
  step_executor replayed = executor_of(replayed_body), eager = executor_of(eager_body);
  replayed.capture();
  std::vector<request_id> requests;
  for (int r = 0; r < max_rows; ++r) {
    requests.push_back(replayed.open());
    REQUIRE(eager.open() == requests.back());
  }
  reference::random_integers random(test_seed());
  const std::vector<std::int32_t> tokens(max_tokens, 1);
  std::vector<std::int64_t> length(max_rows, 0);
  for (int i = 0; i < (test_small() ? 6 : 40); ++i) {
    CAPTURE(i);
    const step_kind kind = random.one_in(2) ? step_kind::decode : step_kind::extend;
    std::vector<step_row> rows;
    std::int64_t total = 0;
    for (int r = 0; r < max_rows; ++r) {
      const std::int64_t count = kind == step_kind::decode ? random.below(2) : random.below(5);
      if (random.one_in(3) || length[r] + count > max_context) continue;
      rows.push_back({.request = requests[r],
                      .tokens = static_cast<std::int32_t>(count),
                      .token_ids = std::span(tokens).first(count)});
      length[r] += count;
      total += length[r];
    }
    replayed_body.poison();
    eager_body.poison();
    replayed.wait(*replayed.replay(kind, rows));
    eager.wait(eager.run_eager(kind, rows));
    CHECK_FALSE(replayed.fault());
    CHECK(replayed_body.keys() == eager_body.keys());
    CHECK(replayed_body.scales() == eager_body.scales());
    CHECK(replayed_body.slots() == eager_body.slots());
    CHECK(replayed_body.combined() == eager_body.combined());
    CHECK(replayed_body.length() == eager_body.length());
    // the packed rows end where the lengths do
    const auto scales = replayed_body.scales();
    for (std::int64_t x = total; x < capacity; ++x) REQUIRE(scales[x] == 7u);
    // the first row's newest token has the key that this step stored
    if (rows.empty() || rows[0].tokens == 0) continue;
    const auto row = std::ranges::find(requests, rows[0].request) - requests.begin();
    const auto keys = replayed_body.keys(), stored = replayed_body.new_keys();
    for (int b = 0; b < 128; ++b)
      REQUIRE(keys[(length[row] - 1) * 128 + b] == stored[(rows[0].tokens - 1) * 128 + b]);
  }
}
