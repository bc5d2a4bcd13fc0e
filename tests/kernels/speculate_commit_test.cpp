#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "graphs/error.hpp"
#include "kernels/speculate/commit.hpp"
#include "tests/kernels/commit_fixture.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr int heads = 3, head_bytes = 48, planes = 4;

/// Planes of a pool in which every 8 bytes say where they lie; strides leave gaps that must stay.
struct pool {
  std::int64_t token_words, page_words, plane_words;
  std::vector<std::uint64_t> words;
  explicit pool(const commit_case& in)
      : token_words(heads * (head_bytes / 8 + 2)),
        page_words((token_words << in.page_shift) + 6),
        plane_words(page_words * in.pool_pages),
        words(static_cast<std::size_t>(plane_words * planes)) {
    std::iota(words.begin(), words.end(), 1u);
  }
  std::size_t place(int plane, std::int64_t slot, int head, int word, int page_shift) const {
    return static_cast<std::size_t>(plane * plane_words + (slot >> page_shift) * page_words +
                                    (slot & ((1 << page_shift) - 1)) * token_words +
                                    head * (head_bytes / 8 + 2) + word);
  }
};

/// `spoil` is called between the step and the move.
template <class Spoil>
void compare_kv(const commit_case& in, const Spoil& spoil) {
  const stream at(test_device());
  const device_verify step(at, in.step, true);
  const pool before(in);
  device_vector<std::uint64_t> words(at, before.words);
  std::vector<kv_plane> views;
  for (int plane = 0; plane < planes; ++plane)
    views.push_back({words.data() + plane * before.plane_words, before.page_words * 8, before.token_words * 8,
                     head_bytes + 16});
  const device_vector<kv_plane> device_planes(at, views);
  const device_vector<std::int32_t> counts(at, in.accept_counts()), paths(at, in.packed_paths()),
      slots(at, in.slots);
  device_vector<std::int32_t> table(at, in.table);
  spoil(table);
  fault_fixture faults(at, in.step.rows);
  commit_kv(at, {.verify = step.view,
                 .accept_count = counts.data(),
                 .path = paths.data(),
                 .path_stride = in.step.max_nodes,
                 .slots = slots.data(),
                 .planes = device_planes.data(),
                 .plane_count = planes,
                 .heads = heads,
                 .head_bytes = head_bytes,
                 .page_shift = in.page_shift,
                 .pool_pages = in.pool_pages,
                 .faults = faults.sink()});
  std::vector<std::uint64_t> want = before.words;
  for (int row = 0; row < in.step.live; ++row)
    for (std::size_t i = 0; i < in.paths[row].size(); ++i)
      for (int plane = 0; plane < planes; ++plane)
        for (int head = 0; head < heads; ++head)
          for (int word = 0; word < head_bytes / 8; ++word) {
            const std::int32_t* const mine = in.slots.data() + in.step.cu[row];
            want[before.place(plane, mine[i], head, word, in.page_shift)] =
                before.words[before.place(plane, mine[in.paths[row][i]], head, word, in.page_shift)];
          }
  CHECK(words.get() == want);
  CHECK(faults.record().status == 0);
}

}  // namespace

TEST_CASE(
    "commit moves the kept tokens' keys and values to the step's first slots, and nothing else, at every "
    "live count") {
  int i = 0;
  for (const int page_shift : {0, 2, 4})
    for (int live = 5; live >= 0; --live)
      for (int repeat = 0; repeat < 3; ++repeat)
        compare_kv(random_commit(test_seed() + i++, 5, live, repeat == 0 ? 6 : 20, page_shift), [](auto&) {});
}

TEST_CASE("shape-grid: commits of trees around the widths of words") {
  int i = 500;
  for (const int nodes : {1, 2, 31, 32, 33, 63, 64})
    compare_kv(random_commit(test_seed() + i++, 3, 3, nodes, 3), [](auto&) {});
}

