#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

template <class T>
constexpr double tolerance_of = std::is_same_v<T, float> ? 5e-5  // float32 sums of up to 128K terms
                                : std::is_same_v<T, f16> ? 2e-3
                                                         : 1e-2;

template <class T>
void compare(const ragged_shape& s, const std::vector<ragged_row>& rows, int most) {
  const stream at(test_device());
  ragged_batch<T> batch(at, s, test_seed());
  batch.set(rows);
  paged_attention(at, batch.params());
  REQUIRE(batch.check(tolerance_of<T>, most) == "");
}

/// Split-KV in both types and head sizes, and the plain kernel, which is all there is for float32.
void compare_all(ragged_shape s, const std::vector<ragged_row>& rows, int most = 60) {
  CAPTURE(test_seed());
  int tokens = 0;
  for (const auto& row : rows) {
    s.longest = std::max(s.longest, row.length);
    tokens += row.tokens;
  }
  s.rows = std::max<int>(s.rows, static_cast<int>(rows.size()));
  s.tokens = std::max(s.tokens, tokens);
  for (const int head_size : {64, 128}) {
    CAPTURE(head_size);
    s.head_size = head_size;
    compare<f16>(s, rows, most);
    compare<bf16>(s, rows, most);
  }
  s.workspace = false;
  compare<float>(s, rows, most);
}

/// Random rows of 0 to `most_tokens` tokens over 0 to `longest` cached ones; some are fresh, with fewer
/// cached than new.
std::vector<ragged_row> random_rows(std::uint64_t seed, int rows, int most_tokens, int longest) {
  reference::random_integers random(seed);
  std::vector<ragged_row> made;
  for (int row = 0; row < rows; ++row)
    made.push_back(
        {static_cast<int>(random.between(0, most_tokens)), static_cast<int>(random.between(0, longest))});
  return made;
}

}  // namespace

TEST_CASE(
    "nan-tail, nan-empty, ragged-zero: ragged attention equals the oracle, dead rows and tokens are zeros") {
  for (const int longest : {1, 17, 63, 64, 65, 300, 1000})
    for (const int tokens : {1, 3, 8}) {
      if (test_small() && (longest > 65 || tokens == 3)) continue;
      CAPTURE(longest);
      CAPTURE(tokens);
      compare_all({.rows = 8, .tokens = 30}, random_rows(test_seed() + longest, 6, tokens, longest));
    }
  // nothing is live at all; rows without tokens; a row with nothing cached
  compare_all({}, {});
  compare_all({}, {{0, 50}, {0, 0}});
  compare_all({}, {{2, 0}, {1, 70}, {0, 20}, {3, 1}});
}

TEST_CASE("page sizes from 1 to 1024, and any number of query heads per KV head") {
  compare_all({.heads = 9, .kv_heads = 3, .page_shift = 0}, {{1, 200}, {1, 1}, {1, 130}});
  compare_all({.heads = 3, .kv_heads = 3, .page_shift = 6}, {{1, 64}, {1, 65}, {1, 128}});
  compare_all({.heads = 8, .kv_heads = 1, .page_shift = 10}, {{1, 1500}, {1, 1024}, {1, 1023}});
  compare_all({.heads = 40, .kv_heads = 1, .page_shift = 2}, {{1, 100}, {2, 300}});
  compare_all({.heads = 6, .kv_heads = 1, .page_shift = 5}, {{7, 100}, {11, 300}, {1, 500}});
}

TEST_CASE("one token a row over lengths 1 to 128K") {
  for (const int length : {1, 2, 129, 4096, 5000})
    if (!test_small() || length < 1000)
      compare_all({.rows = 1, .tokens = 1, .heads = 8, .kv_heads = 2}, {{1, length}}, 8);
  if (test_small()) return;
  compare_all({.rows = 1, .tokens = 1, .heads = 2, .kv_heads = 1}, {{1, 131072}}, 2);
  compare_all({.rows = 3, .tokens = 3, .heads = 2, .kv_heads = 1}, {{1, 1}, {1, 40000}, {1, 70}}, 6);
}

TEST_CASE("verify of 1 to 64 tokens a row, and chunks longer than a query tile") {
  for (const int width : {1, 2, 5, 8, 31, 32, 33, 63, 64})
    if (!test_small() || width < 9)
      compare_all({.rows = 3, .tokens = 1}, {{width, 200}, {width, width}, {width, 64 + width}}, 30);
  compare_all({.rows = 2, .tokens = 1, .heads = 6, .kv_heads = 2}, {{300, 300}, {1, 900}, {150, 500}}, 60);
}

