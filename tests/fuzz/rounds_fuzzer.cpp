// Feeds any sequence of rounds to an executor with a draft on the host backend: chains and trees, greedy and sampled,
// drafts of the model's and the host's, texts that end on the device, owned and adopted tables, captures that fail and
// captures anew. Whatever is refused must change nothing, and every text must be what its model says next, token by
// token: drafts cost or save steps, never a word.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <vector>

#include "graphs/error.hpp"
#include "runtime/step_executor.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/recent_model.hpp"

namespace {

using namespace stepgraph;
using tokens = std::vector<std::int32_t>;

constexpr int requests = 4, context = 40, page_size = 4, most_drafts = 3, most_rows = 4;
constexpr std::int32_t end_id = 3;

/// A request as the definitions have it, as far as results have been read.
struct text {
  bool open = false;
  bool ended = false;  // or failed: from then on nothing is said of it
  tokens cached{};
  std::int32_t last = -1;
  std::int64_t budget = INT32_MAX;
};

/// A row that was launched, with copies of what it named.
struct launched_row {
  request_id request;
  int count;
  tokens ids, parents;
  std::int32_t following;
};

struct launched_step {
  step_ticket ticket;
  step_kind kind;
  std::vector<launched_row> rows;
};

struct session {
  fuzz_input in;
  bool adopted, finish;
  std::int64_t kv_pages = adopted ? 1 + requests * context / page_size : 8 + in.below(40);
  tokens pages = tokens(requests * context / page_size), lengths = tokens(requests), lasts = tokens(requests);
  std::vector<sampling_settings> settings = std::vector<sampling_settings>(requests);
  recent_model model{.masked = finish};
  step_executor executor;
  std::vector<text> texts = std::vector<text>(requests);
  std::deque<launched_step> launched{};

  explicit session(fuzz_input input)
      : in(input), adopted(in.below(4) == 1), finish(in.below(2) == 1), executor(make()) {
    if (!adopted) return;
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i) + 1;
    for (text& each : texts) each = {.open = true, .last = 0};
  }

  step_limits limits() {
    return {.max_rows = 1 + in.below(most_rows),
            .max_step_tokens = 4 + in.below(29),
            .max_draft_tokens = 1 + in.below(most_drafts),
            .max_requests = requests,
            .max_context = context,
            .page_size = page_size,
            .kv_pages = kv_pages,
            .vocab_size = recent_model::vocab,
            .hidden_size = 1,
            .in_flight = 1 + in.below(4)};
  }

  step_executor make() {
    const step_limits first = limits();
    executor_options options{.poison = in.below(2) == 1, .draft = recent_model::draft()};
    if (in.below(2)) {  // one bucket
      options.row_buckets = bucket_policy::exactly({first.max_rows});
      options.token_buckets = bucket_policy::exactly({first.max_step_tokens});
    }
    if (finish) options.finish = finish_options{{end_id}};
    if (adopted) {
      for (sampling_settings& each : settings) each = some_settings();
      options.requests = adopted_requests{.source = {.table = pages.data(),
                                                     .row_stride = context / page_size,
                                                     .requests = requests,
                                                     .columns = context / page_size,
                                                     .page_shift = 2,
                                                     .page_granular = true,
                                                     .pool_pages = 1 + requests * context / page_size},
                                          .seq_lens = lengths.data(),
                                          .last_token = lasts.data(),
                                          .sampling = settings.data()};
    }
    return {device::host(), first, recent_model::layout, model.steps(), options};
  }

  sampling_settings some_settings() {
    return {.temperature = in.below(2) ? 0.9f : 0.0f, .seed = std::uint64_t(in.one())};
  }

  /// All tokens along `path`, which begins with the text's last.
  static tokens after(const text& of, const tokens& path) {
    tokens all = of.cached;
    all.insert(all.end(), path.begin(), path.end());
    return all;
  }

  /// Reads the results of the oldest step, and holds each row against its text.
  void check_oldest() {
    const launched_step step = std::move(launched.front());
    launched.pop_front();
    const auto results = executor.wait(step.ticket);
    require(results.size() == step.rows.size());
    for (std::size_t r = 0; r < results.size(); ++r) {
      const auto emitted = executor.emitted(step.ticket, static_cast<int>(r));
      check(step.kind, step.rows[r], results[r], tokens(emitted.begin(), emitted.end()));
    }
  }

