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

/// A minimal continuous-batching loop over an executor: conversations join and leave between steps; prompts
/// go in chunks, decoding rows beside them.
class scheduler {
 public:
  /// `end_of_turn` ends a conversation, negative for none. The executor must have decode and extend steps.
  scheduler(step_executor& executor, std::int32_t end_of_turn, step_mode mode = step_mode::replay);

  /// Adds a conversation, which must outlive its end. Throws `invalid_argument` if the prompt is empty or
  /// does not leave room for one token.
  void add(conversation& joined);

  /// Runs one step over everything that is live; false if nothing was. Conversations wait for a free line of
  /// the request table and for free pages.
  bool step();

  std::uint64_t prompt_tokens() const noexcept { return prompt_tokens_; }
  std::uint64_t steps() const noexcept { return steps_; }

 private:
  struct live {
    conversation* talk;
    request_id request;
    std::size_t fed;  // prompt tokens in the cache already
  };
  void admit();
  std::span<const row_result> run(step_kind kind);
  void take(live& row, std::int32_t chunk, const row_result& result);
  void leave(live& row, stop_reason reason);

  step_executor& executor_;
  std::int32_t end_of_turn_;
  step_mode mode_;
  std::vector<conversation*> waiting_;
  std::vector<live> live_;
  std::vector<step_row> rows_;
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace stepgraph::llama