TEST_CASE("tree masks: a token sees what was cached before, and its ancestors") {
  for (const int width : {1, 2, 7, 31, 32, 33, 63, 64})
    if (!test_small() || width < 9)
      compare_all({.rows = 3, .tokens = 1, .tree = true},
                  {{width, 200}, {width, width}, {width, 63 + width}, {1, 7}}, 40);
  compare_all({.rows = 2, .tokens = 1, .tree = true}, {{9, 5}, {16, 3000}}, 40);
  compare_all({.window = 5, .tree = true}, {{20, 200}, {20, 20}, {64, 67}}, 60);
}

TEST_CASE("ragged: scales of either sign, and none") {
  for (const double scale : {-1.0, 0.0, 2.5}) {
    CAPTURE(scale);
    compare_all({.scale = scale}, {{1, 100}, {4, 300}, {2, 3}});
    compare_all({.rows = 1, .tokens = 1, .scale = scale, .logit_cap = 4.0f}, {{1, 700}});
    if (!test_small()) compare_all({.scale = scale}, {{70, 200}, {1, 500}});
  }
}

TEST_CASE("ragged: logit cap, sliding window and attention sink") {
  compare_all({.logit_cap = 3.0f}, {{1, 100}, {4, 1000}, {2, 3}});
  compare_all({.window = 1}, {{1, 100}, {4, 1000}, {2, 3}});
  compare_all({.window = 37}, {{1, 100}, {4, 1000}, {64, 300}});
  compare_all({.window = 700}, {{1, 100}, {4, 1000}, {64, 3000}});
  compare_all({.sink = true}, {{1, 100}, {4, 1000}, {2, 0}});
  compare_all({.logit_cap = 2.0f, .window = 64, .sink = true}, {{1, 100}, {4, 1000}, {2, 3}});
}

TEST_CASE(
    "extend: a cached prefix listed by row or one row after another, the step's own tokens in the cache or "
    "beside") {
  for (const bool csr : {false, true})
    for (const bool step_kv : {false, true}) {
      if (!csr && !step_kv) continue;
      CAPTURE(csr);
      CAPTURE(step_kv);
      compare_all({.rows = 8, .tokens = 40, .csr = csr, .step_kv = step_kv},
                  random_rows(test_seed() + csr, 6, 6, 90));
      compare_all({.page_shift = 0, .csr = csr, .step_kv = step_kv}, {{1, 70}, {3, 1}, {5, 5}, {0, 9}});
      compare_all({.window = 9, .csr = csr, .step_kv = step_kv}, {{12, 70}, {20, 20}, {1, 200}});
      compare_all({.tree = true, .csr = csr, .step_kv = step_kv}, {{9, 70}, {20, 20}, {1, 65}});
      if (test_small()) continue;
      compare_all({.heads = 6, .kv_heads = 2, .page_shift = 6, .csr = csr, .step_kv = step_kv},
                  {{300, 300}, {1, 900}, {150, 500}, {0, 40}});
    }
}

TEST_CASE_TEMPLATE("frozen-plan: one capture serves lengths across every split threshold", T, f16, bf16) {
  const stream at(test_device());
  for (const bool invariant : {false, true}) {
    CAPTURE(invariant);
    ragged_batch<T> batch(at,
                          {.rows = 5,
                           .tokens = 24,
                           .heads = 4,
                           .kv_heads = 1,
                           .page_shift = 4,
                           .longest = 9000,
                           .batch_invariant = invariant},
                          test_seed());
    batch.set({});
    const graph_exec exec =
        capture(at, [&](stream_ref s) { paged_attention(s, batch.params()); }).instantiate();
    const std::vector<std::vector<ragged_row>> steps = {
        {},
        {{1, 63}, {1, 64}, {1, 65}},
        {{1, 255}, {1, 256}, {1, 257}, {1, 0}, {1, 1}},
        {{8, 511}, {0, 512}, {1, 513}, {3, 2}, {8, 520}},
        {{24, 9000}},
        {{0, 9000}, {0, 100}, {1, 9000}},
        {{1, 2047}, {1, 2048}, {1, 2049}, {1, 2111}, {1, 2112}},
        {{8, 4096}, {8, 4097}, {8, 8191}},
        {{12, 7}, {12, 12}},
        {{1, 16384 / 2 + 1}, {2, 8999}, {3, 4160}, {4, 4161}, {5, 63}},
    };
    for (std::size_t i = 0; i < (test_small() ? 4 : steps.size()); ++i) {
      CAPTURE(i);
      batch.set(steps[i]);
      exec.launch(at);
      REQUIRE(batch.check(tolerance_of<T>, 24) == "");
    }
  }
}

