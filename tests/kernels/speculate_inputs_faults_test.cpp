#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/speculate/verify_inputs.hpp"
#include "tests/kernels/speculate_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr int vocab = 50;

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
