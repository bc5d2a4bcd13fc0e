// Feeds any sequence of calls to an executor on the host backend. Whatever is refused must change nothing, and
// every step that is launched must give what the history of its requests says.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "graphs/error.hpp"
#include "runtime/step_executor.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/runtime/history_model.hpp"

namespace {

using namespace stepgraph;

/// A request as the definitions have it.
struct text {
  std::vector<std::int32_t> cached;
  std::int32_t last = -1;
};

/// What a step must have given.
struct expected {
  step_ticket ticket;
  std::vector<std::vector<std::int32_t>> emitted;  // by row
  std::vector<std::int32_t> length;
};

/// Runs one row by the definitions.
std::vector<std::int32_t> run(text& of, step_kind kind, const std::vector<std::int32_t>& tokens) {
  if (tokens.empty()) return {};
  std::vector<std::int32_t> emitted;
  if (kind != step_kind::target_verify) {
    of.cached.insert(of.cached.end(), tokens.begin(), tokens.end());
    emitted.push_back(history_model::next(of.cached));
  } else {
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      if (j > 0 && tokens[j] != emitted.back()) break;
      of.cached.push_back(tokens[j]);
      emitted.push_back(history_model::next(of.cached));
    }
  }
  of.last = emitted.back();
  return emitted;
}

void check(step_executor& executor, const expected& want) {
  const auto results = executor.wait(want.ticket);
  require(results.size() == want.emitted.size());
  for (std::size_t row = 0; row < results.size(); ++row) {
    require(results[row].status == 0 && results[row].length == want.length[row]);
    const auto emitted = executor.emitted(want.ticket, static_cast<int>(row));
    require(std::vector<std::int32_t>(emitted.begin(), emitted.end()) == want.emitted[row]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz_input in{data, data + size};
  constexpr int rows = 3, requests = 4, drafts = 3, in_flight = 3;
  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = 12,
                           .max_draft_tokens = drafts,
                           .max_requests = requests,
                           .max_context = 40,
                           .page_size = 4,
                           .kv_pages = 2 + in.below(40),
                           .vocab_size = history_model::vocab,
                           .in_flight = in_flight};
  step_executor executor(device::host(), limits, history_model::layout, history_model::steps(),
                         {.poison = in.below(2) == 1});
  if (in.below(4) > 0) executor.capture();
  std::map<request_id, text> open;
  std::deque<expected> launched;

  while (in.left()) {
    const int call = in.below(16);
    const auto some_request = [&] { return static_cast<request_id>(in.below(requests + 2) - 1); };
    try {
      if (call == 0) {
        open[executor.open()] = {};
      } else if (call == 1) {
        const request_id request = some_request();
        executor.close(request);
        require(open.erase(request) == 1);
      } else if (call == 2) {
        require(!executor.fault());
        executor.reset_fault();
      } else if (call == 3 && !launched.empty()) {
        executor.ready(launched.back().ticket);
        check(executor, launched.back());
      } else if (call == 4) {
        executor.length_bound(some_request());
      } else {
        const auto kind = static_cast<step_kind>(in.below(3));
        const int count = in.below(rows + 2);
        std::vector<step_row> named(count);
        std::vector<std::vector<std::int32_t>> ids(count);
        std::map<request_id, text> after = open;
        expected want{};
        for (int r = 0; r < count; ++r) {
          const request_id request = some_request();
          const int shape = in.one();
          text nobody;
          text& of = after.contains(request) ? after[request] : nobody;
          std::vector<std::int32_t> tokens;
          const int wanted = kind == step_kind::decode ? 1 : shape % 5;
          named[r] = {.request = request, .tokens = wanted};
          if (kind == step_kind::target_verify) {
            if (wanted > 0) tokens.push_back(of.last);
            text guess = of;
            for (int j = 1; j < wanted; ++j) {
              // right drafts as often as wrong ones
              run(guess, step_kind::decode, {tokens.back()});
              tokens.push_back(in.below(2) ? guess.last : in.below(history_model::vocab));
            }
            if (wanted > 0) ids[r].assign(tokens.begin() + 1, tokens.end());
          } else if (shape >= 128 && wanted <= 1) {
            if (wanted == 1) tokens.push_back(of.last);
          } else {
            for (int j = 0; j < wanted; ++j)
              tokens.push_back(in.below(history_model::vocab + 1) - (shape == 9));
            ids[r] = tokens;
          }
          named[r].token_ids = ids[r];
          want.emitted.push_back(run(of, kind, tokens));
          want.length.push_back(static_cast<std::int32_t>(of.cached.size()));
        }
        if (in.below(3) == 0) {
          want.ticket = executor.run_eager(kind, named);
        } else {
          const auto ticket =
              executor.replay(kind, named, 0, in.below(2) ? when_full::wait : when_full::would_block);
          if (!ticket) continue;
          want.ticket = *ticket;
        }
        open = after;
        launched.push_back(std::move(want));
        if (launched.size() > in_flight) launched.pop_front();
        if (in.below(2)) check(executor, launched.front());
      }
    } catch (const invalid_argument&) {  // refused, by name
    } catch (const out_of_pages&) {
    }
  }
  for (const expected& each : launched) check(executor, each);
  require(!executor.fault());
  return 0;
}