TEST_CASE("pdl-race: replays one after another leave the same bits") {
  const stream at(test_device());
  ragged_batch<bf16> batch(at, {.rows = 6, .tokens = 12, .heads = 8, .kv_heads = 2, .longest = 5000},
                           test_seed());
  batch.set({{1, 5000}, {4, 3000}, {0, 100}, {2, 2}, {5, 1}});
  const graph_exec exec = capture(at, [&](stream_ref s) {
                            for (int i = 0; i < test_rounds(20); ++i) paged_attention(s, batch.params());
                          }).instantiate();
  exec.launch(at);
  const auto bits_of = [](const std::vector<bf16>& values) {
    std::vector<std::uint16_t> bits;
    for (const bf16 value : values) bits.push_back(value.bits);
    return bits;
  };
  const auto first = bits_of(batch.output());
  REQUIRE(batch.check(tolerance_of<bf16>) == "");
  for (int run = 0; run < test_rounds(5); ++run) {
    batch.clear_outputs();
    exec.launch(at);
    exec.launch(at);
    REQUIRE(bits_of(batch.output()) == first);
  }
}

TEST_CASE("one workspace serves steps of different shapes in turn") {
  const stream at(test_device());
  ragged_batch<bf16> decode(at, {.rows = 4, .tokens = 4, .heads = 9, .kv_heads = 3, .longest = 3000},
                            test_seed());
  ragged_batch<bf16> prompt(at, {.rows = 2, .tokens = 200, .heads = 9, .kv_heads = 3, .longest = 3000},
                            test_seed());
  ragged_batch<bf16> invariant(
      at, {.rows = 4, .tokens = 8, .heads = 9, .kv_heads = 3, .longest = 3000, .batch_invariant = true},
      test_seed());
  decode.set({{1, 3000}, {1, 1}, {1, 2000}, {1, 65}});
  prompt.set({{150, 3000}, {50, 1000}});
  invariant.set({{1, 3000}, {2, 1500}, {0, 7}, {5, 700}});
  std::size_t bytes = 0;
  for (const auto* batch : {&decode, &prompt, &invariant})
    bytes = std::max(bytes, batch->params().workspace_bytes);
  const device_vector<std::uint8_t> workspace(at, bytes, 0);
  for (int round = 0; round < 3; ++round)
    for (auto* batch : {&decode, &prompt, &invariant}) {
      CAPTURE(round);
      paged_attention_params params = batch->params();
      params.workspace = workspace.data();
      params.workspace_bytes = workspace.size();
      batch->clear_outputs();
      paged_attention(at, params);
      REQUIRE(batch->check(tolerance_of<bf16>, 40) == "");
    }
}

