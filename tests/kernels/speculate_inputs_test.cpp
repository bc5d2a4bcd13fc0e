#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/speculate/verify_inputs.hpp"
#include "tests/kernels/metadata_fixture.hpp"
#include "tests/kernels/speculate_fixture.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

struct inputs_case {
  reference::batch batch;  // E: what the rows want; seq_lens: before the step
  bool tree = false;
  std::vector<std::int32_t> finished;    // [requests]
  std::vector<std::int32_t> capacity;    // [requests]
  std::vector<std::int32_t> last_token;  // [requests]
  std::vector<std::int32_t> drafts;      // [rows, Emax - 1]
  std::vector<std::int32_t> parents;     // [rows, Emax]
};

constexpr int vocab = 50;

/// A ragged batch whose lengths count the tokens before the step; in the live rows' requests nothing is out
/// of range.
inputs_case random_inputs(std::uint64_t seed, const reference::random_batch_options& options, bool tree) {
  reference::random_integers random(seed + 77);
  inputs_case in{reference::random_batch(seed, options), tree, {}, {}, {}, {}, {}};
  in.batch.C = std::max<std::int64_t>(in.batch.C, 1);
  const reference::batch& b = in.batch;
  for (std::int64_t q = 0; q < b.source.rows; ++q) {
    in.finished.push_back(random.one_in(6) ? 2 : 0);
    in.capacity.push_back(random.one_in(2) ? 1000000 : static_cast<std::int32_t>(random.between(0, b.cap())));
    in.last_token.push_back(static_cast<std::int32_t>(random.below(vocab)));
  }
  for (std::int64_t row = 0; row < b.B; ++row) {
    for (std::int64_t node = 0; node < b.Emax; ++node) {
      const bool live = row < b.n;
      if (node > 0) in.drafts.push_back(live ? static_cast<std::int32_t>(random.below(vocab)) : wild);
      in.parents.push_back(!live || node == 0 ? wild : static_cast<std::int32_t>(random.below(node)));
    }
  }
  return in;
}

