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
  for (const auto& [got, expected] : {std::pair{last_row.get(), want.last_row},
                                      {row_of.get(), want.row_of},
                                      {position.get(), want.position},
                                      {causal.get(), want.causal_length},
                                      {loc.get(), want.out_cache_loc}}) {
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

namespace {

/// One row of `wanted` tokens after `before`, one request; pages of one token, slots 10 + position.
struct small_step {
  int wanted = 4, before = 8, capacity = 1000, finished = 0, last_token = 3;
  std::vector<std::int32_t> drafts{4, 5, 6}, parents{-1, 0, 0, 1};

  struct outcome {
    int count;
    row_status status;
    std::int64_t value;
    std::vector<std::int32_t> ids, parents;
    std::vector<std::uint64_t> ancestors;
  };
  outcome run() const {
    const stream at(test_device());
    std::vector<std::int32_t> slots;
    for (int t = 0; t < 16; ++t) slots.push_back(10 + t);
    const device_vector<std::int32_t> n(at, {1}), lens(at, {before}), table(at, slots), want(at, {wanted}),
        room(at, {capacity}), done(at, {finished}), last(at, {last_token}), requests(at, {0}),
        draft(at, drafts), up(at, parents), counts(at, 1, poison), ids(at, 4, poison),
        parent_of(at, 4, poison), cu(at, 2, poison), row_of(at, 4, poison), status(at, 1, 0), taken(at, 1, 0);
    const device_vector<std::uint64_t> ancestors(at, 4, 99);
    const buffer record(pinned_memory(test_device()), sizeof(fault_record));
    *record.as<fault_record>() = {};
    verify_inputs(
        at, {.wanted = want.data(),
             .finished = done.data(),
             .token_capacity = room.data(),
             .last_token = last.data(),
             .drafts = draft.data(),
             .draft_stride = 3,
             .parents = up.data(),
             .parent_stride = 0,
             .vocab_size = vocab,
             .query_counts = counts.data(),
             .token_ids = ids.data(),
             .parent_of = parent_of.data(),
             .ancestors = ancestors.data(),
             .inputs = {.lengths = {.live_rows = n.data(),
                                    .rows = 1,
                                    .seq_lens = lens.data(),
                                    .delta_by_row = counts.data(),
                                    .cap = 16},
                        .query_counts = counts.data(),
                        .max_query_count = 4,
                        .tokens = 4,
                        .requests = requests.data(),
                        .source = {.table = table.data(), .row_stride = 16, .requests = 1, .columns = 16},
                        .cu_seqlens_q = cu.data(),
                        .row_of = row_of.data(),
                        .faults = {record.as<fault_record>(), taken.data(), status.data()}}});
    return {counts.get()[0],
            static_cast<row_status>(status.get()[0]),
            record.as<fault_record>()->value,
            ids.get(),
            parent_of.get(),
            ancestors.get()};
  }
};

}  // namespace

TEST_CASE("a draft that outruns its pages is cut short; a row with no page for its last token is named") {
  CHECK(small_step{}.run().count == 4);
  const auto cut = small_step{.capacity = 10}.run();
  CHECK(cut.count == 2);
  CHECK(cut.status == row_status::ok);
  CHECK(cut.ids == std::vector<std::int32_t>{3, 4, 0, 0});
  const auto none = small_step{.capacity = 8}.run();
  CHECK(none.count == 0);
  CHECK(none.status == row_status::out_of_pages);
  CHECK(none.value == 8);
  CHECK(small_step{.before = 14}.run().count == 2);  // the context's end
  CHECK(small_step{.before = 16}.run().status == row_status::length_clamped);
}

TEST_CASE("a finished request sits the round out, whatever it wants") {
  const auto done = small_step{.finished = 1}.run();
  CHECK(done.count == 0);
  CHECK(done.status == row_status::ok);
  CHECK(small_step{.wanted = 0, .capacity = 0}.run().status == row_status::ok);
}

TEST_CASE("parents that are not a tree are clamped and reported on the device") {
  const auto later = small_step{.parents = {-1, 0, 2, 1}}.run();  // its own parent
  CHECK(later.status == row_status::not_a_tree);
  CHECK(later.value == 2);
  CHECK(later.parents == std::vector<std::int32_t>{0, 0, 1, 1});
  CHECK(later.ancestors == std::vector<std::uint64_t>{1, 3, 7, 11});
  const auto wild_parents = small_step{.parents = {wild, -5, wild, 0}}.run();
  CHECK(wild_parents.status == row_status::not_a_tree);
  CHECK(wild_parents.parents == std::vector<std::int32_t>{0, 0, 1, 0});
  CHECK(small_step{.parents = {wild, 0, 0, 1}}.run().status ==
        row_status::ok);  // the root's parent is not read
}

TEST_CASE("a token outside the vocabulary is reported and becomes 0, a count outside its range is clamped") {
  const auto id = small_step{.drafts = {4, vocab, 6}}.run();
  CHECK(id.status == row_status::token_out_of_range);
  CHECK(id.ids == std::vector<std::int32_t>{3, 4, 0, 6});
  CHECK(small_step{.last_token = -1}.run().status == row_status::token_out_of_range);
  const auto many = small_step{.wanted = 5}.run();
  CHECK(many.count == 4);
  CHECK(many.status == row_status::query_count_clamped);
  CHECK(small_step{.wanted = -2}.run().count == 0);
}

TEST_CASE("parents that are not a tree are refused by name where the host sees them") {
  const auto check = [](std::vector<std::int32_t> parents) { check_tree(parents); };
  CHECK_NOTHROW(check({-1}));
  CHECK_NOTHROW(check({-1, 0, 0, 1, 3}));
  CHECK_THROWS_WITH_AS(check({}), doctest::Contains("1 to 64 nodes"), invalid_argument);
  CHECK_THROWS_WITH_AS(check(std::vector<std::int32_t>(65, 0)), doctest::Contains("1 to 64 nodes"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(check({0, 0}), doctest::Contains("node 0 is the root"), invalid_argument);
  CHECK_THROWS_WITH_AS(check({-1, 0, 2}), doctest::Contains("node 2 has the parent 2"), invalid_argument);
  CHECK_THROWS_WITH_AS(check({-1, 0, 3, 0}), doctest::Contains("not a tree"), invalid_argument);
  CHECK_THROWS_WITH_AS(check({-1, -1}), doctest::Contains("not a tree"), invalid_argument);
}

TEST_CASE("verify inputs refuse by name what the host can see") {
  const stream at(test_device());
  verify_inputs_params params;
  CHECK_THROWS_WITH_AS(verify_inputs(at, params), doctest::Contains("lengths.rows"), invalid_argument);
  device_vector<std::int32_t> v(at, 64, 0);
  params = {.wanted = v.data(),
            .last_token = v.data(),
            .drafts = v.data(),
            .draft_stride = 3,
            .vocab_size = 9,
            .query_counts = v.data(),
            .token_ids = v.data(),
            .inputs = {.lengths = {.live_rows = v.data(),
                                   .rows = 1,
                                   .seq_lens = v.data(),
                                   .delta_by_row = v.data(),
                                   .cap = 16},
                       .query_counts = v.data(),
                       .max_query_count = 4,
                       .tokens = 4,
                       .requests = v.data(),
                       .source = {.table = v.data(), .row_stride = 16, .requests = 1, .columns = 16},
                       .cu_seqlens_q = v.data(),
                       .row_of = v.data()}};
  CHECK_NOTHROW(check(params));
  const auto refused = [&](auto change, const char* name) {
    auto wrong = params;
    change(wrong);
    CHECK_THROWS_WITH_AS(check(wrong), doctest::Contains(name), invalid_argument);
  };
  refused([](auto& p) { p.inputs.lengths.delta_by_row = nullptr; }, "delta_by_row");
  refused([&](auto& p) { p.inputs.query_counts = v.data() + 8; }, "inputs.query_counts");
  refused([](auto& p) { p.draft_stride = 2; }, "draft_stride");
  refused([&](auto& p) { p.parents = v.data(); }, "parent_of");
  refused(
      [&](auto& p) {
        p.parents = v.data();
        p.parent_stride = 3;
      },
      "parent_stride");
  refused(
      [&](auto& p) {
        p.parents = v.data();
        p.inputs.max_query_count = 65;
        p.draft_stride = 64;
      },
      "at most 64");
}
