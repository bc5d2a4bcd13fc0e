#pragma once

#include "kernels/settled.hpp"
#include "kernels/speculate/finish_rows.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `finish_rows`: a thread a row.
struct finish_rows_op {
  static constexpr const char* name = "finish_rows";
  static constexpr int tile_columns = 0;  // vectors only
  finish_rows_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    const int live = live_count(p.verify.live_rows, rows());
    for (int row = team.rank(); row < rows(); row += team.size()) {
      const finish_reason reason = row < live ? finish(row) : finish_reason::running;
      if (p.reason) p.reason[row] = static_cast<std::int32_t>(reason);
    }
  }

  /// One row of a verify step, by one thread.
  STEPGRAPH_HD finish_reason finish(int row) const {
    const std::int32_t emitted = p.result.emit_count[row];
    accept_counts counts{p.result.accept_count[row], emitted, p.result.cache_advance[row],
                         p.result.next_token[row]};
    emitted_tokens tokens{};
    p.result.read(row, 0, emitted, tokens);
    row_numbers of = read(row);
    read_request(of, p.verify.count(row));
    const finish_reason reason = finish(row, of, counts, tokens);
    p.result.store(row, counts);
    return reason;
  }

  /// What the end of a row depends on beside its tokens.
  struct row_numbers {
    std::int64_t request;
    std::int64_t base;    // tokens in the cache before the step's own
    bool there;           // the request is in range
    std::int32_t before;  // how it ended before
    std::int32_t budget;
    std::int32_t status;   // of the row
    std::int32_t stopped;  // by the host
    std::int32_t end_id;   // the first of them
  };
  /// Of a row, whether it is live or not.
  STEPGRAPH_HD row_numbers read(int row) const {
    row_numbers of{};
    of.request = p.requests.fetch(row);
    of.base = fetch_or_zero(p.cache_seqlens + row);
    of.status = fetch_or_zero(p.row_status ? p.row_status + row : nullptr);
    of.end_id = fetch_or_zero(p.end_id_count > 0 ? p.end_ids : nullptr);
    return of;
  }
  /// Of the request of a live row of `count` tokens.
  STEPGRAPH_HD void read_request(row_numbers& of, std::int32_t count) const {
    of.base -= count;
    of.there = of.request >= 0 && of.request < p.request_count;
    of.before = fetch_if(of.there, p.finished, of.request);
    of.budget = fetch_if(of.there && p.budget, p.budget, of.request);
    of.stopped = fetch_if(of.there && p.stop_flags, p.stop_flags, of.request);
  }

  /// The same, of what is known of it by now; cuts `counts`, and stores nothing of them. `tokens`: the first emitted.
  STEPGRAPH_HD finish_reason finish(int row, const row_numbers& of, accept_counts& counts,
                                    const emitted_tokens& tokens) const {
    if (!of.there) {
      p.faults.report(op_id::finish_rows, row, row_status::request_out_of_range, of.request);
      return finish_reason::fault;
    }
    if (of.before != 0) {
      cut(row, counts, 0);
      return static_cast<finish_reason>(of.before);
    }
    const int emitted = counts.emitted;
    int kept = 0;
    // a request with nothing left to spend may emit nothing
    finish_reason reason = p.budget && of.budget <= 0 ? finish_reason::token_budget : finish_reason::running;
    if (reason == finish_reason::running && emitted > 0) {
      // tokens up to which each reason lets the row go on: the token emitted as number i has position base + i
      const int by_end = up_to_end(row, of, emitted, tokens);
      const int by_budget = p.budget ? of.budget : INT32_MAX;
      const std::int64_t left = p.max_context - of.base;
      const int by_context = left < 1 ? 1 : left < INT32_MAX ? static_cast<int>(left) : INT32_MAX;
      const int by_other = by_budget < by_context ? by_budget : by_context;
      kept = by_end < by_other ? by_end : by_other;
      if (kept > emitted)
        kept = emitted;
      else
        reason = kept == by_end      ? finish_reason::end_of_sequence
                 : kept == by_budget ? finish_reason::token_budget
                                     : finish_reason::context_limit;
    }
    if (kept < emitted) cut(row, counts, kept);
    if (p.budget && kept > 0) p.budget[of.request] = of.budget > kept ? of.budget - kept : 0;
    return note(of.request, reason, of.status, of.stopped);
  }

  /// A row that emits one token at most, `token` (negative: none; cut to that if the request may emit
  /// nothing), at position `length`, which is also what it has in the cache.
  STEPGRAPH_HD finish_reason finish_one(int row, std::int64_t length, std::int32_t& token) const {
    const std::int64_t request = p.requests[row];
    if (request < 0 || request >= p.request_count) {
      p.faults.report(op_id::finish_rows, row, row_status::request_out_of_range, request);
      token = -1;
      return finish_reason::fault;
    }
    if (const std::int32_t before = p.finished[request]; before != 0) {
      token = -1;
      return static_cast<finish_reason>(before);
    }
    finish_reason reason = finish_reason::running;
    if (p.budget && p.budget[request] <= 0) {
      token = -1;
      reason = finish_reason::token_budget;
    }
    if (token >= 0) {
      if (p.budget) --p.budget[request];
      if (ends(token))
        reason = finish_reason::end_of_sequence;
      else if (p.budget && p.budget[request] <= 0)
        reason = finish_reason::token_budget;
      else if (length >= p.max_context)
        reason = finish_reason::context_limit;
    }
    return note(request, reason, p.row_status ? p.row_status[row] : 0,
                p.stop_flags ? p.stop_flags[request] : 0);
  }

 private:
  /// Tokens emitted up to the first that ends a text, it included; INT32_MAX if none does.
  STEPGRAPH_HD int up_to_end(int row, const row_numbers& of, int emitted, emitted_tokens tokens) const {
    for (int first = 0; first < emitted; first += emitted_tokens::room) {
      if (first > 0) p.result.read(row, first, emitted, tokens);
      std::uint32_t ending = 0;
      for (int i = 0; i < p.end_id_count; ++i) {
        const std::int32_t id = i == 0 ? of.end_id : p.end_ids[i];
        STEPGRAPH_UNROLL
        for (int j = 0; j < emitted_tokens::room; ++j)
          ending |= (first + j < emitted && tokens.id[j] == id ? 1u : 0u) << j;
      }
      for (int j = 0; ending != 0; ++j, ending >>= 1)
        if (ending & 1) return first + j + 1;
    }
    return INT32_MAX;
  }

  STEPGRAPH_HD bool ends(std::int32_t token) const {
    for (int i = 0; i < p.end_id_count; ++i)
      if (p.end_ids[i] == token) return true;
    return false;
  }

  /// Cuts the row's tokens to `kept` of them, the last of which ended the text.
  STEPGRAPH_HD void cut(int row, accept_counts& counts, int kept) const {
    counts.emitted = kept;
    // the last token emitted is never in the cache: before it lie the row's old last token and kept - 1
    // drafts
    if (kept < counts.cache_advance) counts.cache_advance = kept;
    counts.next_token = kept > 0 ? p.result.emitted(row)[kept - 1] : -1;
  }

  /// `reason`, or what ends the request beside its text; remembered.
  STEPGRAPH_HD finish_reason note(std::int64_t request, finish_reason reason, std::int32_t status,
                                  std::int32_t stopped) const {
    if (reason == finish_reason::running && status != 0) reason = finish_reason::fault;
    if (reason == finish_reason::running && stopped != 0) reason = finish_reason::host_stop;
    if (reason != finish_reason::running) p.finished[request] = static_cast<std::int32_t>(reason);
    return reason;
  }
};

}  // namespace stepgraph
