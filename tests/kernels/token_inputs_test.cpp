#include "kernels/metadata/token_inputs.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// Depths of random trees, parents before children; wild for dead tokens.
std::vector<std::int32_t> random_depths(const reference::batch& in) {
  const reference::derived d = reference::derive(in);
  reference::random_integers random(in.seed + 7);
  std::vector<std::int32_t> depth(in.C, device_batch::wild);
  for (std::int64_t t = 0; t < d.T; ++t) depth[t] = d.j[t] == 0 ? 0 : 1 + depth[t - 1 - random.below(d.j[t])];
  return depth;
}

struct variant {
  std::int32_t skip = -1;
  bool tree = false;
};

/// The op on one batch, which may be captured; the batch's page map may change between replays.
class token_inputs_run {
 public:
  token_inputs_run(stream_ref at, const reference::batch& in, const variant& v)
      : in_(in),
        options_{.out_cache_loc_skip = v.skip, .depth = {}},
        batch_(at, in),
        page_map_(at, in.page_map ? *in.page_map : reference::index_map{}, in.seed % 2 == 0),
        depth_(at, random_depths(in)),
        cu_(at, in.B + 1),
        last_(at, in.B),
        row_of_(at, in.C),
        position_(at, in.C),
        causal_(at, in.C),
        loc_(at, in.C) {
    if (v.tree) {
      const auto depths = random_depths(in);
      options_.depth.assign(depths.begin(), depths.end());
    }
  }
  void enqueue(stream_ref at) const {
    token_inputs(at, {.lengths = batch_.lengths,
                      .query_counts = batch_.query_counts(),
                      .max_query_count = static_cast<std::int32_t>(in_.Emax),
                      .tokens = static_cast<std::int32_t>(in_.C),
                      .requests = batch_.requests(),
                      .source = batch_.source,
                      .page_map = in_.page_map ? page_map_.view : index_map{},
                      .depth = options_.depth.empty() ? nullptr : depth_.data(),
                      .skip = static_cast<std::int32_t>(options_.out_cache_loc_skip),
                      .cu_seqlens_q = cu_.data(),
                      .last_row = last_.data(),
                      .row_of = row_of_.data(),
                      .position = position_.data(),
                      .causal_length = causal_.data(),
                      .out_cache_loc = loc_.data(),
                      .faults = batch_.faults});
  }
  void set_page_map(const reference::index_map& map) {
    in_.page_map = map;
    page_map_.set(map);
  }
  void expect() const {
    const auto want = reference::token_inputs(in_, options_);
    cu_.expect(reference::fixed_vector("token inputs", "cu_seqlens_q", reference::derive(in_).cu_q));
    last_.expect(want.last_row);
    row_of_.expect(want.row_of);
    position_.expect(want.position);
    causal_.expect(want.causal_length);
    loc_.expect(want.out_cache_loc);
    expect_faults(op_id::token_inputs, batch_.reports, want.faults);
  }

 private:
  reference::batch in_;
  reference::token_inputs_options options_;
  device_batch batch_;
  device_map page_map_;
  device_vector<std::int32_t> depth_;
  output_vector<std::int32_t> cu_, last_, row_of_, position_, causal_;
  output_vector<std::int64_t> loc_;
};

void compare(reference::batch in, const variant& v) {
  in.C = std::max<std::int64_t>(in.C, 1);  // a batch without tokens is captured for one
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const token_inputs_run run(at, in, v);
  run.enqueue(at);
  run.expect();
}

}  // namespace

TEST_CASE(
    "sink-or-minus-one: token inputs of random ragged batches equal the definitions, with both sentinels") {
  for (int i = 0; i < test_rounds(60); ++i)
    compare(reference::random_batch(test_seed() + i, {.page_granular = i % 2 == 0, .poison = true}),
            {i % 3 == 0 ? 0 : -1});
}

TEST_CASE("token inputs of trees: positions by depth, one slot a node") {
  for (int i = 0; i < test_rounds(40); ++i)
    compare(reference::random_batch(test_seed() + 3000 + i, {.max_tokens = i % 4 == 0 ? 64 : 1 + i % 9,
                                                             .page_granular = i % 2 == 0,
                                                             .poison = true,
                                                             .bad_length = i % 5 == 1,
                                                             .drop_tokens = i % 5 == 2}),
            {-(i % 2), true});
}

