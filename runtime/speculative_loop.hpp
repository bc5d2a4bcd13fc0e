#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/speculate/finish_rows.hpp"
#include "runtime/draft_length.hpp"
#include "runtime/draft_source.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph {

/// Names one text from `submit` on, never used again.
using generation_id = std::uint64_t;

/// How a text came to its end.
struct generation_end {
  finish_reason reason = finish_reason::running;
  row_status status = row_status::ok;  // why, where the reason is a fault
};

/// A prompt, and who is told of what follows it.
struct generation_request {
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = 128;  // to emit
  /// Greedy unless a temperature is set. `request` of 0 is replaced by the generation's own number.
  sampling_settings sampling{};
  std::function<void(std::int32_t token)> on_token{};  // told each token emitted, the one that ends included
  std::function<void(const generation_end& end)> on_end{};  // told once, after the last token
};

struct speculative_options {
  draft_source drafts{};
  int draft_length = 0;   // K, or the most an adaptive loop tries; 0: plain decoding
  bool adaptive = false;  // choose K from measured acceptance, batch and time; 0 where drafts do not pay
  /// K of each round instead of the two above: told the round's number and its decoding rows.
  std::function<int(std::uint64_t round, int rows)> choose_draft_length{};
  bool run_ahead = true;  // launch a round while the one before runs; false: wait for each
  bool eager = false;     // without graphs
  // variants of the embedder's steps
  int greedy_variant = 0, sampled_variant = 1;
  int greedy_tree_variant = 2, sampled_tree_variant = 3;
  int draft_greedy_variant = 0, draft_sampled_variant = 1;
};

/// What a loop has done.
struct speculation_statistics {
  std::uint64_t rounds = 0;         // verify or decode steps
  std::uint64_t prompt_steps = 0;   // extend steps
  std::uint64_t prompt_tokens = 0;  // that went in by them
  std::uint64_t emitted = 0;
  std::uint64_t row_rounds = 0;  // rows of rounds that emitted anything
  std::uint64_t drafted = 0;     // drafts that were verified, at most
  std::uint64_t accepted = 0;
  std::vector<std::uint64_t> by_accepted;      // [K + 1] row rounds with drafts, by drafts accepted
  std::vector<std::uint64_t> by_draft_length;  // [K + 1] rounds, by the K that was chosen
};

/// Answers several prompts at once by rounds over an executor: drafts, verify, accept, the draft over what was
/// accepted. Requests join and leave between rounds, K may change from round to round. Greedy text is token for
/// token that of plain decoding, sampled text has exactly the target's distribution, and with a given K depends
/// on the request's seed and number alone.
///
/// The host runs one round ahead: it plans and launches a round while the one before still runs. True lengths,
/// and who has finished, are known to the device alone; the host learns of them a round late. So nothing on the
/// device waits for the host. A request's pages are reserved for the longest it may become, before it joins.
///
/// The executor must have decode and extend steps, verify steps where K is over 0, `finish`, and the draft's
/// steps where drafts come from it; `in_flight` of 4 or more lets prompts go in beside a round ahead. One
/// thread.
class speculative_loop {
 public:
  /// Throws `invalid_argument` naming what the executor lacks.
  speculative_loop(step_executor& executor, speculative_options options);
  ~speculative_loop();  // what has not ended is aborted; nobody is told
  speculative_loop(const speculative_loop&) = delete;
  speculative_loop& operator=(const speculative_loop&) = delete;

  /// Takes a prompt in; it joins as soon as there is room. Throws `invalid_argument` if it never can: empty, no
  /// room for an answer in the context, more pages than the pool has.
  generation_id submit(generation_request request);

  /// Ends a text from the host's side: what was told of it stays, nothing more follows. `on_end` is told
  /// `host_stop`, before this returns. May be called from `on_token`. An id that has ended is ignored.
  void stop(generation_id id);

  /// Launches the next round and hands out what the round before (or, not running ahead, this one) emitted.
  /// False once everything submitted has ended and been told.
  bool step();

  /// Steps until everything submitted has ended.
  void run() {
    while (step()) {
    }
  }

  /// `step_executor::recapture` while texts are under way: hands out what is in flight, then captures for other
  /// limits; every text goes on as it would have. Throws `invalid_argument`, and nothing has changed but what was
  /// handed out, if more texts are live than `limits.max_rows`, or the loop's draft_length or a round ahead would no
  /// longer fit; else as the executor does.
  void recapture(const step_limits& limits, std::optional<bucket_policy> row_buckets = {},
                 std::optional<bucket_policy> token_buckets = {});

  const speculation_statistics& statistics() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace stepgraph
