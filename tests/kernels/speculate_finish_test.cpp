#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/error.hpp"
#include "kernels/speculate/finish_rows.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/kernels/speculate_fixture.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr int stride = 6, requests = 12, max_context = 40;

struct finish_case {
  verify_case step;
  std::vector<std::int32_t> emit_count, advance, next, emitted, lengths, line, end_ids;
  std::vector<std::int32_t> budget, stop, finished;  // [requests]
  std::vector<std::int32_t> status;                  // [rows]
};

finish_case random_finish(std::uint64_t seed, int rows, int live) {
  reference::random_integers random(seed);
  finish_case in;
  in.step = random_verify_case(random, rows, live, 5, 3, true);
  in.emit_count = in.advance = in.next = in.lengths = in.line = std::vector<std::int32_t>(rows, wild);
  in.status.assign(rows, 0);
  in.emitted.assign(static_cast<std::size_t>(rows) * stride, wild);
  in.end_ids = {static_cast<std::int32_t>(random.below(8)), 9};
  for (int q = 0; q < requests; ++q) {
    in.budget.push_back(static_cast<std::int32_t>(random.one_in(3) ? random.between(0, 5) : 100));
    in.stop.push_back(random.one_in(5) ? 1 : 0);
    in.finished.push_back(random.one_in(6) ? static_cast<std::int32_t>(random.between(1, 5)) : 0);
  }
  for (int row = 0; row < rows; ++row) {
    if (row >= live) {
      in.emit_count[row] = in.advance[row] = in.next[row] = 0;
      continue;
    }
    in.line[row] = requests - 1 - row;
    const int nodes = in.step.nodes(row), base = static_cast<int>(random.between(0, max_context - nodes));
    in.lengths[row] = base + nodes;
    const int accepted = nodes ? static_cast<int>(random.below(nodes)) : 0;
    const bool broken = nodes && random.one_in(5);
    in.status[row] = broken ? static_cast<std::int32_t>(row_status::nan_logits) : 0;
    in.advance[row] = nodes ? accepted + 1 : 0;
    in.emit_count[row] = nodes ? accepted + !broken : 0;
    for (int i = 0; i < in.emit_count[row]; ++i)
      in.emitted[static_cast<std::size_t>(row) * stride + i] = static_cast<std::int32_t>(random.below(12));
    in.next[row] =
        in.emit_count[row] ? in.emitted[static_cast<std::size_t>(row) * stride + in.emit_count[row] - 1] : -1;
  }
  return in;
}

struct outcome {
  std::vector<std::int32_t> emit_count, advance, next, reason, budget, finished;
};

outcome run(const finish_case& in, fault_fixture* faults = nullptr) {
  const stream at(test_device());
  const device_verify step(at, in.step, false);
  const int rows = in.step.rows;
  device_result result(at, rows, stride);
  const device_vector<std::int32_t> counts(at, in.emit_count), advance(at, in.advance), next(at, in.next),
      emitted(at, in.emitted), lengths(at, in.lengths), line(at, in.line), ends(at, in.end_ids),
      budget(at, in.budget), stop(at, in.stop), finished(at, in.finished), status(at, in.status),
      reason(at, rows, poison);
  result.view.emit_count = counts.data();
  result.view.cache_advance = advance.data();
  result.view.next_token = next.data();
  result.view.emit_tokens = emitted.data();
  finish_rows(at, {.verify = step.view,
                   .result = result.view,
                   .cache_seqlens = lengths.data(),
                   .requests = line.data(),
                   .request_count = requests,
                   .end_ids = ends.data(),
                   .end_id_count = static_cast<std::int32_t>(in.end_ids.size()),
                   .budget = budget.data(),
                   .max_context = max_context,
                   .stop_flags = stop.data(),
                   .row_status = status.data(),
                   .finished = finished.data(),
                   .reason = reason.data(),
                   .faults = faults ? faults->sink() : fault_sink{}});
  CHECK(emitted.get() == in.emitted);  // read alone
  return {counts.get(), advance.get(), next.get(), reason.get(), budget.get(), finished.get()};
}