TEST_CASE("commit moves long overlapping paths without losing any: every node shifts by one") {
  // root, a node that is refused, then one long path after it: each move reads what the next one overwrites
  for (const int page_shift : {0, 3}) {
    commit_case in = random_commit(test_seed() + 600, 2, 2, 40, page_shift);
    std::vector<std::int64_t> parents{-1, 0, 0}, tokens(40, 1), path{0, 2};
    for (int node = 3; node < 40; ++node) {
      parents.push_back(node - 1);
      path.push_back(node);
    }
    in.step = make_verify_case(2, 40, {{parents, tokens}, {parents, tokens}}, 0);
    in.paths = {path, path};
    in.slots.assign(80, 0);
    for (int row = 0; row < 2; ++row)
      for (int node = 0; node < 40; ++node)
        in.slots[row * 40 + node] = in.table[in.requests[row] * in.columns + in.base[row] + node];
    compare_kv(in, [](auto&) {});
  }
}

TEST_CASE(
    "commit-race: the request table is overwritten right after the read fence; moves go where the step was "
    "told") {
  for (int i = 0; i < 5; ++i)
    compare_kv(random_commit(test_seed() + 700 + i, 4, 4, 12, 2), [](device_vector<std::int32_t>& table) {
      table.set(std::vector<std::int32_t>(table.size(), wild));
    });
}

TEST_CASE("shared-prefix: the pages that two requests share are untouched by both commits") {
  const commit_case in = random_commit(test_seed() + 800, 4, 4, 16, 2);
  std::set<std::int32_t> shared, own(in.slots.begin(), in.slots.begin() + in.step.live_tokens());
  for (int request = 0; request < 5; ++request)
    for (int t = 0; t < 8; ++t) shared.insert(in.table[request * in.columns + t]);
  for (const std::int32_t slot : own) CHECK(shared.count(slot) == 0);  // compare_kv holds all else still
  compare_kv(in, [](auto&) {});
}

TEST_CASE(
    "sink-or-minus-one: commit moves nothing from or to what stores nothing; a slot outside the pool is "
    "named") {
  for (const std::int32_t skip : {-1, 0, 3, 1 << 20}) {
    commit_case in = random_commit(test_seed() + 900, 1, 1, 6, 2);
    in.step = make_verify_case(1, 6, {{{-1, 0, 0, 2}, {1, 1, 1, 1}}}, 0);
    in.paths = {{0, 2, 3}};
    in.slots = {skip, in.slots[0], skip, in.slots[0] + 1};
    in.slots[1] = in.table[in.requests[0] * in.columns + 9];
    in.slots[3] = in.table[in.requests[0] * in.columns + 10];
    const stream at(test_device());
    const device_verify step(at, in.step, true);
    const pool before(in);
    device_vector<std::uint64_t> words(at, before.words);
    const device_vector<kv_plane> plane(
        at, {{words.data(), before.page_words * 8, before.token_words * 8, head_bytes + 16}});
    const device_vector<std::int32_t> counts(at, {2}), paths(at, {0, 2, 3, wild, wild, wild}),
        slots(at, in.slots);
    fault_fixture faults(at, 1);
    commit_kv(at, {.verify = step.view,
                   .accept_count = counts.data(),
                   .path = paths.data(),
                   .path_stride = 6,
                   .slots = slots.data(),
                   .planes = plane.data(),
                   .plane_count = 1,
                   .heads = heads,
                   .head_bytes = head_bytes,
                   .page_shift = 2,
                   .pool_pages = in.pool_pages,
                   .faults = faults.sink()});
    CHECK(words.get() == before.words);
    CHECK(faults.statuses()[0] == (skip > 3 ? row_status::slot_out_of_range : row_status::ok));
  }
}

