#include <doctest/doctest.h>

#include "kernels/kernel_registry.hpp"
#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "kernels/sparse/window_token_ids.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// Counts the kernels of an op. Where no other test has launched them (tests/meson.build gives this one a
/// process of its own) each layout must bring one; in any case there are as many as layouts in the end.
class kernel_count {
 public:
  explicit kernel_count(const char* op) : op_(op), alone_(kernels_launched(op) == 0) {}
  void expect_one_more(const char* layout) {
    CAPTURE(op_);
    CAPTURE(layout);
    ++layouts_;
    if (alone_) CHECK(kernels_launched(op_) == layouts_);
  }
  void expect_no_other() const {
    CAPTURE(op_);
    CHECK(kernels_launched(op_) == layouts_);
  }

 private:
  const char* op_;
  bool alone_;
  int layouts_ = 0;
};

/// Inputs that are 0 all over, so that any shape may be laid over them, and outputs that nobody reads.
struct any_memory {
  explicit any_memory(stream_ref at)
      : live(at, {1}),
        zeros(at, entries, 0),
        wide_zeros(at, 4096, std::int64_t{0}),
        out(at, entries, 0),
        more(at, entries, 0) {}
  static constexpr std::int64_t entries = 1 << 21;
  device_vector<std::int32_t> live, zeros;
  device_vector<std::int64_t> wide_zeros;
  device_vector<std::int32_t> out, more;

  row_lengths lengths(std::int64_t rows, std::int64_t cap, int number) const {
    return {.live_rows = live.data(),
            .rows = static_cast<std::int32_t>(rows),
            .seq_lens = number % 2 ? index_view(zeros.data()) : index_view(wide_zeros.data()),
            .delta = number % 7,
            .delta_by_row = number % 3 ? zeros.data() : nullptr,
            .cap = cap};
  }
};

/// Calls `launch(rows, width, number)` with all there is to vary; `number` counts the calls.
template <class Launch>
void sweep(Launch launch) {
  int number = 0;
  for (const std::int64_t rows : {1, 4, 40, 300})
    for (const std::int64_t width : {1, 64, 1000, 4096, 70000, 1000000})
      if (rows * width <= any_memory::entries) launch(rows, width, number++);
}

}  // namespace

TEST_CASE("sparse: each layout of top-k to slots has one kernel, for every width, batch, top-k and stride") {
  const stream at(test_device());
  const any_memory memory(at);
  kernel_count count("top_k_to_slots");
  for (const bool shared_lines : {false, true})
    for (const char* layout : {"slots alone, alike to 16 bytes", "alike to 16 bytes", "not alike"}) {
      const bool alone = layout[0] == 's', alike = layout[0] != 'n';
      sweep([&](std::int64_t rows, std::int64_t width, int number) {
        const std::int64_t topks[] = {1, 5, 64, 512, 2051}, topk = topks[number % 5],
                           stride = topk + number % 4;
        const int extra = alone ? 0 : alike ? 1 + number % 7 : number % 8;
        top_k_to_slots_params p{.live_tokens = memory.live.data(),
                                .tokens = static_cast<std::int32_t>(rows),
                                .row_of = shared_lines ? memory.zeros.data() : nullptr,
                                .indices = memory.zeros.data() + number % 4,
                                .index_stride = stride,
                                .index_columns = topk,
                                .topk = static_cast<std::int32_t>(topk),
                                .table = memory.zeros.data(),
                                .table_stride = width,
                                .table_lines = static_cast<std::int32_t>(rows),
                                .table_columns = width,
                                .slots = {.data = memory.out.data() + (number + (alike ? 0 : 1)) % 4,
                                          .stride = stride + 4 * (number % 3),
                                          .columns = topk}};
        if (extra & 1) p.count = memory.more.data();
        if (extra & 2) p.last_plus_one = memory.more.data() + 4096;
        if (extra & 4) p.slots.tail = {tail_mode::multiple, 8, -1};
        top_k_to_slots(at, p);
      });
      count.expect_one_more(layout);
    }
  count.expect_no_other();
}

