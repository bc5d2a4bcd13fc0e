#include "kernels/metadata/draft_steps_metadata.hpp"

#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// A line of an output that has one vector a step.
void expect_line(const std::vector<std::int64_t>& all, std::int64_t line,
                 const reference::vector_output& want) {
  const auto size = static_cast<std::int64_t>(want.value.size());
  const auto got = line_of(all, line, size);
  CHECK_MESSAGE(check_live(got, want).empty(), check_live(got, want));
}

template <class T>
std::vector<std::int64_t> widened(const device_vector<T>& values) {
  const auto got = values.get();
  return {got.begin(), got.end()};
}

enum class window { none, by_slots, by_pages };

struct variant {
  std::int64_t steps = 1;
  std::int64_t skip = -1;
  window kind = window::none;
  reference::tail_rule tail{};
};

/// The op on one batch, which may be captured; its maps may change between replays.
class draft_steps_run {
 public:
  draft_steps_run(stream_ref at, const reference::batch& in, const variant& v)
      : in_(in),
        v_(v),
        batch_(at, in),
        page_map_(at, in.page_map ? *in.page_map : reference::index_map{}, in.seed % 2 == 0),
        window_(at, window_map(in.seed), in.seed % 3 == 0),
        lens_(at, v.steps * in.B),
        cu_(at, v.steps * (in.B + 1)),
        position_(at, v.steps * in.C),
        loc_(at, v.steps * in.C),
        table_(at, in.B, in.page_columns, 1),
        swa_(at, in.B, in.page_columns, 2) {
    options_ = {.steps = v.steps, .decode = {}, .out_cache_loc_skip = v.skip};
    options_.decode.page_table.skip = v.skip;
    options_.decode.swa_page_table.skip = -1 - v.skip;
    options_.decode.page_table.tail = options_.decode.swa_page_table.tail = v.tail;
    options_.decode.swa_page_table.tail.value += 1;
    set_window_map(in.seed);
  }
  void enqueue(stream_ref at) const {
    draft_steps_metadata_params p{.decode = {.lengths = batch_.lengths,
                                             .requests = batch_.requests(),
                                             .source = batch_.source,
                                             .page_map = in_.page_map ? page_map_.view : index_map{},
                                             .skip = static_cast<std::int32_t>(v_.skip),
                                             .page_table = table_.data(),
                                             .page_table_stride = table_.sink.stride,
                                             .page_columns = in_.page_columns,
                                             .tail = device_tail(v_.tail),
                                             .faults = batch_.faults},
                                  .steps = static_cast<std::int32_t>(v_.steps),
                                  .query = device_query(in_, batch_),
                                  .slot_skip = static_cast<std::int32_t>(v_.skip),
                                  .cache_seqlens = lens_.data(),
                                  .cu_seqlens_k = cu_.data(),
                                  .out_cache_loc = loc_.data(),
                                  .position = position_.data()};
    if (v_.kind != window::none)
      p.decode.window = {.full_to_swa = v_.kind == window::by_slots ? window_.view : index_map{},
                         .page_map = v_.kind == window::by_pages ? window_.view : index_map{},
                         .page_table = swa_.data(),
                         .page_table_stride = swa_.sink.stride,
                         .skip = static_cast<std::int32_t>(-1 - v_.skip),
                         .tail_value = static_cast<std::int32_t>(v_.tail.value + 1)};
    draft_steps_metadata(at, p);
  }
  void set_maps(std::uint64_t seed) {
    if (in_.page_map) page_map_.set(*(in_.page_map = reference::random_page_map(in_.pool_pages, seed)));
    set_window_map(seed + 1);
  }
  void expect() const {
    const auto want = reference::draft_steps_metadata(in_, options_);
    for (std::int64_t k = 0; k < v_.steps; ++k) {
      CAPTURE(k);
      expect_line(widened(lens_), k, want.cache_seqlens[k]);
      expect_line(widened(cu_), k, want.cu_seqlens_k[k]);
      expect_line(widened(loc_), k, want.out_cache_loc[k]);
      expect_line(widened(position_), k, want.position[k]);
    }
    for (const auto& all : {widened(lens_), widened(cu_), widened(loc_), widened(position_)})
      for (std::size_t i = all.size() - 4; i < all.size(); ++i) CHECK(all[i] == output_poison);
    table_.expect(want.page_table);
    swa_.expect(want.swa_page_table);
    expect_faults(op_id::draft_steps_metadata, batch_.reports, want.faults);
  }

 private:
  reference::index_map window_map(std::uint64_t seed) const {
    return v_.kind == window::by_pages ? reference::random_page_map(in_.pool_pages, seed)
                                       : reference::random_slot_map(in_, seed);
  }
  void set_window_map(std::uint64_t seed) {
    const auto map = window_map(seed);
    window_.set(map);
    if (v_.kind == window::by_slots) options_.decode.full_to_swa = map;
    if (v_.kind == window::by_pages) options_.decode.swa_page_map = map;
  }

  reference::batch in_;
  variant v_;
  reference::draft_steps_options options_;
  device_batch batch_;
  device_map page_map_, window_;
  output_vector<std::int32_t> lens_, cu_, position_;
  output_vector<std::int64_t> loc_;
  output_table table_, swa_;
};

