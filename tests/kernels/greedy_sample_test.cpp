#include "kernels/sample/greedy_sample.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "graphs/error.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "kernels/sample/take_argmax.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("greedy sampling finds the largest logit, the lowest id on a tie") {
  const stream at(test_device());
  reference::random_integers random(test_seed());
  for (const int vocab : {1, 2, 31, 1000, 5003}) {
    const int rows = 5, live = 4, stride = vocab + 3;
    std::vector<float> logits(rows * stride,
                              std::numeric_limits<float>::quiet_NaN());  // dead rows are never read
    std::vector<std::int32_t> want(rows, 0);
    for (int r = 0; r < live; ++r) {
      for (int v = 0; v < vocab; ++v) logits[r * stride + v] = static_cast<float>(random.between(-40, 40));
      for (int v = 0; v < vocab; ++v)
        if (logits[r * stride + v] > logits[r * stride + want[r]]) want[r] = v;
    }
    std::vector<std::int32_t> counts(rows, 1);
    counts[2] = 0;
    want[2] = -1;
    device_vector<float> device_logits(at, logits);
    device_vector<std::int32_t> n(at, {live}), device_counts(at, counts), tokens(at, rows, 99);
    greedy_sample(at, {.logits = device_logits.data(),
                       .logits_stride = stride,
                       .rows = rows,
                       .vocab_size = vocab,
                       .live_rows = n.data(),
                       .query_counts = device_counts.data(),
                       .next_token = tokens.data()});
    CHECK(tokens.get() == want);
  }
}

TEST_CASE("a NaN among the logits ends its row with a named status and leaves its neighbours alone") {
  const stream at(test_device());
  const int rows = 3, vocab = 2000;
  std::vector<float> logits(rows * vocab, 0.0f);
  logits[5] = logits[2 * vocab + 7] = 1.0f;
  logits[vocab + 1234] = std::numeric_limits<float>::quiet_NaN();
  device_vector<float> device_logits(at, logits);
  device_vector<std::int32_t> n(at, {rows}), tokens(at, rows, 99), status(at, rows, 0), taken(at, 1, 0);
  const buffer record(pinned_memory(test_device()), sizeof(fault_record));
  *record.as<fault_record>() = {};
  greedy_sample(at, {.logits = device_logits.data(),
                     .logits_stride = vocab,
                     .rows = rows,
                     .vocab_size = vocab,
                     .live_rows = n.data(),
                     .next_token = tokens.data(),
                     .faults = {record.as<fault_record>(), taken.data(), status.data()}});
  CHECK(tokens.get() == std::vector<std::int32_t>{5, -1, 7});
  const auto nan = static_cast<std::int32_t>(row_status::nan_logits);
  CHECK(status.get() == std::vector<std::int32_t>{0, nan, 0});
  CHECK(record.as<fault_record>()->status == nan);
  CHECK(record.as<fault_record>()->row == 1);
  CHECK(record.as<fault_record>()->value == 1234);
}

TEST_CASE("logits that are all minus infinity give the lowest id") {
  const stream at(test_device());
  device_vector<float> logits(at, 100, -std::numeric_limits<float>::infinity());
  device_vector<std::int32_t> n(at, {1}), tokens(at, 1, 99);
  greedy_sample(at, {.logits = logits.data(),
                     .logits_stride = 100,
                     .rows = 1,
                     .vocab_size = 100,
                     .live_rows = n.data(),
                     .next_token = tokens.data()});
  CHECK(tokens.get()[0] == 0);
}

