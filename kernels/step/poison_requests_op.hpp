#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/step/poison_requests.hpp"

namespace stepgraph {

/// A team a line; the last is the draft's, that dead rows name.
struct poison_requests_op {
  static constexpr const char* name = "poison_requests";
  static constexpr std::int32_t wild = 0x7f7f7f7f;
  struct scratch {};
  poison_requests_params p;

  STEPGRAPH_HD int rows() const { return p.state.requests + 1; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int line) const {
    const request_state& state = p.state;
    const bool is_request = line < state.requests;
    const std::int32_t pages = is_request ? p.live_pages[line] : 0;
    // note: read by all before any of them writes it
    const bool drafts = pages > 0 && state.first_draft && state.first_drafts(nullptr)[line] >= 0;
    team.sync();
    if (is_request && state.pages)
      fill(team, state.pages + line * state.page_stride, pages, state.page_stride);
    if (is_request && pages == 0) {
      for (std::int32_t* const each :
           {state.seq_lens, state.last_token, state.token_capacity, state.finished, state.budget})
        if (each) fill(team, each + line, 0, 1);
      if (state.sampling)
        fill(team, reinterpret_cast<std::int32_t*>(state.sampling + line), 0, sizeof(sampling_settings) / 4);
    }
    if (pages == 0 && state.first_draft) fill(team, state.first_draft + line, 0, 1);
    if (pages == 0 && state.first_ranked) fill(team, state.first_ranked + line, 0, 2);
    if (pages == 0 && state.first_drawn) fill(team, state.first_drawn + line, 0, 1);
    if (drafts) return;
    if (p.hidden) fill(team, p.hidden + line * p.hidden_size, 0, p.hidden_size);
    if (p.probabilities) fill(team, p.probabilities + line * p.vocab_size, 0, p.vocab_size);
  }

 private:
  template <class Team>
  STEPGRAPH_HD static void fill(Team& team, void* at, std::int64_t from, std::int64_t end) {
    for (std::int64_t i = from + team.rank(); i < end; i += team.size())
      static_cast<std::int32_t*>(at)[i] = wild;
  }
};

}  // namespace stepgraph