/// Runs the op and compares everything it writes with the definitions.
void compare(inputs_case in, std::int32_t skip) {
  CAPTURE(reference::describe(in.batch));
  const stream at(test_device());
  reference::batch& b = in.batch;
  b.delta = 0;
  b.delta_of.clear();
  const device_batch batch(at, b);
  const auto tokens = static_cast<std::int32_t>(b.C), width = static_cast<std::int32_t>(b.Emax);
  const auto some = [](std::vector<std::int32_t> values) {
    if (values.empty()) values.push_back(0);
    return values;
  };
  const device_vector<std::int32_t> finished(at, in.finished), capacity(at, in.capacity),
      last(at, in.last_token), drafts(at, some(in.drafts)), parents(at, in.parents);
  device_vector<std::int32_t> counts(at, b.B + 4, poison), ids(at, b.C + 4, poison),
      parent_of(at, b.C + 4, poison), depth(at, b.C + 4, poison), cu(at, b.B + 5, poison),
      last_row(at, b.B + 4, poison), row_of(at, b.C + 4, poison), position(at, b.C + 4, poison),
      causal(at, b.C + 4, poison), loc(at, b.C + 4, poison);
  device_vector<std::uint64_t> ancestors(at, b.C + 4, 99);
  row_lengths lengths = batch.lengths;
  lengths.delta = 0;
  lengths.delta_by_row = counts.data();
  verify_inputs(at, {.wanted = batch.query_counts(),
                     .finished = finished.data(),
                     .token_capacity = capacity.data(),
                     .last_token = last.data(),
                     .drafts = drafts.data(),
                     .draft_stride = width - 1,
                     .parents = in.tree ? parents.data() : nullptr,
                     .parent_stride = width,
                     .vocab_size = vocab,
                     .query_counts = counts.data(),
                     .token_ids = ids.data(),
                     .parent_of = parent_of.data(),
                     .depth = depth.data(),
                     .ancestors = ancestors.data(),
                     .inputs = {.lengths = lengths,
                                .query_counts = counts.data(),
                                .max_query_count = width,
                                .tokens = tokens,
                                .requests = batch.requests(),
                                .source = batch.source,
                                .skip = skip,
                                .cu_seqlens_q = cu.data(),
                                .last_row = last_row.data(),
                                .row_of = row_of.data(),
                                .position = position.data(),
                                .causal_length = causal.data(),
                                .out_cache_loc = loc.data(),
                                .faults = batch.faults}});
  // what each row may do, from the definitions
  for (std::int64_t row = 0; row < b.n; ++row) {
    const std::int64_t q = b.q[row], room = std::min<std::int64_t>(b.cap(), in.capacity[q]) - b.seq_lens[row];
    b.E[row] = in.finished[q] != 0 ? 0 : std::max<std::int64_t>(0, std::min(b.E[row], room));
  }
  b.delta_of.assign(b.B, 0);
  for (std::int64_t row = 0; row < b.n; ++row) b.delta_of[row] = b.E[row];
  const auto derived = reference::derive(b);
  std::vector<std::int64_t> depths(b.C, 0);
  const auto got_counts = counts.get(), got_ids = ids.get(), got_parents = parent_of.get(),
             got_depth = depth.get(), got_cu = cu.get();
  const auto got_ancestors = ancestors.get();
  for (std::int64_t row = 0; row < b.B; ++row) CHECK(got_counts[row] == (row < b.n ? b.E[row] : 0));
  for (std::int64_t row = 0; row <= b.B; ++row) CHECK(got_cu[row] == derived.cu_q[row]);
  for (std::int64_t t = 0; t < b.C; ++t) {
    CAPTURE(t);
    const bool live = t < derived.T;
    const std::int64_t row = live ? derived.row_of[t] : 0, node = live ? derived.j[t] : 0;
    CHECK(got_ids[t] == (!live       ? 0
                         : node == 0 ? in.last_token[b.q[row]]
                                     : in.drafts[row * (b.Emax - 1) + node - 1]));
    if (!in.tree) continue;
    std::vector<std::int64_t> up{-1};
    for (std::int64_t i = 1; live && i <= node; ++i) up.push_back(in.parents[row * b.Emax + i]);
    depths[t] = live ? reference::depths(up).back() : 0;
    CHECK(got_depth[t] == depths[t]);
    CHECK(got_parents[t] == (live && node > 0 ? up.back() : 0));
    CHECK(got_ancestors[t] == (live ? reference::ancestor_sets(up).back() : 0));
  }
  const auto want = reference::token_inputs(
      b, {.out_cache_loc_skip = skip, .depth = in.tree ? depths : std::vector<std::int64_t>{}});
  for (const auto& output : {std::pair{last_row.get(), want.last_row},
                             {row_of.get(), want.row_of},
                             {position.get(), want.position},
                             {causal.get(), want.causal_length},
                             {loc.get(), want.out_cache_loc}}) {
    const auto& got = output.first;
    const auto& expected = output.second;
    CHECK_MESSAGE(check_live(got, expected).empty(), check_live(got, expected));
    CHECK_MESSAGE(check_untouched(got, poison, expected).empty(), check_untouched(got, poison, expected));
  }
  for (int i = 0; i < 4; ++i) {
    CHECK(got_counts[b.B + i] == poison);
    CHECK(got_ids[b.C + i] == poison);
    CHECK(got_ancestors[b.C + i] == 99);
  }
}

}  // namespace

TEST_CASE("verify inputs of random ragged chains and trees equal the definitions, with both sentinels") {
  for (int i = 0; i < 60; ++i)
    compare(random_inputs(test_seed() + i, {.draft_steps = 6, .page_granular = i % 2 == 0, .poison = true},
                          i % 3 != 0),
            i % 4 < 2 ? 0 : -1);
}

TEST_CASE(
    "verify inputs of chains around the width that a thread makes by itself, and of more rows than a block "
    "has") {
  int i = 2000;
  const auto check = [&](int rows, int live, int width) {
    ++i;
    compare(random_inputs(test_seed() + i,
                          {.rows = rows,
                           .live_rows = live,
                           .max_tokens = width,
                           .page_size = 16,
                           .max_context = 400,
                           .draft_steps = width,
                           .page_granular = i % 2 == 0,
                           .poison = true},
                          false),
            i % 3 == 0 ? 0 : -1);
  };
  for (const int width : {1, 2, 7, 8, 9, 33})
    for (int live = 4; live >= 0; --live) check(4, live, width);
  for (const int width : {5, 9}) check(300, 270, width);
}

TEST_CASE("shape-grid: verify inputs at widths around those of words, every live count") {
  int i = 1000;
  for (const int width : {1, 2, 31, 32, 33, 63, 64})
    for (int live = 4; live >= 0; --live)
      compare(random_inputs(test_seed() + i++,
                            {.rows = 4,
                             .live_rows = live,
                             .max_tokens = width,
                             .page_size = 16,
                             .max_context = 400,
                             .draft_steps = width,
                             .poison = true},
                            true),
              -1);
}