TEST_CASE("with pages of one token commit permutes the row's own entries of the slot table, and no others") {
  int i = 1000;
  for (int live = 5; live >= 0; --live)
    for (int repeat = 0; repeat < 6; ++repeat) {
      commit_case in = random_commit(test_seed() + i++, 5, live, repeat < 3 ? 7 : 64, 0);
      const stream at(test_device());
      const device_verify step(at, in.step, true);
      const device_vector<std::int32_t> counts(at, in.accept_counts()), paths(at, in.packed_paths()),
          slots(at, in.slots), lengths(at, in.lengths()), requests(at, in.requests);
      device_vector<std::int32_t> table(at, in.table);
      fault_fixture faults(at, 5);
      commit_slots(at, {.verify = step.view,
                        .accept_count = counts.data(),
                        .path = paths.data(),
                        .path_stride = in.step.max_nodes,
                        .cache_seqlens = lengths.data(),
                        .slots = slots.data(),
                        .requests = requests.data(),
                        .table = table.data(),
                        .table_stride = in.columns,
                        .request_count = 6,
                        .columns = in.columns,
                        .faults = faults.sink()});
      std::vector<std::int32_t> want = in.table;
      for (int row = 0; row < live; ++row) {
        const auto order = reference::committed_order(in.step.nodes(row), in.paths[row]);
        for (std::size_t place = 0; place < order.size(); ++place)
          want[in.requests[row] * in.columns + in.base[row] + place] =
              in.slots[in.step.cu[row] + order[place]];
      }
      CHECK(table.get() == want);
      CHECK(faults.record().status == 0);
    }
}

TEST_CASE("a commit of the slot table follows no request, length or base outside the table") {
  const stream at(test_device());
  const verify_case two = make_verify_case(1, 4, {{{-1, 0, 0, 2}, {1, 1, 1, 1}}}, 0);
  const device_verify step(at, two, true);
  const device_vector<std::int32_t> counts(at, {2}), paths(at, {0, 2, 3, wild}), slots(at, {11, 12, 13, 14});
  const auto run = [&](std::int32_t request, std::int32_t length) {
    const device_vector<std::int32_t> lengths(at, {length}), requests(at, {request});
    device_vector<std::int32_t> table(at, 2 * 10, poison);
    fault_fixture faults(at, 1);
    commit_slots(at, {.verify = step.view,
                      .accept_count = counts.data(),
                      .path = paths.data(),
                      .path_stride = 4,
                      .cache_seqlens = lengths.data(),
                      .slots = slots.data(),
                      .requests = requests.data(),
                      .table = table.data(),
                      .table_stride = 10,
                      .request_count = 2,
                      .columns = 10,
                      .faults = faults.sink()});
    return std::pair{table.get(), faults.statuses()[0]};
  };
  const std::vector<std::int32_t> clean(20, poison);
  CHECK(run(2, 8) == std::pair{clean, row_status::request_out_of_range});
  CHECK(run(-1, 8) == std::pair{clean, row_status::request_out_of_range});
  CHECK(run(1, 11) == std::pair{clean, row_status::length_clamped});
  CHECK(run(1, 3) == std::pair{clean, row_status::ok});  // a padded row
  auto want = clean;
  for (const auto& [place, slot] : {std::pair{16, 11}, {17, 13}, {18, 14}, {19, 12}}) want[place] = slot;
  CHECK(run(1, 10) == std::pair{want, row_status::ok});
}

TEST_CASE("commit refuses by name what the host can see") {
  const stream at(test_device());
  CHECK_THROWS_WITH_AS(commit_slots(at, {}), doctest::Contains("verify.rows"), invalid_argument);
  const device_verify step(at, make_verify_case(1, 4, {{{-1}, {1}}}, 0), true);
  device_vector<std::int32_t> v(at, 16, 0);
  const device_vector<kv_plane> plane(at, {kv_plane{}});
  const commit_kv_params params{.verify = step.view,
                                .accept_count = v.data(),
                                .path = v.data(),
                                .path_stride = 4,
                                .slots = v.data(),
                                .planes = plane.data(),
                                .plane_count = 1,
                                .heads = 1,
                                .head_bytes = 16,
                                .page_shift = 4,
                                .pool_pages = 2};
  CHECK_NOTHROW(check(params));
  const auto refused = [&](auto change, const char* name) {
    auto wrong = params;
    change(wrong);
    CHECK_THROWS_WITH_AS(check(wrong), doctest::Contains(name), invalid_argument);
  };
  refused([](auto& p) { p.head_bytes = 20; }, "head_bytes");
  refused([](auto& p) { p.page_shift = 11; }, "page size");
  refused([](auto& p) { p.path_stride = 3; }, "path_stride");
  refused([](auto& p) { p.pool_pages = 0; }, "pool_pages");
  refused([](auto& p) { p.planes = nullptr; }, "planes is null");
}