void compare(const finish_case& in) {
  const outcome got = run(in);
  auto budget = in.budget, finished = in.finished;
  for (int row = 0; row < in.step.rows; ++row) {
    CAPTURE(row);
    if (row >= in.step.live) {
      CHECK(got.reason[row] == 0);
      CHECK(got.emit_count[row] == 0);
      continue;
    }
    const int q = in.line[row];
    const auto* const tokens = in.emitted.data() + static_cast<std::size_t>(row) * stride;
    if (in.finished[q] != 0) {
      CHECK(got.reason[row] == in.finished[q]);
      CHECK(got.emit_count[row] == 0);
      CHECK(got.advance[row] == 0);
      CHECK(got.next[row] == -1);
      continue;
    }
    const auto want = reference::finish({.emitted = {tokens, tokens + in.emit_count[row]},
                                         .end_ids = {in.end_ids.begin(), in.end_ids.end()},
                                         .base = in.lengths[row] - in.step.nodes(row),
                                         .max_context = max_context,
                                         .budget = in.budget[q],
                                         .host_stop = in.stop[q] != 0,
                                         .fault = in.status[row] != 0});
    CHECK(got.reason[row] == static_cast<std::int32_t>(want.why));
    CHECK(got.emit_count[row] == want.kept);
    CHECK(got.advance[row] == (want.kept < in.emit_count[row] ? want.kept : in.advance[row]));
    CHECK(got.next[row] == (want.kept ? tokens[want.kept - 1] : -1));
    budget[q] = static_cast<std::int32_t>(std::max<std::int64_t>(0, in.budget[q] - want.kept));
    finished[q] = static_cast<std::int32_t>(want.why);
  }
  CHECK(got.budget == budget);
  CHECK(got.finished == finished);
}

/// One row of four tokens that emitted 1, 2, 3, 4, after `base` tokens.
finish_case small(int base) {
  finish_case in;
  in.step = make_verify_case(1, 5, {{{-1, 0, 1, 2}, {0, 1, 2, 3}}}, 0);
  in.emit_count = in.advance = {4};
  in.next = {4};
  in.emitted = {1, 2, 3, 4, wild, wild};
  in.lengths = {base + 4};
  in.line = {0};
  in.end_ids = {77};
  in.budget.assign(requests, 100);
  in.stop = in.finished = std::vector<std::int32_t>(requests, 0);
  in.status = {0};
  return in;
}

}  // namespace

TEST_CASE("finish of random rows equals the definition, at every live count") {
  int i = 0;
  for (int live = 8; live >= 0; --live)
    for (int repeat = 0; repeat < 20; ++repeat) compare(random_finish(test_seed() + i++, 8, live));
}

TEST_CASE("each reason has its name, and the first in the text counts") {
  const auto reason = [](const finish_case& in) { return static_cast<finish_reason>(run(in).reason[0]); };
  CHECK(reason(small(3)) == finish_reason::running);
  finish_case in = small(3);
  in.end_ids = {88, 3};
  CHECK(reason(in) == finish_reason::end_of_sequence);
  CHECK(run(in).emit_count[0] == 3);
  CHECK(run(in).advance[0] == 3);
  CHECK(run(in).next[0] == 3);
  in.budget[0] = 3;  // at one token the end of the text goes first
  CHECK(reason(in) == finish_reason::end_of_sequence);
  in.budget[0] = 2;
  CHECK(reason(in) == finish_reason::token_budget);
  CHECK(run(in).budget[0] == 0);
  in.budget[0] = 0;
  CHECK(run(in).emit_count[0] == 0);
  CHECK(reason(small(max_context - 4)) == finish_reason::context_limit);
  CHECK(run(small(max_context - 4)).emit_count[0] == 4);
  CHECK(reason(small(max_context - 5)) == finish_reason::running);
  in = small(3);
  in.stop[0] = 1;
  CHECK(reason(in) == finish_reason::host_stop);
  CHECK(run(in).emit_count[0] == 4);
  in.status[0] = 6;
  CHECK(reason(in) == finish_reason::fault);
  in.finished[0] = static_cast<std::int32_t>(finish_reason::token_budget);
  CHECK(reason(in) == finish_reason::token_budget);  // what finished stays so
  CHECK(run(in).emit_count[0] == 0);
  for (int i = 0; i <= 5; ++i)
    for (int j = 0; j < i; ++j)
      CHECK(std::string(to_string(static_cast<finish_reason>(i))) !=
            to_string(static_cast<finish_reason>(j)));
}

TEST_CASE(
    "a request outside its table is reported and not followed; what the host can see is refused by name") {
  const stream at(test_device());
  finish_case in = small(3);
  for (const std::int32_t request : {-1, requests, wild}) {
    in.line[0] = request;
    fault_fixture faults(at, 1);
    CHECK(run(in, &faults).reason[0] == static_cast<std::int32_t>(finish_reason::fault));
    CHECK(faults.statuses()[0] == row_status::request_out_of_range);
    CHECK(faults.record().value == request);
  }
  CHECK_THROWS_WITH_AS(finish_rows(at, {}), doctest::Contains("verify.rows"), invalid_argument);
  device_result result(at, 1, stride);
  const device_verify step(at, in.step, false);
  CHECK_THROWS_WITH_AS(finish_rows(at, {.verify = step.view, .result = result.view}),
                       doctest::Contains("cache_seqlens is null"), invalid_argument);
}
