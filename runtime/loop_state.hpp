#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "graphs/error.hpp"
#include "runtime/speculative_loop.hpp"

namespace stepgraph {

struct speculative_loop::state {
  using clock = std::chrono::steady_clock;

  /// A prompt that has joined.
  struct text {
    generation_request asked{};
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
    std::int32_t fed;  // tokens of the prompt
    bool emits;        // false for a chunk in the middle of a prompt
  };
  /// How far the results of a step have been handed out.
  struct progress {
    bool begun = false;
    std::size_t row = 0;
    int tokens = -1;  // of that row, told; -1: the row has not been counted
  };
  /// A step whose results have not all been handed out.
  struct launched {
    step_ticket ticket{};
    bool round = false;    // verify or decode
    int draft_length = 0;  // the most drafts of a row
    std::vector<row_of_text> rows{};
    progress told{};
  };

  step_executor& executor;
  speculative_options options;
  speculation_statistics statistics{};
  draft_length_policy policy;
  std::map<generation_id, generation_request> waiting{};
  std::map<generation_id, text> live{};
  std::map<generation_id, text>
      ended{};                   // until the call that ended them returns: one of their functions may run
  std::vector<launched> ring{};  // [in_flight], used in turn
  std::uint64_t first = 0, last = 0;  // ring[first % size] is the oldest, [last % size] the next free
  std::vector<step_row> rows{};
  generation_id next_id = 1;
  std::int64_t reserved = 0;  // pages
  std::optional<clock::time_point> last_result{};
  bool prompts_between = false;          // since the last result of a round
  bool interrupted = false;              // the step before ended by an exception
  std::atomic<std::thread::id> owner{};  // the thread that is inside
  int depth = 0;                         // its calls, one in another's callbacks

  /// One call: lets the calls of one thread in, those from its callbacks included, and refuses another's meanwhile.
  class call {
   public:
    explicit call(state& s) : state_(s) {
      const std::thread::id me = std::this_thread::get_id();
      std::thread::id nobody{};
      STEPGRAPH_EXPECTS(state_.owner.load(std::memory_order_relaxed) == me ||
                            state_.owner.compare_exchange_strong(nobody, me, std::memory_order_acquire),
                        "speculative_loop: called while a call of another thread is inside");
      ++state_.depth;
    }
    /// One that callbacks may not make.
    call(state& s, const char* name) : call(s) {
      STEPGRAPH_EXPECTS(state_.depth == 1, "speculative_loop::", name,
                        ": called from a callback, which may submit and stop only");
    }
    ~call() {
      while (state_.depth == 1 && !state_.ended.empty()) {
        std::map<generation_id, text> gone;  // apart, for what goes with them may end others
        gone.swap(state_.ended);
      }
      if (--state_.depth == 0) state_.owner.store(std::thread::id{}, std::memory_order_release);
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;

   private:
    state& state_;
  };

  state(step_executor& executor, speculative_options options);

  bool drafts_on_device() const {
    return options.drafts.from == draft_source::where::device && options.draft_length > 0;
  }
  bool drafts_on_host() const {
    return options.drafts.from == draft_source::where::host && options.draft_length > 0;
  }
  /// True if the next round has a row of `one`.
  bool decodes(const text& one) const { return one.prompted() && (!drafts_on_host() || one.pending == 0); }

  // loop_checks.cpp: what is refused
  std::string lacking(bool sampled) const;
  void check_executor() const;
  void check_captured(int draft_length) const;
  void check_limits(const step_limits& limits) const;
  void check_request(const generation_request& asked) const;

  // loop_plan.cpp: what is launched
  std::int64_t pages_for(const generation_request& asked) const;
  void join();
  void launch_prompts();
  void launch_round();
  int choose_draft_length(int row_count);
  void propose(generation_id id, text& one, int draft_length);
  void propose_all(int draft_length);
  step_row row_of(const text& one, int draft_length) const;
  void launch(const step_round& round, launched& noted);
  launched& next_launched();
  bool samples() const;

  // speculative_loop.cpp: what came of it
  void make_ring(int in_flight, int max_rows);
  void take_oldest();
  void note_time(const launched& step);
  void count_row(const row_of_text& row, const row_result& result, int emitted, bool round);
  void take_row(launched& step, const row_result& result, std::span<const std::int32_t> emitted);
  void end(generation_id id, const generation_end& how);
};

}  // namespace stepgraph
