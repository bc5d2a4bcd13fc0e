// Feeds any parents, tokens, counts and lengths to the inputs of a verify step and to greedy accept, and checks
// what must hold for all of them; whatever is a tree must come out as the definitions say.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "graphs/error.hpp"
#include "kernels/speculate/greedy_accept.hpp"
#include "kernels/speculate/verify_inputs.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/reference/speculation.hpp"

namespace {

using namespace stepgraph;

constexpr int rows = 3, width = 64, tokens = 80, requests = 3, columns = 96, vocab = 8;

bool is_tree(const std::int32_t* parents, int nodes) {
  try {
    std::vector<std::int32_t> up(parents, parents + nodes);
    up[0] = -1;
    check_tree(up);
    return true;
  } catch (const invalid_argument&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const stream at(device::host());
  fuzz_input in{data, data + size};
  const std::int32_t live = in.number();
  std::vector<std::int32_t> wanted(rows), finished(requests), capacity(requests), last(requests),
      request(rows), before(rows), drafts(rows * (width - 1)), parents(rows * width),
      table(requests * columns);
  for (auto* numbers : {&wanted, &finished, &capacity, &last, &request, &before})
    for (std::int32_t& number : *numbers) number = in.number();
  for (int row = 0; row < rows; ++row)
    for (int node = 0; node < width; ++node) {
      parents[row * width + node] = in.number();
      if (node > 0) drafts[row * (width - 1) + node - 1] = in.number();
    }
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);

  std::vector<std::int32_t> counts(rows), ids(tokens), parent_of(tokens), depth(tokens), cu(rows + 1),
      last_row(rows), row_of(tokens), position(tokens), causal(tokens), slots(tokens), status(rows);
  std::vector<std::uint64_t> ancestors(tokens);
  fault_record record{};
  std::int32_t taken = 0;
  const fault_sink faults{.record = &record, .taken = &taken, .row_status = status.data()};
  verify_inputs(at, {.wanted = wanted.data(),
                     .finished = finished.data(),
                     .token_capacity = capacity.data(),
                     .last_token = last.data(),
                     .drafts = drafts.data(),
                     .draft_stride = width - 1,
                     .parents = parents.data(),
                     .parent_stride = width,
                     .vocab_size = vocab,
                     .query_counts = counts.data(),
                     .token_ids = ids.data(),
                     .parent_of = parent_of.data(),
                     .depth = depth.data(),
                     .ancestors = ancestors.data(),
                     .inputs = {.lengths = {.live_rows = &live,
                                            .rows = rows,
                                            .seq_lens = before.data(),
                                            .delta = 0,
                                            .delta_by_row = counts.data(),
                                            .cap = columns},
                                .query_counts = counts.data(),
                                .max_query_count = width,
                                .tokens = tokens,
                                .requests = request.data(),
                                .source = {.table = table.data(),
                                           .row_stride = columns,
                                           .requests = requests,
                                           .columns = columns,
                                           .page_shift = 0,
                                           .page_granular = false,
                                           .pool_pages = 0},
                                .skip = -1,
                                .cu_seqlens_q = cu.data(),
                                .last_row = last_row.data(),
                                .row_of = row_of.data(),
                                .position = position.data(),
                                .causal_length = causal.data(),
                                .out_cache_loc = slots.data(),
                                .faults = faults}});

  std::vector<std::int32_t> argmax(tokens);
  for (std::int32_t& best : argmax) best = in.one() % (vocab + 2) - 2;  // -1: NaN, -2: an empty mask
  std::vector<std::int32_t> accepts(rows), emits(rows), advances(rows), next(rows), emitted(rows * width),
      path(rows * width);
  const accept_result result{.accept_count = accepts.data(),
                             .emit_count = emits.data(),
                             .cache_advance = advances.data(),
                             .next_token = next.data(),
                             .emit_tokens = emitted.data(),
                             .path = path.data(),
                             .stride = width};
  greedy_accept(at, {.verify = {.live_rows = &live,
                                .rows = rows,
                                .max_query_count = width,
                                .cu_seqlens_q = cu.data(),
                                .token_ids = ids.data(),
                                .parents = parent_of.data()},
                     .argmax = argmax.data(),
                     .result = result,
                     .faults = faults});

  require(cu[0] == 0 && cu[rows] <= tokens);
  for (int row = 0; row < rows; ++row) {
    const int first = cu[row], nodes = cu[row + 1] - first;
    require(nodes >= 0 && nodes <= counts[row] && counts[row] <= width);
    if (row >= live) require(nodes == 0);
    for (int node = 0; node < nodes; ++node) {
      const int token = first + node, up = parent_of[token];
      require(row_of[token] == row && ids[token] >= 0 && ids[token] < vocab);
      require(node == 0 ? up == 0 && depth[token] == 0
                        : up >= 0 && up < node && depth[token] == depth[first + up] + 1);
      const std::uint64_t own = std::uint64_t{1} << node;
      require(ancestors[token] == (node == 0 ? own : own | ancestors[first + up]));
    }
    require(accepts[row] >= 0 && accepts[row] <= (nodes > 0 ? nodes - 1 : 0));
    require(emits[row] >= accepts[row] && emits[row] <= accepts[row] + 1 && (nodes > 0 || emits[row] == 0));
    if (nodes == 0 || !is_tree(parents.data() + row * width, nodes)) continue;
    reference::draft_tree tree;
    std::vector<std::optional<std::int64_t>> best;
    for (int node = 0; node < nodes; ++node) {
      tree.parents.push_back(node == 0 ? -1 : parents[row * width + node]);
      tree.tokens.push_back(ids[first + node]);
      best.push_back(argmax[first + node] < 0 ? std::nullopt
                                              : std::optional<std::int64_t>(argmax[first + node]));
    }
    require(reference::ancestor_sets(tree.parents) ==
            std::vector<std::uint64_t>(ancestors.begin() + first, ancestors.begin() + first + nodes));
    const reference::accepted want = reference::greedy_accept(tree, best);
    require(static_cast<int>(want.emitted.size()) == emits[row]);
    for (int i = 0; i < emits[row]; ++i) require(want.emitted[i] == emitted[row * width + i]);
  }
  return 0;
}
