#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/step_executor.hpp"

namespace stepgraph::llama {

enum class stop_reason { none, end_of_turn, token_budget, context_limit, failed };

const char* to_string(stop_reason reason) noexcept;

/// One prompt and what became of it.
struct conversation {
  std::vector<std::int32_t> prompt;
  int max_tokens = 128;  // to generate
  std::function<void(std::int32_t)>
      on_token{};  // told each generated token, the one that ends the turn excepted

  std::vector<std::int32_t> generated{};
  stop_reason stopped = stop_reason::none;
  row_status status = row_status::ok;  // why it failed, where it did
};

/// How the steps of a scheduler are run.
enum class step_mode { replay, eager };

/// Proposes what may follow `history` (prompt and generated tokens): writes to `drafts`, returns how many.
using drafter = std::function<int(std::span<const std::int32_t> history, std::span<std::int32_t> drafts)>;

struct scheduler_options {
  std::int32_t end_of_turn = -1;  // token that ends a conversation, negative for none
  step_mode mode = step_mode::replay;
  drafter draft{};  // null: plain decoding. Else the executor must have verify steps
};

/// What speculation came to. A round is one row of one verify step that had drafts.
struct draft_statistics {
  std::uint64_t rounds = 0;
  std::uint64_t drafted = 0;
  std::uint64_t accepted = 0;
  std::vector<std::uint64_t> rounds_by_accepted;  // [max_draft_tokens + 1]
};

/// A minimal continuous-batching loop over an executor: conversations join and leave between steps; prompts
/// go in chunks, decoding rows beside them; of what a drafter proposes, what the target agrees with is kept.
class scheduler {
 public:
  /// The executor must have decode and extend steps.
  scheduler(step_executor& executor, scheduler_options options);

  /// Adds a conversation, which must outlive its end. Throws `invalid_argument` if the prompt is empty or
  /// does not leave room for one token.
  void add(conversation& joined);

  /// Runs one step over everything that is live; false if nothing was. Conversations wait for a free line of
  /// the request table and for free pages.
  bool step();

  std::uint64_t prompt_tokens() const noexcept { return prompt_tokens_; }
  std::uint64_t steps() const noexcept { return steps_; }
  const draft_statistics& drafts() const noexcept { return draft_statistics_; }

 private:
  struct live {
    conversation* talk;
    request_id request;
    std::size_t fed;                    // prompt tokens in the cache already
    std::vector<std::int32_t> history;  // prompt and generated tokens; kept only where there is a drafter
    std::vector<std::int32_t> drafts;   // of this step
  };
  void admit();
  step_kind plan_prompts();
  step_kind plan_decode();
  void propose(live& row);
  step_ticket run(step_kind kind);
  void take(live& row, std::int32_t tokens, const row_result& result, std::span<const std::int32_t> emitted);
  void leave(live& row, stop_reason reason);

  step_executor& executor_;
  scheduler_options options_;
  std::vector<conversation*> waiting_;
  std::vector<live> live_;
  std::vector<step_row> rows_;
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t steps_ = 0;
  draft_statistics draft_statistics_;
};

}  // namespace stepgraph::llama
