#include <doctest/doctest.h>

#include "graphs/graph.hpp"
#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "kernels/sparse/window_token_ids.hpp"
#include "tests/kernels/sparse_fixture.hpp"

using namespace stepgraph;

namespace {

/// One set of outputs of all five ops.
struct sparse_outputs {
  sparse_outputs(stream_ref at, std::int64_t rows, std::int64_t tokens, std::int64_t capacity,
                 std::int64_t cache_bytes, std::int64_t topk, std::int64_t combined)
      : cache(at, cache_bytes, std::uint8_t{0x5a}),
        keys(at, capacity * 128, std::uint8_t{0xb3}),
        scales(at, capacity, 0xdeadbeefu),
        sums(at, rows + 1, -7),
        slots(at, tokens * topk, -7),
        count(at, tokens, -7),
        last(at, tokens, -7),
        indices(at, tokens * combined, -7),
        length(at, tokens, -7),
        gather_len(at, rows, -7),
        offsets(at, rows + 1, -7),
        ids(at, capacity, -7) {}

  bool operator==(const sparse_outputs& other) const {
    return cache.get() == other.cache.get() && keys.get() == other.keys.get() &&
           scales.get() == other.scales.get() && sums.get() == other.sums.get() &&
           slots.get() == other.slots.get() && count.get() == other.count.get() &&
           last.get() == other.last.get() && indices.get() == other.indices.get() &&
           length.get() == other.length.get() && gather_len.get() == other.gather_len.get() &&
           offsets.get() == other.offsets.get() && ids.get() == other.ids.get();
  }

  device_vector<std::uint8_t> cache, keys;
  device_vector<std::uint32_t> scales;
  device_vector<std::int32_t> sums, slots, count, last, indices, length, gather_len, offsets, ids;
};

/// A step of `rows` rows of up to `most` query tokens whose tables are `width` tokens wide; lengths, counts
/// and indices change, addresses do not.
struct sparse_step {
  static constexpr std::int64_t P = 64, topk = 96, window = 40, combined = 256, most = 4;

  sparse_step(stream_ref where, std::int64_t rows_, std::int64_t width_, std::int64_t longest_,
              std::uint64_t seed, length_form form)
      : at(where),
        random(seed),
        rows(rows_),
        tokens(rows_ * most),
        width(width_),
        longest(longest_),
        pages(rows_ * ((longest_ + P - 1) / P)),
        live_rows(at, 1, 0),
        live_tokens(at, 1, 0),
        counts(at, rows, 0),
        starts(at, rows + 1, 0),
        row_of(at, tokens, 0),
        gather(at, rows, 0),
        base(at, rows, 3),
        requests(at, rows, 0),
        indices(at, tokens * topk, 0),
        page_table(at, rows * (width / P), 0x7f7f7f7f),
        slot_table(at, rows * width, 0x7f7f7f7f),
        loc(at, tokens, 0),
        lens(at, rows, form),
        new_keys(at, random_bytes(random, tokens * 128)),
        new_scales(at, random_bytes(random, tokens * 4)) {
    // the tables' live parts, once for the longest length; what lies past them is poison
    auto page_lines = page_table.get();
    auto slot_lines = slot_table.get();
    std::vector<std::int32_t> ids;
    for (std::int64_t r = 0; r < rows; ++r) {
      ids.push_back(static_cast<std::int32_t>(r));
      for (std::int64_t x = 0; x < longest; ++x) {
        const std::int64_t page = (x / P * rows + r) % pages;
        page_lines[r * (width / P) + x / P] = static_cast<std::int32_t>(page);
        slot_lines[r * width + x] = static_cast<std::int32_t>(page * P + x % P);
      }
    }
    page_table.set(page_lines);
    slot_table.set(slot_lines);
    requests.set(ids);
  }

  /// Another live region: `n` rows, of any lengths up to the longest.
  void change(std::int64_t n) {
    std::vector<std::int32_t> E, start{0}, row, gathered, topk_indices, slots;
    std::vector<std::int64_t> len;
    for (std::int64_t r = 0; r < rows; ++r) {
      E.push_back(static_cast<std::int32_t>(r < n ? random.between(0, most) : wild_index(random)));
      start.push_back(r < n ? start.back() + E[r] : start.back());
      for (std::int32_t j = 0; r < n && j < E[r]; ++j) row.push_back(static_cast<std::int32_t>(r));
      const std::int64_t length = random.one_in(4) ? random.below(3) : random.between(0, longest);
      len.push_back(length);
      gathered.push_back(static_cast<std::int32_t>(r < n ? length : wild_index(random)));
    }
    const auto live = static_cast<std::int64_t>(row.size());
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (t >= live) row.push_back(static_cast<std::int32_t>(wild_index(random)));
      for (std::int64_t i = 0; i < topk; ++i)
        topk_indices.push_back(static_cast<std::int32_t>(t >= live          ? wild_index(random)
                                                         : random.one_in(7) ? -1
                                                                            : random.below(longest)));
      slots.push_back(static_cast<std::int32_t>(t >= live ? wild_index(random) : (t * 37 + 5) % (pages * P)));
    }
    live_rows.set({static_cast<std::int32_t>(n)});
    live_tokens.set({static_cast<std::int32_t>(live)});
    counts.set(E);
    starts.set(start);
    row_of.set(row);
    lens.set(random, len, n);
    gather.set(gathered);
    indices.set(topk_indices);
    loc.set(slots);
  }

