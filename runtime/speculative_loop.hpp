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
  std::function<void(std::int32_t token)>
      on_token{};  // told each token emitted once, the one that ends included
  std::function<void(const generation_end& end)> on_end{};  // told once, after the last token
};

struct speculative_options {
  draft_source drafts{};
  int draft_length = 0;   // K, or the most an adaptive loop tries; 0: plain decoding
  bool adaptive = false;  // choose K from measured acceptance, batch and time; 0 where drafts do not pay
  /// K of each round instead of the two above: told the round's number and its decoding rows. Asked again for a
  /// round whose launch was refused.
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
  std::vector<std::uint64_t> by_proposed;  // [K + 1] rounds, by the most drafts that one of their rows had
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
/// The executor must have a request table of its own, decode and extend steps, verify steps where K is over 0 (for
/// trees where drafts are), `finish`, and the draft's steps where drafts come from it, of the variants that
/// `speculative_options` names; sampled ones for sampled requests. `in_flight` of 4 or more lets prompts go in beside a
/// round ahead.
///
/// Callbacks (`on_token`, `on_end`, the drafter, `choose_draft_length`) may call `submit`, `stop` and `statistics`.
/// One that throws, or a step that the executor refuses, ends `step` (`run`, `recapture`, `stop`) with that exception,
/// and the loop is as it was but for what was handed out: a token or an end counts as handed out when its callback is
/// called, so one that threw is not told again. Called again, the loop first hands out what is left, then goes on: no
/// token is lost, none told twice, none of a step that was refused counted.
///
/// One thread at a time: while a call is inside, another thread's throws `invalid_argument` and changes nothing.
class speculative_loop {
 public:
  /// Throws `invalid_argument` naming what the executor lacks: a step of a kind and variant, a draft length that it
  /// can have no graphs for. For greedy requests or for sampled ones it must have all.
  speculative_loop(step_executor& executor, speculative_options options);
  ~speculative_loop();  // what has not ended is aborted; nobody is told
  speculative_loop(const speculative_loop&) = delete;
  speculative_loop& operator=(const speculative_loop&) = delete;

  /// Takes a prompt in; it joins as soon as there is room. Throws `invalid_argument` if it never can: empty, no
  /// room for an answer in the context, more pages than the pool has, sampled (greedy) where the executor lacks a step
  /// for that.
  generation_id submit(generation_request request);

  /// Ends a text from the host's side: what was told of it stays, nothing more follows. `on_end` is told
  /// `host_stop`, before this returns. May be called from any callback; the text's functions live until that has
  /// returned. An id that has ended is ignored.
  void stop(generation_id id);

  /// Launches the next round and hands out what the round before (or, not running ahead, this one) emitted.
  /// False once everything submitted has ended and been told. Not from a callback. Throws what a callback throws;
  /// `invalid_argument` where one gives what cannot be (a K over `draft_length` or without graphs; more drafts than
  /// asked for or fewer than none, tokens outside the vocabulary, parents that are no tree), with the text's id and
  /// the numbers; and what `step_executor::replay` throws.
  bool step();

  /// Steps until everything submitted has ended.
  void run() {
    while (step()) {
    }
  }

  /// `step_executor::recapture` while texts are under way: hands out what is in flight, then captures for other
  /// limits; every text goes on as it would have. Throws `invalid_argument`, and nothing has changed but what was
  /// handed out, if more texts are live than `limits.max_rows`, or the loop's draft_length or a round ahead would no
  /// longer fit; else as the executor does. Not from a callback.
  void recapture(const step_limits& limits, std::optional<bucket_policy> row_buckets = {},
                 std::optional<bucket_policy> token_buckets = {});

  /// For the thread that calls the rest.
  const speculation_statistics& statistics() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace stepgraph
