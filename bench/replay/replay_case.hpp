#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/guard_comparators.hpp"
#include "bench/replay/models.hpp"
#include "bench/replay/simulated_accept.hpp"

namespace stepgraph::bench {

enum class replay_step { decode, target_verify, draft_extend, round };
const char* to_string(replay_step step) noexcept;

/// How a step keeps its cost near the live region; `live` is stepgraph's own way.
struct replay_policy {
  const char* name;
  std::optional<guard_policy> other;  // none: live
};
const std::vector<replay_policy>& replay_policies();

/// One point of a sweep.
struct replay_case {
  model_shape model;
  replay_step step;
  replay_policy policy;
  int batch;
  std::int64_t live;   // tokens of a row when its attention runs
  std::int64_t width;  // captured, tokens
  int page_size;
  int drafts;  // K
  accept_rule accept;
  bool ragged;  // rows verify 1 to K + 1 tokens, not all K + 1

  /// "SmolLM2-135M/decode/live/batch:1/live:512/width:8192"
  std::string name() const;
  /// Most tokens of a row in one step.
  int max_query_count() const { return step == replay_step::decode ? 1 : drafts + 1; }
  /// Tokens of row `row` in a verify step, its last token included.
  int verify_tokens(int row) const { return ragged ? 1 + (row * 7 + drafts) % (drafts + 1) : drafts + 1; }
  /// The row's pages, most that it grows to while measured included.
  std::int64_t row_tokens() const;
  /// Pages of the KV pool: every live page its own; with a policy that reads the whole width, as much of it as
  /// lies beyond a cache.
  std::int64_t pool_pages() const;
};

/// Tokens by which a row may grow between two resets of its length.
constexpr int most_launches = 24;

/// Bytes of device memory that the case needs, within a few per cent, weights included.
std::int64_t bytes_needed(const replay_case& each, bool on_host);

/// Throws `invalid_argument` naming the option if the case cannot be.
void check(const replay_case& each);

}  // namespace stepgraph::bench
