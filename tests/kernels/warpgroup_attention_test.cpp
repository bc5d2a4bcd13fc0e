#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/graph.hpp"
#include "kernels/attention/split_attention.hpp"
#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

#if STEPGRAPH_CUDA

namespace {

template <class T>
constexpr double tolerance_of = std::is_same_v<T, f16> ? 2e-3 : 1e-2;

bool has_warpgroups() {
  return !test_device().is_host() && detail::split_device::of(test_device()).warpgroups;
}

/// A batch whose launches are planned with given options.
template <class T>
struct planned_batch {
  planned_batch(stream_ref at, const ragged_shape& shape, const detail::split_options& planned,
                std::uint64_t seed)
      : options(planned),
        batch(at, shape, seed),
        workspace(at,
                  detail::plan_split(detail::split_device::of(at.where()), batch.bare_params(), options)
                      .workspace_bytes,
                  std::uint8_t{0}) {}

  void enqueue(stream_ref at) {
    paged_attention_params params = batch.params();
    params.workspace = workspace.data();
    params.workspace_bytes = workspace.size();
    detail::split_attention_cuda(at, params, options);
  }

  detail::split_options options;
  ragged_batch<T> batch;
  device_vector<std::uint8_t> workspace;
};

/// The warpgroup kernel, blocks of eight warps, and blocks of four whose shares know what a change of rows costs.
const detail::split_options all_options[] = {
    {.warpgroups = 1},
    {.min_tiles = 2, .warps = 8, .warpgroups = 0},
    {.min_tiles = 2, .warps = 4, .switch_tiles = 3, .long_share = 0, .warpgroups = 0}};

template <class T>
void compare(const ragged_shape& s, const std::vector<ragged_row>& rows, const detail::split_options& options,
             int most) {
  const stream at(test_device());
  planned_batch<T> planned(at, s, options, test_seed());
  planned.batch.set(rows);
  planned.enqueue(at);
  REQUIRE(planned.batch.check(tolerance_of<T>, most) == "");
}

/// Both types, head sizes and numbers of warpgroups.
void compare_all(ragged_shape s, const std::vector<ragged_row>& rows, int most = 40) {
  if (!has_warpgroups()) return;
  CAPTURE(test_seed());
  int tokens = 0;
  for (const auto& row : rows) {
    s.longest = std::max(s.longest, row.length);
    tokens += row.tokens;
  }
  s.rows = std::max<int>(s.rows, static_cast<int>(rows.size()));
  s.tokens = std::max(s.tokens, tokens);
  for (const detail::split_options& options : all_options)
    for (const int head_size : {64, 128}) {
      // long rows take the oracle long
      if (s.longest > 2000 && options.warpgroups != 1) continue;
      CAPTURE(options.warpgroups);
      CAPTURE(head_size);
      s.head_size = head_size;
      compare<f16>(s, rows, options, most);
      compare<bf16>(s, rows, options, most);
    }
}

}  // namespace

TEST_CASE(
    "warpgroup attention: nan-tail, nan-empty, ragged-zero: equal to the oracle, dead tokens are zeros") {
  for (const int longest : {1, 63, 64, 65, 127, 128, 129, 700})
    if (!test_small() || longest < 130) {
      CAPTURE(longest);
      reference::random_integers random(test_seed() + longest);
      std::vector<ragged_row> rows;
      for (int row = 0; row < 6; ++row)
        rows.push_back(
            {static_cast<int>(random.between(0, 9)), static_cast<int>(random.between(0, longest))});
      compare_all({.rows = 8, .tokens = 60}, rows);
    }
  compare_all({}, {});
  compare_all({}, {{0, 50}, {0, 0}});
  compare_all({}, {{2, 0}, {1, 70}, {0, 20}, {3, 1}});
}

TEST_CASE("warpgroup attention: parts of a row meet inside clusters, and across them") {
  if (!has_warpgroups()) return;
  CAPTURE(test_seed());
  const std::vector<ragged_row> even(8, {1, 1024});
  const std::vector<ragged_row> uneven{{1, 1}, {1, 2000}, {1, 0}, {0, 30}, {1, 700}, {1, 63}, {1, 1999}};
  for (const int min_tiles : {2, 4, 20})
    for (const int heads : {8, 32}) {
      CAPTURE(min_tiles);
      CAPTURE(heads);
      const detail::split_options options{.min_tiles = min_tiles, .warps = 8};
      for (const int head_size : {64, 128}) {
        const ragged_shape s{
            .rows = 9, .tokens = 9, .heads = heads, .kv_heads = 2, .head_size = head_size, .longest = 2000};
        compare<bf16>(s, even, options, 20);
        compare<f16>(s, uneven, options, 20);
      }
      if (test_small()) continue;
      const ragged_shape one{
          .rows = 1, .tokens = 1, .heads = heads, .kv_heads = 2, .head_size = 128, .longest = 30000};
      compare<bf16>(one, {{1, 30000}}, options, 4);
    }
}