void compare(reference::batch in, const variant& v) {
  in.C = std::max<std::int64_t>(in.C, 1);
  CAPTURE(reference::describe(in));
  CAPTURE(v.steps);
  const stream at(test_device());
  const draft_steps_run run(at, in, v);
  run.enqueue(at);
  run.expect();
}

}  // namespace

TEST_CASE("one launch makes the metadata of all draft steps, dead rows of 0 length in each") {
  for (int i = 0; i < test_rounds(40); ++i) {
    const std::int64_t steps = 1 + i % 6;
    compare(reference::random_batch(
                test_seed() + i,
                {.max_tokens = 1, .draft_steps = steps, .page_granular = i % 2 == 0, .poison = true}),
            {steps, -(i % 2), window(i % 3), some_tail(i / 3)});
  }
}

TEST_CASE("draft steps through a page map, with and without a window, equal the definitions") {
  for (int i = 0; i < test_rounds(36); ++i) {
    const std::int64_t steps = 1 + i % 5;
    compare(reference::random_batch(test_seed() + 100 + i, {.max_tokens = 1,
                                                            .draft_steps = steps,
                                                            .page_granular = i % 2 == 0,
                                                            .page_map = true,
                                                            .poison = true}),
            {steps, -(i % 2), window(i % 3)});
  }
}

TEST_CASE("draft steps clamp and report lengths, counts, requests and slots that cannot be") {
  for (int i = 0; i < test_rounds(48); ++i) {
    const std::int64_t steps = 1 + i % 4;
    const reference::random_batch_options bad{.max_tokens = 1,
                                              .draft_steps = steps,
                                              .page_granular = i / 6 % 2 == 0,
                                              .page_map = i % 5 == 1,
                                              .poison = true,
                                              .bad_request = i % 6 == 0 || i % 6 == 5,
                                              .bad_length = i % 6 == 1 || i % 6 == 5,
                                              .bad_tokens = i % 6 == 2,
                                              .bad_slot = i % 6 == 3 || i % 6 == 5,
                                              .drop_tokens = i % 6 == 4 || i % 6 == 5};
    compare(reference::random_batch(test_seed() + 200 + i, bad), {steps, -(i % 2), window(i % 3)});
  }
  // the first steps fit, the last ones not
  for (int i = 0; i < test_rounds(10); ++i)
    compare(reference::random_batch(test_seed() + 300 + i, {.max_tokens = 1}), {5});
}

TEST_CASE("stale-all: one capture of draft steps follows maps that change") {
  for (const bool paged : {false, true})
    for (const window kind : {window::none, window::by_slots, window::by_pages}) {
      auto in = reference::random_batch(
          test_seed() + 400,
          {.rows = 5, .live_rows = 4, .max_tokens = 1, .draft_steps = 3, .page_map = paged});
      in.C = std::max<std::int64_t>(in.C, 1);
      CAPTURE(reference::describe(in));
      const stream at(test_device());
      draft_steps_run run(at, in, {3, -1, kind});
      const graph_exec exec = capture(at, [&](stream_ref s) { run.enqueue(s); }).instantiate();
      for (int i = 0; i < 4; ++i) {
        run.set_maps(in.seed + 10 + i);
        exec.launch(at);
        run.expect();
      }
    }
}

TEST_CASE("pad-zero: 3 of 4 rows live, and more rows than a block has threads") {
  compare(reference::random_batch(
              test_seed(), {.rows = 4, .live_rows = 3, .max_tokens = 1, .draft_steps = 3, .poison = true}),
          {3});
  compare(reference::random_batch(test_seed(), {.rows = 300,
                                                .max_tokens = 1,
                                                .page_size = 1,
                                                .max_context = 40,
                                                .draft_steps = 4,
                                                .poison = true}),
          {4, 0});
}

TEST_CASE("all draft steps are one node") {
  const stream at(test_device());
  device_vector<std::int32_t> numbers(at, 256, 0);
  draft_steps_metadata_params p{
      .decode = {.lengths = {.live_rows = numbers.data(), .rows = 2, .seq_lens = numbers.data(), .cap = 16},
                 .requests = numbers.data(),
                 .source = {.table = numbers.data(), .row_stride = 16, .requests = 2, .columns = 16}},
      .steps = 4,
      .query = {numbers.data(), false, 1, 2},
      .cache_seqlens = numbers.data() + 64};
  CHECK(capture(at, [&](stream_ref s) { draft_steps_metadata(s, p); }).node_count() == 1);
  p.steps = 0;
  CHECK_THROWS_WITH_AS(draft_steps_metadata(at, p), doctest::Contains("steps must be positive"),
                       invalid_argument);
}

TEST_CASE("draft steps at widths around a tile and far past it") {
  for (const std::int64_t width : captured_widths())
    compare(reference::random_batch(test_seed() + width, {.rows = 3,
                                                          .max_tokens = 1,
                                                          .page_size = 1,
                                                          .max_context = width,
                                                          .length_limit = 5000,
                                                          .draft_steps = 2,
                                                          .poison = true}),
            {2, -1, window(width % 3)});
}
