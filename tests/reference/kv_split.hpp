#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepgraph::reference {

/// One piece of a row's cached tokens [begin, end), in the plan's order.
struct kv_chunk {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Which property of a KV-split plan fails, in words; empty if all hold. `len` [live rows]; a row of length 0
/// has no chunk, or one empty chunk.
std::string check_kv_split(const std::vector<kv_chunk>& chunks, const std::vector<std::int64_t>& len,
                           std::int64_t tile, std::int64_t max_splits, std::int64_t capacity);

/// How evenly chunks spread over workers that take them in the plan's order, each as soon as it is free.
struct kv_split_balance {
  std::int64_t total = 0;     // tokens
  std::int64_t longest = 0;   // tokens of the longest chunk
  std::int64_t makespan = 0;  // tokens of the busiest worker
  double ratio = 1;           // makespan / (total / workers)
};
kv_split_balance balance_of(const std::vector<kv_chunk>& chunks, std::int64_t workers);

/// Whether rows of equal length have equal chunks in two plans (or in one, given twice); empty if so, else in
/// words.
std::string check_batch_invariant(const std::vector<kv_chunk>& a, const std::vector<std::int64_t>& len_a,
                                  const std::vector<kv_chunk>& b, const std::vector<std::int64_t>& len_b);

}  // namespace stepgraph::reference
