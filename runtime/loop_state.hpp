#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>

#include "runtime/speculative_loop.hpp"

namespace stepgraph {

struct speculative_loop::state {
  using clock = std::chrono::steady_clock;

  /// A prompt that has joined.
  struct text {
    generation_request asked;
    request_id line = 0;
    std::size_t fed = 0;                  // prompt tokens whose step was launched
    int pending = 0;                      // steps launched that may emit, whose results are not there
    std::int64_t pages = 0;               // reserved for the longest it may become
    std::vector<std::int32_t> history{};  // prompt and emitted tokens, where drafts come from the host
    std::vector<std::int32_t> drafts{}, parents{};  // of the step being planned

    bool prompted() const { return fed == asked.prompt.size(); }
  };
  struct row_of_text {
    generation_id id;
    int drafted;
    bool emits;  // false for a chunk in the middle of a prompt
  };
  /// A step whose results have not been taken.
  struct launched {
    step_ticket ticket{};
    bool round = false;  // verify or decode
    int draft_length = 0;
    std::vector<row_of_text> rows{};
  };

  step_executor& executor;
  speculative_options options;
  speculation_statistics statistics{};
  draft_length_policy policy;
  std::map<generation_id, generation_request> waiting{};
  std::map<generation_id, text> live{};
  std::vector<launched> ring{};       // [in_flight], used in turn
  std::uint64_t first = 0, last = 0;  // ring[first % size] is the oldest, [last % size] the next free
  std::vector<step_row> rows{};
  generation_id next_id = 1;
  std::int64_t reserved = 0;  // pages
  std::optional<clock::time_point> last_result{};
  bool prompts_between = false;  // since the last result of a round

  state(step_executor& executor, speculative_options options);

  bool drafts_on_device() const {
    return options.drafts.from == draft_source::where::device && options.draft_length > 0;
  }
  bool drafts_on_host() const {
    return options.drafts.from == draft_source::where::host && options.draft_length > 0;
  }

  // loop_plan.cpp: what is launched
  std::int64_t pages_for(const generation_request& asked) const;
  void join();
  bool launch_prompts();
  bool launch_round();
  int choose_draft_length(int row_count);
  void plan_row(text& one, int draft_length);
  void launch(const step_round& round, launched& noted);
  launched& next_launched();
  bool samples() const;

  // speculative_loop.cpp: what came of it
  void check_limits(const step_limits& limits) const;
  void make_ring(int in_flight, int max_rows);
  void take_oldest();
  void take_row(const row_of_text& row, const row_result& result, std::span<const std::int32_t> emitted,
                bool round);
  void end(generation_id id, const generation_end& how);
};

}  // namespace stepgraph
