#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/guard.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph {

/// Walks from each row's root while the target's argmax at the current node equals a child's token (the
/// lowest node if several do); the bonus token is the argmax at the last node kept. An argmax of -1 on the
/// path (a NaN among its logits) ends the row with `nan_logits`, one of -2 (an empty mask) with
/// `no_allowed_token`: the drafts kept before it stay, and there is no bonus. Off the path neither matters.
struct greedy_accept_params {
  verify_view verify{};
  const std::int32_t* argmax =
      nullptr;  // [tokens], from greedy_sample over the step's tokens with no fault sink
  /// [tokens] or null: the largest logit of each token, as an output head has ranked it (`ranked_logit`); where it is
  /// not 0 it stands for the argmax.
  const std::uint64_t* ranked = nullptr;
  accept_result result{};  // out
  fault_sink faults{};
};

/// Throws `invalid_argument` naming the field that cannot be.
void check(const greedy_accept_params& params);

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void greedy_accept(stream_ref at, const greedy_accept_params& params);

}  // namespace stepgraph