TEST_CASE("wrap-32: a page stride past 2^31 elements reaches the right key") {
  const stream at(test_device());
  const int head_size = 64, length = 50, page = 3;
  reference::random_integers random(test_seed());
  std::vector<bf16> keys(64 * head_size), values(64 * head_size), query(head_size);
  for (auto* each : {&keys, &values, &query})
    for (bf16& value : *each)
      value = from_float<bf16>(static_cast<float>(random.between(-2000, 2000)) / 1000.0f);
  const device_vector<bf16> device_keys(at, keys), device_values(at, values), device_query(at, query),
      output(at, query.size(), bf16{});
  for (const std::int64_t stride :
       {std::int64_t{1} << 30, (std::int64_t{1} << 31) - 8, (std::int64_t{1} << 31) + 8}) {
    // one page is really there; the addresses before it are never touched
    const auto before = [&](const bf16* page_data) {
      return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(page_data) - stride * page * 2);
    };
    const device_vector<std::int32_t> table(at, {page}), row_of(at, {0}), causal(at, {length}),
        cu(at, {0, 1});
    paged_attention_params params{.type = element_type::bf16,
                                  .query = device_query.data(),
                                  .output = output.data(),
                                  .cache = {before(device_keys.data()), before(device_values.data()), stride,
                                            head_size, head_size, page + 1},
                                  .page_table = table.data(),
                                  .page_table_stride = 1,
                                  .page_columns = 1,
                                  .row_of = row_of.data(),
                                  .causal_length = causal.data(),
                                  .tokens = 1,
                                  .rows = 1,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_size = head_size,
                                  .page_shift = 6,
                                  .scale = 0.125f,
                                  .cu_seqlens_q = cu.data(),
                                  .cache_seqlens = causal.data()};
    const device_vector<std::uint8_t> workspace(at, paged_attention_workspace_bytes(at.where(), params), 0);
    params.workspace = workspace.data();
    params.workspace_bytes = workspace.size();
    paged_attention(at, params);
    reference::attention_case one{
        .query = {},
        .positions = length,
        .visible = {},
        .key = [&](std::int64_t p, int d) { return to_float(keys[p * head_size + d]); },
        .value = [&](std::int64_t p, int d) { return to_float(values[p * head_size + d]); },
        .scale = 0.125};
    for (const bf16 value : query) one.query.push_back(to_float(value));
    const auto want = reference::attention(one);
    const auto got = output.get();
    for (int d = 0; d < head_size; ++d)
      CHECK(to_float(got[d]) == doctest::Approx(want.output[d]).epsilon(0.02));
  }
}

TEST_CASE("ragged attention reports pages and lengths that cannot be, and refuses what it does not support") {
  const stream at(test_device());
  ragged_batch<bf16> batch(at, {.rows = 2, .tokens = 2, .longest = 100}, test_seed());
  batch.set({{1, 40}, {1, 100}});
  paged_attention_params params = batch.params();
  const device_vector<std::int32_t> table(at, {1, -1, 0x7f7f7f7f}), taken(at, 1, 0), status(at, 2, 0);
  const buffer record(pinned_memory(test_device()), sizeof(fault_record));
  *record.as<fault_record>() = {};
  params.faults = {record.as<fault_record>(), taken.data(), status.data()};
  params.page_table = table.data();
  params.page_table_stride = params.page_columns = 3;
  params.rows = 1;
  paged_attention(at, params);
  CHECK(status.get()[0] == static_cast<std::int32_t>(row_status::slot_out_of_range));
  CHECK(record.as<fault_record>()->op == static_cast<std::int32_t>(op_id::paged_attention));

  params = batch.params();
  const std::uint64_t* const mask = reinterpret_cast<const std::uint64_t*>(params.output);
  params.tree_mask = mask;
  params.tree_tokens = 65;
  CHECK_THROWS_WITH_AS(paged_attention(at, params),
                       doctest::Contains("a tree of 65 tokens is not supported, only 1 to 64"),
                       invalid_argument);
  params.tree_tokens = 64;
  params.cu_seqlens_q = nullptr;
  CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains("tree_mask needs cu_seqlens_q"),
                       invalid_argument);
  params = batch.params();
  params.step_kv.keys = params.query;
  CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains("step_kv needs both keys and values"),
                       invalid_argument);
  params.step_kv.values = params.query;
  params.step_kv.token_stride = 3;
  CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains("step_kv strides 3, 0 must be"),
                       invalid_argument);
  // addresses that vector loads cannot read
  const auto refused = [&](const char* name, auto change) {
    params = batch.params();
    change(params);
    CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains(name), invalid_argument);
    CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains("not 16-byte aligned"),
                         invalid_argument);
  };
  const auto off = [](const void* pointer) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(pointer)) + 8;
  };
  refused("query is at", [&](auto& p) { p.query = off(p.query); });
  refused("output is at", [&](auto& p) { p.output = off(p.output); });
  refused("cache.keys is at", [&](auto& p) { p.cache.keys = off(p.cache.keys); });
  refused("cache.values is at", [&](auto& p) { p.cache.values = off(p.cache.values); });
  refused("step_kv.values is at", [&](auto& p) {
    p.step_kv = {.keys = p.query, .values = off(p.query), .token_stride = 8, .head_stride = 8};
  });
  refused("workspace is at", [&](auto& p) { p.workspace = off(p.query); });
  params = batch.params();
  if (params.workspace_bytes > 0) {
    params.workspace_bytes -= 1;
    CHECK_THROWS_WITH_AS(paged_attention(at, params), doctest::Contains("are needed"), invalid_argument);
  }
}
