#include <doctest/doctest.h>

#include "kernels/kernel_registry.hpp"
#include "tests/kernels/every_metadata_op.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("one kernel serves an op at every width, batch, length, stride and top-k") {
  int i = 0;
  for (const std::int64_t width : {1, 64, 1000, 5000, 70000})
    for (const std::int64_t rows : {1, 7, 70}) {
      if (width * rows > 400000) continue;
      const auto in = reference::random_batch(test_seed() + width + rows, {.rows = rows,
                                                                           .max_tokens = 1 + i % 3,
                                                                           .page_size = 1 << i % 2,
                                                                           .max_context = width,
                                                                           .page_granular = i % 4 == 3});
      run_every_metadata_op(in, {.number = i});
      ++i;
    }
  // the plain form and the one with everything
  CHECK(kernels_launched("decode_metadata") == 2);
  CHECK(kernels_launched("dsa_metadata") == 2);
  CHECK(kernels_launched("kv_indices") == 2);
  for (const char* op : {"token_inputs", "draft_steps_metadata", "compressed_metadata", "spec_page_table",
                         "unified_kv_indices", "kv_split_plan"}) {
    CAPTURE(op);
    CHECK(kernels_launched(op) == 1);
  }
}

namespace {

void expect_equal(const every_output& a, const every_output& b) {
  for (const auto& output : a) {
    CAPTURE(output.first);
    CHECK(output.second == b.at(output.first));
  }
}

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("pad-zero and tail-wild: wild dead rows and dead columns change no output of any op") {
  for (int i = 0; i < test_rounds(30); ++i) {
    reference::random_batch_options options{.max_tokens = 3, .draft_steps = 4, .page_granular = i % 2 == 0};
    if (i % 5 == 0) options.rows = 4, options.live_rows = 3;
    if (i % 5 == 1) options.page_size = 1, options.max_context = 63 + i % 3;
    const auto clean = reference::random_batch(test_seed() + i, options);
    options.poison = true;
    const auto wild = reference::random_batch(test_seed() + i, options);
    CAPTURE(reference::describe(wild));
    REQUIRE(clean.n == wild.n);
    expect_equal(run_every_metadata_op(clean, {.number = i}), run_every_metadata_op(wild, {.number = i}));
  }
}

TEST_CASE("dtype: int32 and int64 lengths and requests say the same to every op") {
  for (int i = 0; i < test_rounds(10); ++i) {
    const auto in = reference::random_batch(test_seed() + 100 + i, {.max_tokens = 3});
    CAPTURE(reference::describe(in));
    expect_equal(run_every_metadata_op(in, {.number = i}),
                 run_every_metadata_op(in, {.number = i, .narrow = true}));
  }
}

TEST_CASE("accept-zero and negative-length: rows without tokens and rows shorter than theirs") {
  // fresh and padded rows, none, and a first row that accepted nothing: no length, sum, position or index of
  // a row or token is negative
  for (int i = 0; i < test_rounds(20); ++i) {
    auto in = reference::random_batch(
        test_seed() + 200 + i,
        {.max_tokens = 6, .page_size = 4, .max_context = 9, .draft_steps = 4, .poison = true});
    if (in.n > 0) in.E[0] = 0;
    CAPTURE(reference::describe(in));
    for (const auto& output : run_every_metadata_op(in, {.number = i})) {
      const auto& name = output.first;
      if (has(name, "table") || has(name, "slots") || has(name, "indices")) continue;
      CAPTURE(name);
      for (const std::int64_t value : output.second) CHECK((value >= 0 || value == output_poison));
    }
  }
}

TEST_CASE("sink-or-minus-one: a consumer that stores through every slot, and one that skips -1") {
  for (int i = 0; i < test_rounds(20); ++i) {
    const auto in = reference::random_batch(
        test_seed() + 300 + i,
        {.max_tokens = 4, .draft_steps = 4, .poison = true, .bad_request = true, .drop_tokens = i % 2 == 1});
    CAPTURE(reference::describe(in));
    for (const std::int32_t skip : {-1, 0})
      for (const auto& output : run_every_metadata_op(in, {.number = 3 * i, .skip = skip})) {
        const auto& name = output.first;
        if (!has(name, "slots") && !has(name, "KV indices")) continue;
        CAPTURE(name);
        for (const std::int64_t slot : output.second) {
          if (slot == output_poison) continue;
          // all inside the pool; with -1 as sentinel, none in the sink page
          CHECK(slot < in.pool_pages * in.P);
          if (skip == 0)
            CHECK(slot >= 0);
          else
            CHECK((slot == -1 || slot >= (has(name, "compressed") ? 0 : in.P) || has(name, "unified")));
        }
      }
  }
}