TEST_CASE("warpgroup attention: chunks, alone and with decoding rows, with and without a prefix") {
  compare_all({}, {{128, 128}}, 60);
  compare_all({}, {{60, 60}, {1, 150}, {33, 200}}, 60);
  if (test_small()) return;
  compare_all({}, {{1000, 1000}}, 60);
  compare_all({.heads = 6, .kv_heads = 2}, {{300, 300}, {1, 900}, {150, 500}, {0, 40}, {1, 3}}, 60);
  compare_all({.heads = 9, .kv_heads = 3}, {{513, 1500}, {64, 64}, {1, 4000}}, 60);
  compare_all({.heads = 2, .kv_heads = 1}, {{1, 40000}, {700, 9000}}, 30);
}

TEST_CASE(
    "warpgroup attention: a prefix by page table or CSR, the step's own tokens in the cache or beside") {
  for (const bool csr : {false, true})
    for (const bool step_kv : {false, true}) {
      if (!csr && !step_kv) continue;
      compare_all({.page_shift = csr ? 0 : 4, .csr = csr, .step_kv = step_kv},
                  {{60, 60}, {1, 150}, {33, 200}, {4, 2}, {0, 7}});
      if (test_small()) continue;
      compare_all({.heads = 6, .kv_heads = 2, .page_shift = 2, .window = 99, .csr = csr, .step_kv = step_kv},
                  {{300, 300}, {1, 900}, {150, 500}, {0, 40}});
    }
}

TEST_CASE("warpgroup attention: page sizes, heads per KV head") {
  compare_all({.heads = 9, .kv_heads = 3, .page_shift = 0}, {{1, 200}, {30, 31}, {1, 130}});
  compare_all({.heads = 3, .kv_heads = 3, .page_shift = 6}, {{1, 64}, {90, 165}, {1, 128}});
  if (test_small()) return;
  compare_all({.heads = 8, .kv_heads = 1, .page_shift = 10}, {{70, 1500}, {1, 1024}, {1, 1023}});
  compare_all({.heads = 40, .kv_heads = 1, .page_shift = 2}, {{20, 100}, {2, 300}});
  compare_all({.heads = 16, .kv_heads = 16, .page_shift = 4}, {{20, 100}, {2, 300}});
}

TEST_CASE("warpgroup attention: chunks that begin and end anywhere in their pages") {
  for (const int page_shift : {3, 4, 5, 6}) {
    CAPTURE(page_shift);
    compare_all({.heads = 4, .kv_heads = 1, .page_shift = page_shift}, {{40, 75}, {90, 219}, {33, 128}});
    compare_all({.heads = 4, .kv_heads = 1, .page_shift = page_shift, .window = 50}, {{40, 75}, {90, 219}});
  }
}

TEST_CASE("warpgroup attention: nothing that a block has read for one row reaches the next") {
  if (!has_warpgroups()) return;
  CAPTURE(test_seed());
  const stream at(test_device());
  for (detail::split_options options : all_options) {
    options.min_tiles = 1000;  // all rows in one block for each KV head
    planned_batch<bf16> planned(
        at, {.rows = 3, .tokens = 93, .heads = 4, .kv_heads = 1, .head_size = 128, .longest = 700}, options,
        test_seed());
    planned.batch.set({{33, 700}, {40, 40}, {20, 83}});
    planned.batch.poison(0);
    planned.enqueue(at);
    REQUIRE(planned.batch.check(tolerance_of<bf16>) == "");
  }
}

TEST_CASE("warpgroup attention: logit cap, sliding window and attention sink") {
  compare_all({.logit_cap = 3.0f}, {{1, 100}, {100, 150}, {2, 3}});
  compare_all({.window = 1}, {{1, 100}, {40, 150}, {2, 3}});
  compare_all({.window = 37}, {{1, 100}, {140, 300}, {64, 90}});
  compare_all({.sink = true}, {{1, 100}, {40, 150}, {2, 0}});
  if (test_small()) return;
  compare_all({.window = 700}, {{1, 100}, {4, 1000}, {300, 3000}});
  compare_all({.logit_cap = 2.0f, .window = 64, .sink = true}, {{1, 100}, {400, 1000}, {2, 3}});
}

TEST_CASE("warpgroup attention: tree masks: a token sees what was cached before, and its ancestors") {
  compare_all({.tree = true}, {{8, 100}, {16, 16}, {0, 40}, {1, 129}, {7, 3}});
  compare_all({.heads = 6, .kv_heads = 1, .window = 5, .tree = true}, {{40, 150}, {64, 130}, {3, 300}});
  compare_all({.heads = 8, .kv_heads = 1, .page_shift = 0, .tree = true}, {{33, 161}, {64, 100}});
  if (test_small()) return;
  // of every width, ending anywhere in their tiles, alone and several
  for (const int tokens : {2, 33, 64})
    for (const int prefix : {0, 127}) {
      CAPTURE(tokens);
      CAPTURE(prefix);
      compare_all({.heads = 8, .kv_heads = 2, .tree = true}, {{tokens, prefix + tokens}, {1, 90}}, 20);
    }
  compare_all({.heads = 16, .kv_heads = 1, .page_shift = 3, .window = 70, .tree = true},
              {{64, 500}, {5, 300}, {64, 64}, {20, 9}}, 30);
  compare_all({.heads = 6, .kv_heads = 2, .window = 9, .tree = true, .csr = true, .step_kv = true},
              {{64, 300}, {12, 140}, {2, 1}}, 60);
}

