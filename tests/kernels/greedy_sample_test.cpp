#include "kernels/sample/greedy_sample.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "graphs/error.hpp"
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