TEST_CASE("ranked logits order by value, then by lower id; a NaN is above all, nothing below") {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending{
      -infinity, -2.0f, -1e-30f, 0.0f, 3.5f, infinity, std::numeric_limits<float>::quiet_NaN()};
  CHECK(ranked_logit(-infinity, 1 << 30) > 0);
  for (std::size_t i = 1; i < ascending.size(); ++i)
    CHECK(ranked_logit(ascending[i], 1 << 30) > ranked_logit(ascending[i - 1], 0));
  CHECK(ranked_logit(2.0f, 7) > ranked_logit(2.0f, 8));
  CHECK(ranked_logit(-0.0f, 7) == ranked_logit(0.0f, 7));
  CHECK(token_of_ranked(ranked_logit(-infinity, 12)) == 12);
  CHECK(token_of_ranked(ranked_logit(ascending.back(), 12)) == -1);
  CHECK(token_of_ranked(0) == -2);
  CHECK(token_of_ranked(nothing_ranked) == -2);
}

TEST_CASE("tokens taken from ranked logits are those of greedy sampling over the logits") {
  const stream at(test_device());
  reference::random_integers random(test_seed() + 1);
  for (const int rows : {1, 7, 300}) {
    const int vocab = 40, live = rows - rows / 3, requests = rows + 5;
    std::vector<std::uint64_t> ranked(rows, 0);
    std::vector<std::int32_t> counts(rows, 1), lines(rows), ids(vocab), want(requests, 99), feed(rows, 0);
    std::vector<std::int32_t> statuses(rows, 0);
    for (int id = 0; id < vocab; ++id) ids[id] = 3 * id + 1;
    for (int r = 0; r < rows; ++r) {
      lines[r] = requests - 1 - r;
      if (r % 5 == 3) counts[r] = 0;
      int best = 0;
      std::vector<int> logits(vocab);
      for (int id = 0; id < vocab; ++id) {
        logits[id] = static_cast<int>(random.between(-9, 9));
        if (logits[id] > logits[best]) best = id;
      }
      // dead rows hold what must not be used
      for (int id = vocab - 1; id >= 0; --id)
        ranked[r] = std::max(ranked[r], ranked_logit(static_cast<float>(logits[id]), id));
      const bool chooses = r < live && counts[r] > 0;
      std::int32_t token = r >= live ? 0 : counts[r] == 0 ? -1 : ids[best];
      if (chooses && r % 7 == 4) {
        ranked[r] = ranked_logit(std::numeric_limits<float>::quiet_NaN(), 33);
        token = -1;
        statuses[r] = static_cast<std::int32_t>(row_status::nan_logits);
      } else if (chooses && r % 7 == 6) {
        ranked[r] = 0;
        token = -2;
        statuses[r] = static_cast<std::int32_t>(row_status::no_allowed_token);
      }
      want[lines[r]] = token;
      feed[r] = std::max(token, 0);
    }
    const device_vector<std::uint64_t> given(at, ranked);
    const device_vector<std::int32_t> n(at, {live}), device_counts(at, counts), device_lines(at, lines),
        target_ids(at, ids), tokens(at, requests, 99), fed(at, rows, 99), status(at, rows, 0),
        taken(at, 1, 0);
    const buffer record(pinned_memory(test_device()), sizeof(fault_record));
    *record.as<fault_record>() = {};
    take_argmax(
        at, {.ranked = given.data(),
             .rows = rows,
             .live_rows = n.data(),
             .query_counts = device_counts.data(),
             .next_token = tokens.data(),
             .out = {.target_ids = target_ids.data(), .line = device_lines.data(), .feed_token = fed.data()},
             .faults = {record.as<fault_record>(), taken.data(), status.data()}});
    CHECK(tokens.get() == want);
    CHECK(fed.get() == feed);
    CHECK(status.get() == statuses);
  }
  const device_vector<std::int32_t> n(at, {1}), tokens(at, 1, 0);
  CHECK_THROWS_AS(take_argmax(at, {.rows = 1, .live_rows = n.data(), .next_token = tokens.data()}),
                  invalid_argument);
  const device_vector<std::uint64_t> given(at, 1, 0);
  CHECK_THROWS_WITH_AS(
      take_argmax(at,
                  {.ranked = given.data(), .rows = 0, .live_rows = n.data(), .next_token = tokens.data()}),
      doctest::Contains("rows must be positive"), invalid_argument);
}
