#include "kernels/metadata/token_inputs.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/error.hpp"
#include "tests/kernels/metadata_fixture.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t poison = -77;

void compare(reference::batch in, std::int32_t skip) {
  in.C = std::max<std::int64_t>(in.C, 1);  // a batch without tokens is captured for one
  CAPTURE(reference::describe(in));
  const stream at(test_device());
  const device_batch batch(at, in);
  device_vector<std::int32_t> cu(at, in.B + 1 + 4, poison), last(at, in.B + 4, poison),
      row_of(at, in.C + 4, poison), position(at, in.C + 4, poison), causal(at, in.C + 4, poison);
  device_vector<std::int64_t> loc(at, in.C + 4, poison);
  token_inputs(at, {.lengths = batch.lengths,
                    .query_counts = batch.query_counts(),
                    .max_query_count = static_cast<std::int32_t>(in.Emax),
                    .tokens = static_cast<std::int32_t>(in.C),
                    .requests = batch.requests(),
                    .source = batch.source,
                    .skip = skip,
                    .cu_seqlens_q = cu.data(),
                    .last_row = last.data(),
                    .row_of = row_of.data(),
                    .position = position.data(),
                    .causal_length = causal.data(),
                    .out_cache_loc = loc.data(),
                    .faults = batch.faults});
  const auto want = reference::token_inputs(in, {.out_cache_loc_skip = skip, .depth = {}});
  for (const auto& [got, expected] : {std::pair{last.get(), want.last_row},
                                      {row_of.get(), want.row_of},
                                      {position.get(), want.position},
                                      {causal.get(), want.causal_length}}) {
    CHECK_MESSAGE(check_live(got, expected).empty(), check_live(got, expected));
    CHECK_MESSAGE(check_untouched(got, poison, expected).empty(), check_untouched(got, poison, expected));
  }
  const auto slots = loc.get();
  CHECK_MESSAGE(check_live(slots, want.out_cache_loc).empty(), check_live(slots, want.out_cache_loc));
  CHECK_MESSAGE(check_untouched(slots, poison, want.out_cache_loc).empty(), "out_cache_loc past its end");
  const auto sums = cu.get();
  const auto derived = reference::derive(in);
  for (std::int64_t r = 0; r <= in.B; ++r) CHECK(sums[r] == derived.cu_q[r]);
  const auto status = batch.row_status();
  for (std::int64_t r = 0; r < in.B; ++r) {
    bool reported = false;
    for (const reference::fault& fault : want.faults) reported = reported || fault.row == r;
    CHECK((status[r] != 0) == reported);
  }
}

}  // namespace

TEST_CASE(
    "sink-or-minus-one: token inputs of random ragged batches equal the definitions, with both sentinels") {
  for (int i = 0; i < test_rounds(60); ++i)
    compare(reference::random_batch(test_seed() + i, {.page_granular = i % 2 == 0, .poison = true}),
            i % 3 == 0 ? 0 : -1);
}

TEST_CASE("token inputs clamp and report lengths, counts, requests and slots that cannot be") {
  for (int i = 0; i < test_rounds(20); ++i) {
    const std::uint64_t seed = test_seed() + 1000 + 5 * i;
    compare(reference::random_batch(seed, {.poison = true, .bad_request = true}), -1);
    compare(reference::random_batch(seed + 1, {.poison = true, .bad_length = true}), -1);
    compare(reference::random_batch(seed + 2, {.poison = true, .bad_tokens = true}), -1);
    compare(reference::random_batch(seed + 3, {.poison = true, .drop_tokens = true}), -1);
  }
}

TEST_CASE("more rows and tokens than one team has threads") {
  for (int i = 0; i < test_rounds(3); ++i)
    compare(reference::random_batch(test_seed() + 2000 + i, {.rows = 700, .max_tokens = 5, .page_size = 4}),
            -1);
}

TEST_CASE("token inputs refuse by name what the host can see") {
  const stream at(test_device());
  token_inputs_params params;
  CHECK_THROWS_WITH_AS(token_inputs(at, params), doctest::Contains("lengths.rows"), invalid_argument);
}
