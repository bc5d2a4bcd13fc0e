#pragma once

#include "kernels/speculate/finish_rows_op.hpp"
#include "kernels/speculate/greedy_accept_op.hpp"
#include "kernels/step/step_epilogue.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `step_epilogue`: a thread a row.
struct step_epilogue_op {
  static constexpr const char* name = "step_epilogue";
  static constexpr int tile_columns = 0;  // vectors only
  step_epilogue_params p;

  STEPGRAPH_HD int rows() const { return p.rows; }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    for (int base = 0; base < rows(); base += team.size()) {
      const int row = base + team.rank();
      told mine{};
      row_numbers of{};
      if (row < rows()) of = read(row);
      // note: all of a row that its live count does not decide is on its way by now
      const int live = guard_off("pad-scope") ? p.rows : live_count(p.live_rows, p.rows);
      const int slot = p.header->result_slot;
      if (row < rows())
        mine = p.accepts ? accepted(row, of, row < live) : row < live ? sampled(row, of) : told{};
      if (slot >= 0 && slot < p.result_slots) tell(team, slot, base, live, mine);
    }
  }

 private:
  static constexpr int result_words = sizeof(row_result) / 4;

  /// What a row's thread tells the host, by way of as many threads as it has words.
  struct told {
    row_result result;
    emitted_tokens tokens;  // the first of them
  };

  /// What is known of a row whatever it comes to.
  struct row_numbers {
    std::int32_t request, query_count, length, status;
    verify_view::token_range tokens;
    finish_rows_op::row_numbers ends;
  };
  STEPGRAPH_HD row_numbers read(int row) const {
    row_numbers of{fetch_or_zero(p.requests + row),
                   fetch_or_zero(p.query_counts + row),
                   fetch_or_zero(p.cache_seqlens + row),
                   fetch_or_zero(p.row_status + row),
                   {},
                   {}};
    if (!p.accepts) return of;
    of.tokens = p.accept.verify.range(row);
    if (p.finish.finished) of.ends = finish_rows_op{p.finish}.read(row);
    return of;
  }

  STEPGRAPH_HD static bool ran(const row_numbers& of) {
    return guard_off("pad-scope") || (of.query_count > 0 && of.status == 0);
  }

  STEPGRAPH_HD void advance(std::int32_t request, std::int32_t length, std::int32_t token) const {
    p.state.seq_lens[request] = length;
    p.state.last_token[request] = token;  // negative too: an older token must not be fed again
    p.state.forget_first_draft(request);  // it was for the place just decided
  }

  /// What the body chose; where its head has ranked, nobody has reported yet what is no token.
  STEPGRAPH_HD std::int32_t chosen_token(int row, row_numbers& of) const {
    const std::int32_t token = chosen_tokens{.ids = p.next_token, .ranked = p.ranked}[row];
    if (token < 0 && p.ranked && p.ranked[row] != 0 && of.query_count > 0) {
      report_unranked(p.accept.faults, row, p.ranked[row]);
      of.status = p.row_status[row];
    }
    return token;
  }

  /// A row that emits one token at most, and keeps all that it stored.
  STEPGRAPH_HD told sampled(int row, row_numbers of) const {
    const std::int32_t following = p.following[row], chosen = chosen_token(row, of);
    std::int32_t token = ran(of) && following < 0 ? chosen : -1;
    finish_reason reason = finish_reason::running;
    if (p.finish.finished) reason = finish_rows_op{p.finish}.finish_one(row, of.length, token);
    if (ran(of)) advance(of.request, of.length, following >= 0 ? following : token);
    told made{{token, of.length, of.status, token >= 0 ? 1 : 0, static_cast<std::int32_t>(reason)}, {}};
    made.tokens.id[0] = token;
    return made;
  }

  /// A row of a verify step: it keeps `cache_advance` of its E tokens.
  STEPGRAPH_HD told accepted(int row, row_numbers of, bool live) const {
    const accept_result& result = p.accept.result;
    const greedy_accept_op accept{p.accept};
    const finish_rows_op finish{p.finish};
    finish_rows_op::row_numbers& ends = of.ends;
    if (live && p.finish.finished) finish.read_request(ends, p.accept.verify.count(of.tokens));
    told made{};
    accept_counts counts{};
    if (p.accept.argmax) {
      const auto [walked, status] = accept.walk(row, live, of.tokens, made.tokens);
      counts = walked;
      if (status != row_status::ok) {  // reported since it was read
        of.status = p.row_status[row];
        ends.status = p.finish.row_status ? of.status : 0;
      }
    } else if (live) {
      counts = {result.accept_count[row], result.emit_count[row], result.cache_advance[row],
                result.next_token[row]};
    }
    if (live && (!p.accept.argmax || p.accept.verify.parents))
      result.read(row, 0, counts.emitted, made.tokens);
    finish_reason reason = finish_reason::running;
    if (live && p.finish.finished) reason = finish.finish(row, ends, counts, made.tokens);
    if (live || p.accept.argmax) result.store(row, counts);
    if (!live) return made;
    const std::int32_t base = of.length - of.query_count;
    const std::int32_t length = (base > 0 ? base : 0) + counts.cache_advance;
    const auto most = static_cast<std::int32_t>(p.emit_stride);
    const std::int32_t count = counts.emitted > most ? most : counts.emitted;
    if (ran(of)) advance(of.request, length, counts.next_token);
    made.result = {count > 0 ? counts.next_token : -1, ran(of) ? length : base, of.status, count,
                   static_cast<std::int32_t>(reason)};
    return made;
  }

  /// Writes the results of the rows from `base` on to the host. Threads beside each other write words beside each
  /// other: each piece of a line is a transfer of its own.
  template <class Team>
  STEPGRAPH_HD void tell(Team& team, int slot, int base, int live, const told& mine) const {
    struct told_row {
      told of;
      std::int64_t line;  // of the ring
    };
    constexpr int few = emitted_tokens::room;
    static_assert(result_words <= few, "a row's threads write a word of its result each");
    const int row = base + team.rank(), left = live - base;
    const std::int64_t line = std::int64_t{slot} * p.ring_rows + row;
    for (int i = few; row < live && i < mine.result.count; ++i)
      p.result_tokens[line * p.emit_stride + i] = p.accept.result.emitted(row)[i];
    if (base > 0) team.sync();  // the rows before are told in the same place
    team.template spread<few>(left < team.size() ? left : team.size(), told_row{mine, line}, few,
                              [&](const told_row& each, int k) {
                                const row_result& result = each.of.result;
                                if (k < result_words)
                                  reinterpret_cast<std::int32_t*>(p.results + each.line)[k] =
                                      reinterpret_cast<const std::int32_t*>(&result)[k];
                                if (k < result.count)
                                  p.result_tokens[each.line * p.emit_stride + k] = each.of.tokens.id[k];
                              });
  }
};

}  // namespace stepgraph