  void check(step_kind kind, const launched_row& row, const row_result& result, const tokens& emitted) {
    text& of = texts[row.request];
    require(result.count == std::ssize(emitted) && result.count <= std::max(row.count, 1));
    if (of.ended || !of.open) {
      require(!of.open || !finish || emitted.empty());
      if (adopted && result.status != 0) executor.reset_fault();  // it is still past its pages
      return;
    }
    if (result.status != 0) {
      // what only the device can see: a text past its pages
      require(adopted || finish);
      require(std::ssize(of.cached) + row.count > context || !adopted);
      executor.reset_fault();
      of.ended = true;
      return;
    }
    if (row.count == 0) return require(emitted.empty());
    const bool verify = kind == step_kind::target_verify;
    const tokens fed = verify || row.ids.empty() ? tokens{of.last} : row.ids;
    of.cached.insert(of.cached.end(), fed.begin(), fed.end());
    if (row.following >= 0) {
      require(emitted.empty());
      of.last = row.following;
    } else {
      require(!emitted.empty());
      for (std::size_t i = 0; i < emitted.size(); ++i) {
        require(emitted[i] == recent_model::next(of.cached));
        if (i + 1 < emitted.size()) of.cached.push_back(emitted[i]);
      }
      of.last = emitted.back();
      of.budget -= std::ssize(emitted);
    }
    if (!finish) {
      require(result.reason == 0);
    } else if (row.following < 0) {
      const auto stop = std::ranges::find(emitted, end_id);
      const bool eos = stop != emitted.end();
      require(!eos || stop + 1 == emitted.end());
      require(of.budget >= 0);
      const auto reason = static_cast<finish_reason>(result.reason);
      require(eos == (reason == finish_reason::end_of_sequence));
      require(eos || (of.budget == 0) == (reason == finish_reason::token_budget));
      of.ended = reason != finish_reason::running;
    }
    if (!of.ended) require(result.length == std::ssize(of.cached));
    // drafts that outrun the context are cut on the device
    const bool whole = std::ssize(of.cached) - std::ssize(emitted) + row.count <= context;
    if (!of.ended && verify && row.ids.size() + 1 == static_cast<std::size_t>(row.count) && !finish && whole)
      require(std::ssize(emitted) == kept(row, emitted) + 1);
  }

  /// How many of the row's own drafts agree with what was emitted.
  static int kept(const launched_row& row, const tokens& emitted) {
    int node = 0, accepted = 0;
    for (bool found = true; found && accepted < std::ssize(emitted);) {
      found = false;
      for (std::size_t j = 0; j < row.ids.size() && !found; ++j) {
        const int parent = row.parents.empty() ? static_cast<int>(j) : std::max(row.parents[j + 1], 0);
        if (parent != node || row.ids[j] != emitted[accepted]) continue;
        node = static_cast<int>(j) + 1;
        found = true;
      }
      accepted += found;
    }
    return accepted;
  }

  void check_all() {
    while (!launched.empty()) check_oldest();
  }

  bool is_line(request_id request) const { return request >= 0 && request < requests; }

  void open() {
    if (adopted) {  // a line is given to another text once no step works on it
      const request_id line = static_cast<request_id>(in.below(requests));
      check_all();
      executor.stream().synchronize();
      lengths[line] = lasts[line] = 0;
      settings[line] = some_settings();
      executor.restart(line);
      texts[line] = {.open = true, .last = 0};
      return;
    }
    if (std::ranges::all_of(texts, &text::open) && in.below(8) > 0) return close();
    const request_settings with{.budget = in.below(2) ? INT32_MAX : 1 + in.below(20),
                                .sampling = some_settings()};
    texts[executor.open(with)] = {.open = true, .budget = with.budget};
  }

  void close() {
    const auto request =
        static_cast<request_id>(in.below(8) ? in.below(requests) : in.below(3) * requests - 1);
    if (!adopted) check_all();
    executor.close(request);
    require(!adopted && is_line(request) && texts[request].open);
    texts[request] = {};
  }

  void capture_anew(bool limits_too) {
    check_all();
    model.fails_in = in.below(3) == 1 ? 1 + in.below(40) : 0;
    model.synchronizes = in.below(2) == 1;
    try {
      if (limits_too)
        executor.recapture(limits());
      else
        executor.capture();
      require(model.fails_in >= 0 || model.synchronizes);  // outside a capture it may
    } catch (const capture_error&) {
      require(model.fails_in < 0);
    } catch (const invalid_argument&) {
    }
    model.fails_in = 0;
  }

  bool fresh(request_id request) const { return texts[request].last < 0 && texts[request].cached.empty(); }