TEST_CASE("sparse: each layout of combine has one kernel, for every batch, top-k, window, ratio and stride") {
  const stream at(test_device());
  const any_memory memory(at);
  kernel_count count("combine_top_k_and_window");
  for (const bool by_quads : {true, false}) {
    sweep([&](std::int64_t rows, std::int64_t width, int number) {
      const std::int64_t topks[] = {0, 4, 64, 512, 2048}, windows[] = {1, 128, 63, 0, 513};
      // a top-k, an input's place or an output's stride that 16 bytes do not fit
      const std::int64_t topk = topks[number % 5] + (by_quads || number % 3 != 0 ? 0 : 1);
      const std::int64_t window = topk > 0 ? windows[number % 4] : 7;
      combine_top_k_and_window_params p{.lengths = memory.lengths(rows, width, number),
                                        .query_start_loc = memory.zeros.data(),
                                        .tokens = static_cast<std::int32_t>(rows),
                                        .topk_indices = memory.zeros.data(),
                                        .topk_stride = (topk + 3) / 4 * 4 + 4 * (number % 2),
                                        .topk_columns = topk,
                                        .topk = static_cast<std::int32_t>(topk),
                                        .window = static_cast<std::int32_t>(window),
                                        .ratio = 1 + number % 5,
                                        .gather_len = memory.zeros.data(),
                                        .compressed_base = memory.zeros.data(),
                                        .swa_base = memory.zeros.data(),
                                        .length = memory.more.data()};
      p.indices = {.data = memory.out.data(),
                   .stride = p.padded_width() + 4 * (number % 3),
                   .columns = p.padded_width()};
      if (!by_quads && number % 3 == 1) p.indices.data += 1;
      if (!by_quads && number % 3 == 2) p.indices.stride += 1;
      if (number % 4 == 3) p.indices.tail = {tail_mode::multiple, 8, -1};
      combine_top_k_and_window(at, p);
    });
    count.expect_one_more(by_quads ? "by 16 bytes" : "by 4 bytes");
  }
  count.expect_no_other();
}

TEST_CASE(
    "sparse: the index-K store, its gather and window token ids have one kernel each, whatever their shape") {
  const stream at(test_device());
  const any_memory memory(at);
  kernel_count set("set_k_and_s"), get("get_k_and_s"), ids("window_token_ids");
  sweep([&](std::int64_t rows, std::int64_t width, int number) {
    const int shift = number % 11;
    const index_k_cache cache{.data = reinterpret_cast<std::uint8_t*>(memory.more.data() + number % 2),
                              .pages = 2,
                              .page_stride = (132 << shift) + 4 * (number % 5),
                              .page_shift = shift};
    set_k_and_s(at,
                {.live_tokens = memory.live.data(),
                 .tokens = static_cast<std::int32_t>(rows),
                 .loc = number % 2 ? index_view(memory.zeros.data()) : index_view(memory.wide_zeros.data()),
                 .keys = reinterpret_cast<const std::uint8_t*>(memory.zeros.data()),
                 .key_stride = 128 + 4 * (number % 5),
                 .scales = reinterpret_cast<const float*>(memory.zeros.data()),
                 .cache = cache});
    get_k_and_s_params gather{.lengths = memory.lengths(rows, width, number),
                              .page_table = memory.zeros.data(),
                              .page_table_stride = width,
                              .page_columns = width,
                              .cache = cache,
                              .capacity = 1 + number};
    if (number % 3 != 1) gather.keys = reinterpret_cast<std::uint8_t*>(memory.out.data());
    if (number % 3 != 2) gather.scales = reinterpret_cast<std::uint32_t*>(memory.out.data() + 65536);
    if (number % 4 == 1) gather.page_map = {memory.zeros.data(), 2};
    if (number % 4 == 2) gather.cu_seqlens_k = memory.out.data() + 131072;
    get_k_and_s(at, gather);
    window_token_ids_params window{.lengths = memory.lengths(rows, width, number),
                                   .requests = memory.zeros.data(),
                                   .source = {.table = memory.zeros.data(),
                                              .row_stride = width,
                                              .requests = 1,
                                              .columns = width,
                                              .page_shift = shift,
                                              .page_granular = number % 2 == 1},
                                   .query = {memory.live.data(), true, 4, static_cast<std::int32_t>(rows)},
                                   .window = 1 + number * 9,
                                   .gather_len = memory.out.data(),
                                   .offsets = memory.out.data() + 4096,
                                   .ids = memory.out.data() + 8192,
                                   .capacity = 100};
    if (number % 3 == 0) window.full_to_swa = {memory.zeros.data(), 5};
    window_token_ids(at, window);
  });
  at.synchronize();
  for (kernel_count* each : {&set, &get, &ids}) {
    each->expect_one_more("any");
    each->expect_no_other();
  }
}