TEST_CASE("accept-zero and negative-length: rows with E of 0 and rows with fewer tokens than E") {
  auto in = reference::random_batch(
      test_seed() + 4000, {.rows = 6, .live_rows = 5, .max_tokens = 4, .page_size = 4, .max_context = 64});
  in.delta = 0;
  in.delta_of.clear();
  in.E = {0, 4, 3, 0, 4, 0};
  in.seq_lens = {5, 2, 0, 0, 4, 0};
  in.C = 12;
  for (const bool tree : {false, true})
    for (const std::int32_t skip : {-1, 0}) compare(in, {skip, tree});
}

TEST_CASE("token inputs clamp and report lengths, counts, requests and slots that cannot be") {
  for (int i = 0; i < test_rounds(20); ++i) {
    const std::uint64_t seed = test_seed() + 1000 + 5 * i;
    compare(reference::random_batch(seed, {.poison = true, .bad_request = true}), {});
    compare(reference::random_batch(seed + 1, {.poison = true, .bad_length = true}), {});
    compare(reference::random_batch(seed + 2, {.poison = true, .bad_tokens = true}), {});
    compare(reference::random_batch(seed + 3, {.poison = true, .drop_tokens = true}), {});
    for (const std::int64_t tokens : {3, 9, 70})
      compare(reference::random_batch(seed + 4, {.max_tokens = tokens,
                                                 .page_granular = i % 2 == 0,
                                                 .page_map = i % 4 < 2,
                                                 .poison = true,
                                                 .bad_request = true,
                                                 .bad_length = true,
                                                 .bad_tokens = i % 3 == 0,
                                                 .bad_slot = true,
                                                 .drop_tokens = i % 3 == 1}),
              {-(i % 2), i % 5 == 0});
  }
}

TEST_CASE("token inputs through a page map equal the definitions") {
  for (int i = 0; i < test_rounds(30); ++i)
    compare(reference::random_batch(test_seed() + 5000 + i, {.max_tokens = i % 3 == 0 ? 4 : 1 + i % 40,
                                                             .page_granular = i % 2 == 0,
                                                             .page_map = true,
                                                             .poison = true}),
            {-(i % 4 < 2), i % 5 == 0});
}

TEST_CASE("stale-all: one capture of token inputs follows a page map that changes") {
  for (const std::int64_t tokens : {4, 30}) {
    auto in = reference::random_batch(test_seed() + 6000 + tokens,
                                      {.rows = 5, .live_rows = 4, .max_tokens = tokens, .page_map = true});
    in.C = std::max<std::int64_t>(in.C, 1);
    CAPTURE(reference::describe(in));
    const stream at(test_device());
    token_inputs_run run(at, in, {});
    const graph_exec exec = capture(at, [&](stream_ref s) { run.enqueue(s); }).instantiate();
    for (int i = 0; i < 5; ++i) {
      run.set_page_map(reference::random_page_map(in.pool_pages, in.seed + 10 + i));
      exec.launch(at);
      run.expect();
    }
  }
}

TEST_CASE("token inputs at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    for (const bool all_long : {false, true})
      compare(reference::random_batch(test_seed() + width, {.rows = 5,
                                                            .live_rows = 5,
                                                            .max_tokens = all_long ? 6 : 3,
                                                            .page_size = 64,
                                                            .max_context = width,
                                                            .length_limit = all_long ? 0 : 5000,
                                                            .page_granular = !all_long,
                                                            .poison = true}),
              {});
}

TEST_CASE("more rows and tokens than one team has threads") {
  for (int i = 0; i < test_rounds(3); ++i)
    compare(reference::random_batch(test_seed() + 2000 + i, {.rows = 700, .max_tokens = 5, .page_size = 4}),
            {});
}

TEST_CASE("token inputs refuse by name what the host can see") {
  const stream at(test_device());
  token_inputs_params params;
  CHECK_THROWS_WITH_AS(token_inputs(at, params), doctest::Contains("lengths.rows"), invalid_argument);
}