  /// Mostly a row that can be; now and then anything.
  launched_row some_row(step_kind kind, bool trees, request_id request, int draft_length) {
    const int shape = in.one(), most = executor.limits().max_draft_tokens;
    const bool wild = shape == 9;
    if (wild) request = static_cast<request_id>(in.below(requests + 2) - 1);
    launched_row row{.request = request, .count = 1, .ids = {}, .parents = {}, .following = -1};
    if (kind == step_kind::extend) row.count = shape % 7;
    if (kind == step_kind::target_verify) row.count = shape % 8 == 0 ? 0 : 1 + shape / 8 % (most + 1 + wild);
    const text& of = texts[is_line(request) ? request : 0];
    if (kind != step_kind::target_verify) {
      if (wild || row.count > 1 || shape >= 128 || of.last < 0)
        for (int j = 0; j < row.count; ++j) row.ids.push_back(in.below(recent_model::vocab + wild));
      if (kind == step_kind::extend && shape % 5 == 1) row.following = in.below(recent_model::vocab);
      return row;
    }
    if (shape >= 128 && !wild) row.count = std::min(row.count, draft_length + 1);
    if (row.count == 0 || shape >= 128) return row;  // the model's drafts
    std::vector<tokens> paths{{of.last}};            // from the root to each node
    if (trees) row.parents.push_back(-1);
    for (int j = 1; j < row.count; ++j) {
      const int parent = trees ? in.below(j) : j - 1;
      row.ids.push_back(in.below(3) ? recent_model::next(after(of, paths[parent]))
                                    : in.below(recent_model::vocab + wild));
      if (trees) row.parents.push_back(wild ? in.below(j + 2) : parent);
      paths.push_back(paths[parent]);
      paths.back().push_back(row.ids.back());
    }
    return row;
  }

  void launch() {
    while (std::ssize(launched) >= executor.limits().in_flight) check_oldest();
    const int shape = in.one();
    if (shape & 1) check_all();  // what the host proposes may then be right
    std::vector<request_id> there;
    bool new_ones = false;
    for (request_id line = 0; line < requests; ++line)
      if (texts[line].open && in.below(8) > 0) {
        there.push_back(line);
        new_ones |= fresh(line);
      }
    if (shape % 13 != 12 && std::ssize(there) > executor.limits().max_rows)
      there.resize(executor.limits().max_rows);
    const step_kind kind = new_ones             ? (shape & 2 ? step_kind::extend : step_kind::decode)
                           : shape / 4 % 8 == 0 ? step_kind::decode
                           : shape / 4 % 8 == 1 ? step_kind::extend
                                                : step_kind::target_verify;
    const bool sampled = shape / 32 % 2, trees = kind == step_kind::target_verify && shape / 64 % 2;
    const int draft_length = kind == step_kind::target_verify && shape % 3 > 0
                                 ? in.below(executor.limits().max_draft_tokens + 1)
                                 : 0;
    launched_step step{.ticket = {}, .kind = kind, .rows = {}};
    for (const request_id request : there) step.rows.push_back(some_row(kind, trees, request, draft_length));
    std::vector<step_row> named;
    for (const launched_row& row : step.rows)
      named.push_back({.request = row.request,
                       .tokens = row.count,
                       .token_ids = row.ids,
                       .parents = row.parents,
                       .following = row.following});
    const step_round round{.kind = kind,
                           .rows = named,
                           .variant = (sampled ? 1 : 0) + (trees ? 2 : 0),
                           .draft_length = draft_length,
                           .extend_draft = in.below(8) != 1,
                           .draft_variant = sampled ? 1 : 0};
    if (executor.captures().empty() ? in.below(8) > 0 : in.below(3) == 1) {
      step.ticket = executor.run_eager(round);
    } else {
      const auto ticket = executor.replay(round, in.below(2) ? when_full::wait : when_full::would_block);
      if (!ticket) return;
      step.ticket = *ticket;
    }
    for (const launched_row& row : step.rows) require(is_line(row.request));
    launched.push_back(std::move(step));
  }

  void run() {
    if (in.below(16) > 0) executor.capture();
    while (in.left()) {
      const int call = in.below(32);
      try {
        if (call <= 3)
          open();
        else if (call == 4)
          close();
        else if (call == 5)
          capture_anew(in.below(4) > 0);
        else if (call == 6 && !launched.empty())
          check_oldest();
        else
          launch();
      } catch (const invalid_argument&) {  // refused, by name
      } catch (const out_of_pages&) {
      }
    }
    check_all();
    if (const auto fault = executor.fault()) {
      std::fprintf(stderr, "fault: op %d, row %d, status %d, value %lld\n", int(fault->op), int(fault->row),
                   int(fault->status), static_cast<long long>(fault->value));
      require(false);
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  session({data, data + size}).run();
  return 0;
}
