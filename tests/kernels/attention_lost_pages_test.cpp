#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/attention/split_attention.hpp"
#include "tests/kernels/ragged_attention_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

/// A page of a row that its table has lost.
struct lost_page {
  int row;
  int index;
  std::int32_t entry;
};

constexpr std::int32_t wild = 0x7f7f7f7f;

/// Where the launches' faults go.
struct fault_place {
  explicit fault_place(stream_ref at, int rows)
      : record(pinned_memory(at.where()), sizeof(fault_record)), taken(at, 1, 0), status(at, rows, 0) {
    *record.as<fault_record>() = {};
  }
  fault_sink sink() const { return {record.as<fault_record>(), taken.data(), status.data()}; }

  buffer record;
  device_vector<std::int32_t> taken, status;
};

/// Tokens of lost pages are as if they were not there, and their rows alone are reported; all other rows, and the
/// same rows once their pages are back, are as ever. `options`: null for the op as it is called.
template <class T>
void compare(ragged_shape s, const std::vector<ragged_row>& rows, const std::vector<lost_page>& lost,
             [[maybe_unused]] const detail::split_options* options, int most) {
  const stream at(test_device());
  ragged_batch<T> batch(at, s, test_seed());
  paged_attention_params params = batch.params();
#if STEPGRAPH_CUDA
  std::size_t bytes = 0;
  if (options)
    bytes = detail::plan_split(detail::split_device::of(at.where()), params, *options).workspace_bytes;
  const device_vector<std::uint8_t> workspace(at, bytes, 0);
  if (options) params.workspace = workspace.data();
#endif
  batch.set(rows);
  for (const lost_page& page : lost) batch.lose_page(page.row, page.index, page.entry);
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    const fault_place faults(at, s.rows);
    params.faults = faults.sink();
    if (whole) {
      batch.find_pages();
      batch.clear_outputs();
    }
#if STEPGRAPH_CUDA
    if (options)
      detail::split_attention_cuda(at, params, *options);
    else
#endif
      paged_attention(at, params);
    at.synchronize();
    REQUIRE(batch.check(std::is_same_v<T, f16> ? 2e-3 : 1e-2, most) == "");
    const auto status = faults.status.get();
    for (int row = 0; row < s.rows; ++row) {
      CAPTURE(row);
      const bool gone =
          !whole && std::any_of(lost.begin(), lost.end(), [row](const auto& l) { return l.row == row; });
      CHECK(status[row] == (gone ? static_cast<std::int32_t>(row_status::slot_out_of_range) : 0));
    }
  }
}

/// Both types and head sizes, all kernels; and few blocks, which take rows in turn, or many, which cut them.
void compare_all(ragged_shape s, const std::vector<ragged_row>& rows, const std::vector<lost_page>& lost,
                 int most = 24) {
  CAPTURE(test_seed());
  s.rows = static_cast<int>(rows.size()) + 1;
  s.tokens = 3;
  for (const auto& row : rows) {
    s.tokens += row.tokens;
    s.longest = std::max(s.longest, row.length);
  }
  std::vector<const detail::split_options*> all{nullptr};
#if STEPGRAPH_CUDA
  const detail::split_options planned[] = {{.min_tiles = 1000, .warpgroups = 1},
                                           {.min_tiles = 2, .warpgroups = 1},
                                           {.min_tiles = 1000, .warps = 8, .warpgroups = 0},
                                           {.min_tiles = 2, .warps = 4, .warpgroups = 0}};
  if (!test_device().is_host())
    for (const auto& each : planned)
      if (!each.warpgroups || detail::split_device::of(test_device()).warpgroups) all.push_back(&each);
#endif
  for (const auto* options : all)
    for (const int head_size : {64, 128}) {
      if (test_small() && head_size == 64) continue;
      CAPTURE(options ? options->warpgroups : -1);
      CAPTURE(options ? options->min_tiles : -1);
      CAPTURE(head_size);
      s.head_size = head_size;
      compare<bf16>(s, rows, lost, options, most);
      if (!test_small() && (!options || head_size == 128)) compare<f16>(s, rows, lost, options, most);
    }
}

}  // namespace

TEST_CASE("lost pages: in the middle of a long chunk, beside rows that have theirs") {
  compare_all({.heads = 4, .kv_heads = 1}, {{40, 300}, {70, 400}, {33, 130}, {1, 90}},
              {{1, 9, -1}, {1, 17, wild}, {3, 0, wild}});
  if (test_small()) return;
  // several query tiles and segments; pages of one token, and of more than a KV tile
  compare_all({.heads = 8, .kv_heads = 2, .page_shift = 4}, {{300, 1000}, {200, 900}, {64, 700}},
              {{0, 3, wild}, {0, 31, -7}, {0, 62, wild}, {2, 43, -1}}, 60);
  compare_all({.heads = 4, .kv_heads = 1, .page_shift = 0}, {{100, 333}, {50, 200}},
              {{0, 128, -1}, {0, 250, wild}, {0, 332, wild}, {1, 0, -1}});
  compare_all({.heads = 4, .kv_heads = 1, .page_shift = 8}, {{200, 900}, {90, 600}},
              {{0, 1, wild}, {1, 2, -1}});
}

TEST_CASE("lost pages: decoding rows, of one token and several") {
  compare_all({.heads = 4, .kv_heads = 1}, {{1, 500}, {1, 300}, {2, 200}, {1, 17}},
              {{0, 13, wild}, {0, 14, wild}, {2, 11, -1}});
  if (test_small()) return;
  compare_all({.heads = 8, .kv_heads = 1}, {{1, 1800}, {4, 1500}, {8, 700}, {1, 1}},
              {{0, 0, wild}, {1, 90, -1}, {2, 43, wild}}, 60);
}

TEST_CASE("lost pages: trees, windows, sinks and caps") {
  compare_all({.heads = 4, .kv_heads = 1, .tree = true}, {{33, 200}, {16, 150}}, {{0, 3, -1}});
  compare_all({.heads = 4, .kv_heads = 1, .window = 70}, {{60, 300}, {20, 200}},
              {{0, 15, wild}, {0, 2, wild}});
  compare_all({.heads = 4, .kv_heads = 1, .logit_cap = 3.0f, .sink = true}, {{40, 200}, {9, 100}},
              {{1, 3, -1}});
  if (test_small()) return;
  compare_all({.heads = 8, .kv_heads = 1, .window = 200, .sink = true, .tree = true}, {{64, 900}, {40, 500}},
              {{0, 50, -1}, {1, 31, wild}});
}

TEST_CASE("lost pages: listed one row after another, the step's own tokens beside") {
  compare_all({.heads = 4, .kv_heads = 1, .csr = true, .step_kv = true}, {{40, 300}, {33, 200}, {1, 100}},
              {{0, 7, -1}, {2, 5, wild}});
}