  void enqueue(stream_ref s, const sparse_outputs& out) const {
    const row_lengths lengths = lens.view(live_rows.data(), width);
    const auto captured = static_cast<std::int32_t>(tokens);
    const index_k_cache cache{.data = out.cache.data(), .pages = pages, .page_stride = P * 132};
    set_k_and_s(s, {.live_tokens = live_tokens.data(),
                    .tokens = captured,
                    .loc = loc.data(),
                    .keys = new_keys.data(),
                    .scales = reinterpret_cast<const float*>(new_scales.data()),
                    .cache = cache});
    get_k_and_s(s, {.lengths = lengths,
                    .page_table = page_table.data(),
                    .page_table_stride = width / P,
                    .page_columns = width / P,
                    .cache = cache,
                    .cu_seqlens_k = out.sums.data(),
                    .keys = out.keys.data(),
                    .scales = out.scales.data(),
                    .capacity = rows * longest});
    top_k_to_slots(s, {.live_tokens = live_tokens.data(),
                       .tokens = captured,
                       .row_of = row_of.data(),
                       .indices = indices.data(),
                       .index_stride = topk,
                       .index_columns = topk,
                       .topk = topk,
                       .table = slot_table.data(),
                       .table_stride = width,
                       .table_lines = static_cast<std::int32_t>(rows),
                       .table_columns = width,
                       .slots = {.data = out.slots.data(), .stride = topk, .columns = topk},
                       .count = out.count.data(),
                       .last_plus_one = out.last.data()});
    combine_top_k_and_window(
        s, {.lengths = lengths,
            .query_start_loc = starts.data(),
            .tokens = captured,
            .topk_indices = indices.data(),
            .topk_stride = topk,
            .topk_columns = topk,
            .topk = topk,
            .window = window,
            .ratio = 4,
            .gather_len = gather.data(),
            .compressed_base = base.data(),
            .swa_base = base.data(),
            .indices = {.data = out.indices.data(), .stride = combined, .columns = combined},
            .length = out.length.data()});
    window_token_ids(s, {.lengths = lengths,
                         .requests = requests.data(),
                         .source = {.table = slot_table.data(),
                                    .row_stride = width,
                                    .requests = static_cast<std::int32_t>(rows),
                                    .columns = width,
                                    .page_shift = 6},
                         .query = {counts.data(), false, static_cast<std::int32_t>(most), captured},
                         .window = window,
                         .gather_len = out.gather_len.data(),
                         .offsets = out.offsets.data(),
                         .ids = out.ids.data(),
                         .capacity = rows * longest});
  }

  sparse_outputs outputs() const {
    return {at, rows, tokens, rows * longest, pages * P * 132, topk, combined};
  }

  stream_ref at;
  reference::random_integers random;
  std::int64_t rows, tokens, width, longest, pages;
  device_vector<std::int32_t> live_rows, live_tokens, counts, starts, row_of, gather, base, requests, indices,
      page_table, slot_table, loc;
  device_lengths lens;
  device_vector<std::uint8_t> new_keys, new_scales;
};

}  // namespace

TEST_CASE(
    "sparse: stale-all: a graph captured at full width replays every live region as eager launches do") {
  const stream at(test_device());
  const std::int64_t width = test_small() ? 4096 : test_device().is_host() ? 131072 : 1 << 20;
  for (const std::uint64_t form : {0, 7}) {  // int32 lengths, then int64 ones with both deltas
    CAPTURE(form);
    sparse_step step(at, 9, width, test_small() ? 300 : 1500, test_seed() + form, length_form(form));
    step.change(9);
    const sparse_outputs warm = step.outputs(), eager_first = step.outputs();
    const graph definition = capture(at, [&](stream_ref s) { step.enqueue(s, warm); });
    CHECK(definition.node_count() == 5);
    graph_exec exec = definition.instantiate();
    // the executable keeps its buffers: what a replay leaves must be what eager launches leave in buffers that
    // have seen the same live regions
    for (const std::int64_t n : {9, 5, 0, 1, 7, 9, 3}) {
      CAPTURE(n);
      step.change(n);
      exec.launch(at);
      step.enqueue(at, eager_first);
      CHECK(warm == eager_first);
    }
  }
}
