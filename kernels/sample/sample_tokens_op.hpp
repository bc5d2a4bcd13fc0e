#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/sample/sample_tokens.hpp"

namespace stepgraph {

/// Body of `sample_tokens`.
struct sample_tokens_op {
  static constexpr const char* name = "sample_tokens";
  struct scratch {};
  sample_tokens_params p;

  STEPGRAPH_HD int rows() const { return p.rows; }
  STEPGRAPH_HD int vocab_size() const { return p.vocab_size; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int row) const {
    const bool live = row < live_count(p.live_rows, p.rows);
    if (!live || (p.query_counts && p.query_counts[row] <= 0)) return none(team, row, live);
    const std::int64_t index = p.sampling.line(row);
    if (!p.sampling.has(index)) return fault(team, row, row_status::request_out_of_range, index);
    const sampling_settings settings = p.sampling.settings[index];
    const logits_line line{p.logits + row * p.logits_stride,
                           p.allowed.words ? p.allowed.words + row * p.allowed.stride : nullptr,
                           p.vocab_size};
    const logits_line held = team.hold(line);
    int token = -1;
    const row_distribution d =
        make_distribution(team, held, settings, p.unfiltered_logprobs != nullptr, p.probabilities != nullptr,
                          [&](auto& few, const logits_line& head, const row_distribution& of) {
                            token = head.id(draw(few, head, of, settings, row));
                          });
    if (d.status != 0) return fault(team, row, static_cast<row_status>(d.status), d.nan_id);
    if (is_greedy(settings)) token = d.best;  // nothing to draw, and nothing to pass over
    if (p.probabilities) {
      float* const out = p.probabilities + p.out.line_of(row) * p.probabilities_stride;
      team.for_each(p.vocab_size, [&](int id) { out[id] = static_cast<float>(d.probability(held, id)); });
    }
    if (team.rank() != 0) return;
    p.out.store(p.next_token, row, token);
    if (p.logprobs) p.logprobs[row] = static_cast<float>(log(d.probability(line, token)));
    if (p.unfiltered_logprobs) p.unfiltered_logprobs[row] = d.unfiltered_logprob(line.logits[token]);
  }

 private:
  template <class Team>
  STEPGRAPH_HD int draw(Team& team, const logits_line& line, const row_distribution& d,
                        const sampling_settings& s, int row) const {
    const auto weight = [&](int entry) { return d.weight(line, entry); };
    const auto position = static_cast<std::uint32_t>(p.position[row] + p.position_offset);
    if (p.purpose == draw_purpose::draft_draw)
      return draw_token(team, line.vocab_size, weight, draft_draw(random_of(s), position, p.node));
    return draw_token(team, line.vocab_size, weight, bonus_draw(random_of(s), position, p.node));
  }

  template <class Team>
  STEPGRAPH_HD void none(Team& team, int row, bool live) const {
    if (team.rank() != 0) return;
    p.out.store_none(p.next_token, row, live);
    if (!live) return;
    if (p.logprobs) p.logprobs[row] = 0.0f;
    if (p.unfiltered_logprobs) p.unfiltered_logprobs[row] = 0.0f;
  }

  template <class Team>
  STEPGRAPH_HD void fault(Team& team, int row, row_status status, std::int64_t value) const {
    if (team.rank() == 0) p.faults.report(op_id::sample_tokens, row, status, value);
    none(team, row, true);
  }
};

}  // namespace stepgraph
