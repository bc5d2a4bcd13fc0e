// What sampling does with rows, apart from which token it draws.
#include <doctest/doctest.h>

#include "graphs/graph.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "kernels/sample/sample_tokens.hpp"
#include "kernels/sample/target_distribution.hpp"
#include "tests/device_vector.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr int rows = 4, vocab = 10;

/// Row r prefers token 2 r + 1 by far.
std::vector<float> steep_logits() {
  std::vector<float> logits(rows * vocab, 0.0f);
  for (int row = 0; row < rows; ++row) logits[row * vocab + 2 * row + 1] = 300;
  return logits;
}

}  // namespace

TEST_CASE(
    "settings are found through the row's request; one outside the table ends its row with a named status") {
  const stream at(test_device());
  const device_vector<float> logits(at, std::vector<float>(rows * vocab, 0.0f));
  // request 2 may only say token 0: greedy; the others draw from all
  std::vector<sampling_settings> settings(3, {.temperature = 1, .seed = 1, .request = 1});
  settings[2].temperature = 0;
  const device_vector<sampling_settings> table(at, settings);
  const device_vector<std::int64_t> requests(at, {2, 3, -1, 2});
  const device_vector<std::int32_t> n(at, {rows}), position(at, rows, 5), tokens(at, rows, -99);
  fault_fixture faults(at, rows);
  sample_tokens(at, {.logits = logits.data(),
                     .logits_stride = vocab,
                     .rows = rows,
                     .vocab_size = vocab,
                     .live_rows = n.data(),
                     .sampling = {.settings = table.data(), .requests = requests.data(), .count = 3},
                     .position = position.data(),
                     .next_token = tokens.data(),
                     .faults = faults.sink()});
  CHECK(tokens.get() == std::vector<std::int32_t>{0, -1, -1, 0});
  CHECK(faults.statuses() == std::vector<row_status>{row_status::ok, row_status::request_out_of_range,
                                                     row_status::request_out_of_range, row_status::ok});
}

TEST_CASE("a row without query tokens draws nothing; a reduced vocabulary draws the target's ids") {
  const stream at(test_device());
  const device_vector<float> logits(at, steep_logits());
  const device_vector<sampling_settings> settings(
      at, rows, sampling_settings{.temperature = 1, .seed = 3, .request = 4});
  std::vector<std::int32_t> ids;
  for (int v = 0; v < vocab; ++v) ids.push_back(1000 + 7 * v);
  const device_vector<std::int32_t> n(at, {3}), position(at, rows, 5), counts(at, {1, 0, 1, 1}),
      target_ids(at, ids);
  device_vector<std::int32_t> tokens(at, rows, -99);
  device_vector<float> logprobs(at, rows, -7.0f);
  sample_tokens(at, {.logits = logits.data(),
                     .logits_stride = vocab,
                     .rows = rows,
                     .vocab_size = vocab,
                     .live_rows = n.data(),
                     .query_counts = counts.data(),
                     .sampling = {.settings = settings.data(), .requests = {}, .count = rows},
                     .position = position.data(),
                     .purpose = draw_purpose::draft_draw,
                     .node = 1,
                     .next_token = tokens.data(),
                     .out = {.target_ids = target_ids.data()},
                     .logprobs = logprobs.data()});
  CHECK(tokens.get() == std::vector<std::int32_t>{1007, -1, 1035, 0});
  CHECK(logprobs.get() == std::vector<float>{0, 0, 0, -7});  // the dead row's is left alone
}

TEST_CASE("a captured draw takes its seeds, positions and settings anew at every replay") {
  const stream at(test_device());
  const device_vector<float> logits(at, std::vector<float>(rows * vocab, 0.0f));
  device_vector<sampling_settings> settings(at, rows, sampling_settings{});
  device_vector<std::int32_t> n(at, {rows}), position(at, rows, 0), tokens(at, rows, -99);
  const sample_tokens_params params{.logits = logits.data(),
                                    .logits_stride = vocab,
                                    .rows = rows,
                                    .vocab_size = vocab,
                                    .live_rows = n.data(),
                                    .sampling = {.settings = settings.data(), .requests = {}, .count = rows},
                                    .position = position.data(),
                                    .next_token = tokens.data()};
  const graph made = capture(at, [&](stream_ref s) { sample_tokens(s, params); });
  CHECK(made.node_count() == 1);
  const graph_exec exec = made.instantiate();
  std::vector<std::vector<std::int32_t>> seen;
  for (int replay = 0; replay < 8; ++replay) {
    settings.set(std::vector<sampling_settings>(
        rows, {.temperature = 1, .seed = static_cast<std::uint64_t>(replay / 2), .request = 9}));
    position.set({replay / 4, replay / 4, 7, 7});
    exec.launch(at);
    seen.push_back(tokens.get());
    CHECK(seen.back()[0] == seen.back()[1]);  // one request, one position: one number
    CHECK(seen.back()[2] == seen.back()[3]);
    if (replay % 2) CHECK(seen[replay] == seen[replay - 1]);
  }
  CHECK(std::vector{seen[0], seen[2], seen[4], seen[6]} != std::vector(4, seen[0]));
}

TEST_CASE("the target's distributions are written for live tokens alone") {
  const stream at(test_device());
  const device_vector<float> logits(at, steep_logits());
  const device_vector<sampling_settings> settings(at, 2, sampling_settings{});
  const device_vector<std::int32_t> live(at, {2}), row_of(at, {0, 1, 0, 0});
  row_distribution poisoned;
  poisoned.best = -99;
  const device_vector<row_distribution> out(at, rows, poisoned);
  target_distribution(at, {.logits = logits.data(),
                           .logits_stride = vocab,
                           .tokens = rows,
                           .vocab_size = vocab,
                           .live_tokens = live.data(),
                           .row_of = row_of.data(),
                           .sampling = {.settings = settings.data(), .requests = {}, .count = 2},
                           .distributions = out.data()});
  const auto got = out.get();
  CHECK(got[0].best == 1);
  CHECK(got[1].best == 3);
  CHECK(got[2].best == -99);
  CHECK(got[3].best == -99);
}

TEST_CASE("greedy sampling keeps to the mask; one that allows nothing has its own name") {
  const stream at(test_device());
  const device_vector<float> logits(at, steep_logits());
  const device_vector<std::uint32_t> allowed(at, {~0u, 0x3f0u, 0u, ~0x3ffu});
  const device_vector<std::int32_t> n(at, {rows}), tokens(at, rows, -99);
  fault_fixture faults(at, rows);
  greedy_sample(at, {.logits = logits.data(),
                     .logits_stride = vocab,
                     .rows = rows,
                     .vocab_size = vocab,
                     .live_rows = n.data(),
                     .allowed = {.words = allowed.data(), .stride = 1},
                     .next_token = tokens.data(),
                     .faults = faults.sink()});
  CHECK(tokens.get() == std::vector<std::int32_t>{1, 4, -2, -2});
  CHECK(faults.statuses() == std::vector<row_status>{row_status::ok, row_status::ok,
                                                     row_status::no_allowed_token,
                                                     row_status::no_allowed_token});
}
