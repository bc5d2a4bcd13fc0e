#include <doctest/doctest.h>

#include "graphs/error.hpp"
#include "kernels/attention/split_attention.hpp"

using namespace stepgraph;

namespace {

/// A device's shared memory: for a block, and in all of a multiprocessor.
struct shared_memory {
  int block, multiprocessor;
};

constexpr shared_memory hopper{227 * 1024, 228 * 1024}, ampere{163 * 1024, 164 * 1024},
    small_ampere{99 * 1024, 100 * 1024}, turing{64 * 1024, 64 * 1024};

detail::split_plan plan_on(const shared_memory& memory, int head_size, int rows, int tokens,
                           const detail::split_options& options = {}, bool batch_invariant = false) {
  const bool clusters = memory.block == hopper.block;
  const detail::split_device on{.multiprocessors = 108,
                                .clusters = clusters,
                                .block_bytes = memory.block,
                                .multiprocessor_bytes = memory.multiprocessor};
  return detail::plan_split(on,
                            {.type = element_type::bf16,
                             .page_columns = 100,
                             .tokens = tokens,
                             .rows = rows,
                             .heads = 8,
                             .kv_heads = 2,
                             .head_size = head_size,
                             .page_shift = 4,
                             .batch_invariant = batch_invariant},
                            options);
}

}  // namespace

TEST_CASE("split plan: blocks take no more shared memory than the device lends one") {
  for (const shared_memory& memory : {hopper, ampere, small_ampere})
    for (const int head_size : {64, 128})
      for (const int rows : {1, 8, 200})
        for (const int tokens_each : {1, 6, 40})
          for (const int warps : {0, 4, 8}) {
            CAPTURE(memory.block);
            CAPTURE(head_size);
            CAPTURE(rows);
            CAPTURE(tokens_each);
            CAPTURE(warps);
            const auto plan = plan_on(memory, head_size, rows, rows * tokens_each, {.warps = warps});
            CHECK(detail::split_block_bytes(head_size, plan.warps) <= memory.block);
            // as many blocks as there is room for at once, no more
            const int each = (plan.block_groups * 2 + 107) / 108;
            CHECK(each * (detail::split_block_bytes(head_size, plan.warps) + 1024) <= memory.multiprocessor);
            CHECK(plan.block_groups >= 54 - 1);
          }
}

TEST_CASE("split plan: few rows take blocks of eight warps where they fit, in clusters where there are any") {
  CHECK(plan_on(hopper, 128, 4, 4).warps == 8);
  CHECK(plan_on(hopper, 128, 4, 4).cluster == 2);
  CHECK(plan_on(hopper, 64, 4, 4).warps == 8);
  CHECK(plan_on(ampere, 64, 4, 4).warps == 8);
  CHECK(plan_on(ampere, 64, 4, 4).cluster == 1);
  CHECK(plan_on(ampere, 128, 4, 4).warps == 4);
  CHECK(plan_on(small_ampere, 64, 4, 4).warps == 4);
  CHECK(plan_on(hopper, 128, 100, 100).warps == 4);
}

TEST_CASE("split plan: a change of rows counts, but not where a row's bits may not depend on the others") {
  CHECK(plan_on(hopper, 128, 100, 100, {.switch_tiles = 5}).switch_tiles == 5);
  CHECK(plan_on(hopper, 128, 100, 100, {.switch_tiles = 5}, true).switch_tiles == 0);
}

TEST_CASE("split plan: a device with too little shared memory is refused by name") {
  CHECK_THROWS_WITH_AS(plan_on(turing, 64, 1, 1), doctest::Contains("needs 68608 bytes of shared memory"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(plan_on(turing, 128, 1, 1), doctest::Contains("needs 101376 bytes of shared memory"),
                       invalid_argument);
}
