#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/error.hpp"
#include "kernels/speculate/draft_extend_inputs.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/kernels/speculate_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr int columns = 60;

/// A random round of `nodes` a row at most over a token-granular table, then the op; compares all that it writes with the
/// definition.
void compare(std::uint64_t seed, int rows, int live, int nodes, bool chain) {
  CAPTURE(seed);
  const int requests = std::max(9, rows + 1);
  const stream at(test_device());
  reference::random_integers random(seed);
  const verify_case in = random_verify_case(random, rows, live, nodes, 5, chain);
  const int stride = 10, tokens = in.live_tokens() + 3;
  std::vector<std::int32_t> emit(rows, wild), advance(rows, wild), emitted(rows * stride, wild),
      path(rows * stride, wild), line(rows, wild), base(rows, wild), finished, slots;
  for (int q = 0; q < requests; ++q) finished.push_back(random.one_in(4) ? 1 : 0);
  for (int i = 0; i < requests * columns; ++i)
    slots.push_back(static_cast<std::int32_t>(random.between(1, 100000)));
  std::vector<std::int64_t> want_counts(rows, 0), want_cu{0}, want_ids, want_hidden, want_position, want_slot,
      want_row;
  for (int row = 0; row < live; ++row) {
    line[row] = requests - 1 - row;
    base[row] = static_cast<std::int32_t>(random.between(0, columns - 10));
    // some path, as an accept leaves it; now and then without a bonus, or cut by a finish
    std::vector<std::int64_t> kept;
    for (int node = 0; node < in.nodes(row); ++node)
      if (kept.empty() || (in.trees[row].parents[node] == kept.back() && !random.one_in(3)))
        kept.push_back(node);
    const int bonus = random.one_in(4) ? 0 : 1;
    advance[row] = static_cast<std::int32_t>(kept.size());
    emit[row] = kept.empty() ? 0 : advance[row] - 1 + bonus;
    for (int i = 0; i < advance[row]; ++i) path[row * stride + i] = static_cast<std::int32_t>(kept[i]);
    for (int i = 0; i < emit[row]; ++i)
      emitted[row * stride + i] = static_cast<std::int32_t>(random.below(1000));
    if (finished[line[row]]) continue;
    want_counts[row] = std::min(emit[row], advance[row]);
    for (int i = 0; i < want_counts[row]; ++i) {
      want_ids.push_back(emitted[row * stride + i]);
      want_hidden.push_back(in.cu[row] + kept[i]);
      want_position.push_back(base[row] + i);
      want_slot.push_back(slots[line[row] * columns + base[row] + i]);
      want_row.push_back(row);
    }
  }
  for (int row = 0; row < rows; ++row) want_cu.push_back(want_cu.back() + want_counts[row]);
  want_ids.resize(tokens, 0), want_hidden.resize(tokens, 0), want_position.resize(tokens, 0),
      want_row.resize(tokens, 0);
  want_slot.resize(tokens, -1);

  const device_verify step(at, in, !chain);
  device_result result(at, rows, stride);
  const device_vector<std::int32_t> device_emit(at, emit), device_advance(at, advance),
      device_emitted(at, emitted), device_path(at, path), device_line(at, line), device_base(at, base),
      device_finished(at, finished), table(at, slots), counts(at, rows + 2, poison),
      ids(at, tokens + 2, poison), hidden(at, tokens + 2, poison), cu(at, rows + 3, poison),
      row_of(at, tokens + 2, poison), position(at, tokens + 2, poison), loc(at, tokens + 2, poison);
  result.view.emit_count = device_emit.data();
  result.view.cache_advance = device_advance.data();
  result.view.emit_tokens = device_emitted.data();
  result.view.path = device_path.data();
  // a row's number is where its line is; those of rows without tokens share one of their own
  std::vector<std::uint64_t> want_ranked(requests + 2, 77);
  std::vector<std::int64_t> want_line(rows, requests);
  for (int row = 0; row < rows; ++row) {
    if (want_counts[row] > 0) want_line[row] = line[row];
    want_ranked[want_line[row]] = 0;
  }
  const device_vector<std::uint64_t> ranked(at, requests + 2, 77);
  const device_vector<std::int32_t> out_line(at, rows + 2, poison);
  fault_fixture faults(at, rows);
  draft_extend_inputs(
      at,
      {.verify = step.view,
       .result = result.view,
       .finished = device_finished.data(),
       .query_counts = counts.data(),
       .token_ids = ids.data(),
       .hidden_row = hidden.data(),
       .out_line = out_line.data(),
       .ranked = ranked.data(),
       .inputs = {
           .lengths = {.live_rows = step.view.live_rows,
                       .rows = rows,
                       .seq_lens = device_base.data(),
                       .delta_by_row = counts.data(),
                       .cap = columns},
           .query_counts = counts.data(),
           .max_query_count = 9,
           .tokens = tokens,
           .requests = device_line.data(),
           .source = {.table = table.data(), .row_stride = columns, .requests = requests, .columns = columns},
           .cu_seqlens_q = cu.data(),
           .row_of = row_of.data(),
           .position = position.data(),
           .out_cache_loc = loc.data(),
           .faults = faults.sink()}});
  const auto equal = [](const device_vector<std::int32_t>& got, std::vector<std::int64_t> want) {
    want.insert(want.end(), {poison, poison});
    const auto values = got.get();
    return std::vector<std::int64_t>(values.begin(), values.end()) == want;
  };
  CHECK(equal(counts, want_counts));
  CHECK(equal(out_line, want_line));
  CHECK(ranked.get() == want_ranked);
  CHECK(equal(cu, want_cu));
  CHECK(equal(ids, want_ids));
  CHECK(equal(hidden, want_hidden));
  CHECK(equal(row_of, want_row));
  CHECK(equal(position, want_position));
  CHECK(equal(loc, want_slot));
  CHECK(faults.record().status == 0);
}

}  // namespace

TEST_CASE(
    "draft-extend pairs each cached position with the next token and the target's hidden state, at every "
    "live count") {
  int i = 0;
  for (int live = 8; live >= 0; --live)
    for (int repeat = 0; repeat < 12; ++repeat)
      compare(test_seed() + i++, 8, live, repeat % 3 == 0 ? 9 : repeat % 3 == 1 ? 8 : 4, repeat % 2 == 0);
  // more rows than a block has threads
  for (const int nodes : {4, 9}) compare(test_seed() + i++, 300, 270, nodes, true);
}

TEST_CASE("draft-extend inputs refuse by name what the host can see") {
  const stream at(test_device());
  CHECK_THROWS_WITH_AS(draft_extend_inputs(at, {}), doctest::Contains("verify.rows"), invalid_argument);
  const device_verify step(at, make_verify_case(1, 2, {{{-1}, {1}}}, 0), false);
  device_result result(at, 1, 2);
  CHECK_THROWS_WITH_AS(draft_extend_inputs(at, {.verify = step.view, .result = result.view}),
                       doctest::Contains("lengths.rows"), invalid_argument);
}