TEST_CASE_TEMPLATE("warpgroup attention: frozen-plan, pdl-race: one capture, replays leave the same bits", T,
                   f16, bf16) {
  if (!has_warpgroups()) return;
  const stream at(test_device());
  for (const detail::split_options& options : all_options) {
    planned_batch<T> planned(
        at, {.rows = 5, .tokens = 200, .heads = 8, .kv_heads = 2, .head_size = 128, .longest = 3000}, options,
        test_seed());
    planned.batch.set({});
    const graph_exec exec = capture(at, [&](stream_ref s) {
                              for (int i = 0; i < test_rounds(6); ++i) planned.enqueue(s);
                            }).instantiate();
    const std::vector<std::vector<ragged_row>> steps = {
        {{1, 63}, {1, 64}, {130, 130}},
        {},
        {{1, 255}, {1, 256}, {1, 257}, {1, 0}, {1, 1}},
        {{8, 511}, {0, 512}, {150, 513}, {3, 2}, {8, 520}},
        {{200, 3000}},
        {{0, 3000}, {0, 100}, {1, 3000}},
    };
    for (std::size_t i = 0; i < (test_small() ? 2 : steps.size()); ++i) {
      CAPTURE(i);
      planned.batch.set(steps[i]);
      exec.launch(at);
      REQUIRE(planned.batch.check(tolerance_of<T>, 24) == "");
      const auto bits_of = [](const std::vector<T>& values) {
        std::vector<std::uint16_t> bits;
        for (const T value : values) bits.push_back(value.bits);
        return bits;
      };
      const auto first = bits_of(planned.batch.output());
      for (int run = 0; run < 3; ++run) {
        planned.batch.clear_outputs();
        exec.launch(at);
        REQUIRE(bits_of(planned.batch.output()) == first);
      }
    }
  }
}

TEST_CASE("warpgroup attention: wrap-32: a page stride past 2^31 elements reaches the right key") {
  if (!has_warpgroups()) return;
  const stream at(test_device());
  for (detail::split_options options : all_options) {
    // the copy engine wants page 0 mapped, which this pool only pretends
    options.bulk = false;
    for (const std::int64_t stride :
         {std::int64_t{1} << 30, (std::int64_t{1} << 31) - 8, (std::int64_t{1} << 31) + 8}) {
      planned_batch<bf16> planned(
          at, {.rows = 1, .tokens = 8, .heads = 2, .kv_heads = 1, .page_shift = 6, .longest = 64}, options,
          test_seed());
      planned.batch.set({{8, 50}});
      paged_attention_params params = planned.batch.params();
      // one page is really there; the addresses before it are never touched
      const int page = 3;
      const auto before = [&](const void* first) {
        const auto real =
            reinterpret_cast<std::uintptr_t>(first) + planned.batch.page(0, 0) * params.cache.page_stride * 2;
        return reinterpret_cast<const void*>(real - stride * page * 2);
      };
      params.cache.keys = before(params.cache.keys);
      params.cache.values = before(params.cache.values);
      params.cache.page_stride = stride;
      params.cache.pages = page + 1;
      const device_vector<std::int32_t> table(at, {page});
      params.page_table = table.data();
      params.workspace = planned.workspace.data();
      params.workspace_bytes = planned.workspace.size();
      detail::split_attention_cuda(at, params, options);
      REQUIRE(planned.batch.check(tolerance_of<bf16>) == "");
    }
  }
}

TEST_CASE("warpgroup attention: a page that is no page is not followed, and its row is reported") {
  if (!has_warpgroups()) return;
  const stream at(test_device());
  planned_batch<bf16> planned(at, {.rows = 1, .tokens = 40, .longest = 100}, all_options[1], test_seed());
  planned.batch.set({{40, 40}});
  paged_attention_params params = planned.batch.params();
  const device_vector<std::int32_t> table(at, {1, -1, 0x7f7f7f7f}), taken(at, 1, 0), status(at, 2, 0);
  const buffer record(pinned_memory(test_device()), sizeof(fault_record));
  *record.as<fault_record>() = {};
  params.faults = {record.as<fault_record>(), taken.data(), status.data()};
  params.page_table = table.data();
  params.page_table_stride = params.page_columns = 3;
  params.workspace = planned.workspace.data();
  detail::split_attention_cuda(at, params, planned.options);
  CHECK(status.get()[0] == static_cast<std::int32_t>(row_status::slot_out_of_range));
  CHECK(record.as<fault_record>()->op == static_cast<std::int32_t>(op_id::paged_attention));
}

#endif
