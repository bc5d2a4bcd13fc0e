#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/speculate/rejection_accept.hpp"

namespace stepgraph {

/// Body of `rejection_accept`: a team a row.
struct rejection_accept_op {
  static constexpr const char* name = "rejection_accept";
  static constexpr int max_refusals = 64;  // siblings of one node; a tree has no more nodes

  /// What a refused draft did to p.
  struct refusal {
    double scale;       // makes it sum to 1 again
    std::int32_t line;  // of q, or negative: the draft was chosen
    std::int32_t id;    // the draft
  };
  struct scratch {
    refusal refusals[max_refusals];
  };
  rejection_accept_params p;

  STEPGRAPH_HD int rows() const { return p.verify.rows; }
  STEPGRAPH_HD int vocab_size() const { return p.vocab_size; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch& shared, int row) const {
    const int count = p.verify.count(row);
    if (count == 0) {
      if (team.rank() == 0) p.result.store(row, p.result.none(row < live_count(p.verify.live_rows, rows())));
      return;
    }
    const std::int64_t index = p.sampling.line(row);
    if (!p.sampling.has(index)) return end(team, row, 0, -1, row_status::request_out_of_range, index);
    const sampling_settings settings = p.sampling.settings[index];
    const int first = p.verify.cu_seqlens_q[row];
    int current = 0, accepted = 0;
    for (;;) {
      const node_view at = view(first + current);
      if (at.d.status != 0)
        return end(team, row, accepted, -1, static_cast<row_status>(at.d.status),
                   at.d.status == static_cast<std::int32_t>(row_status::nan_logits) ? at.d.nan_id : current);
      int refused = 0, kept = -1;
      bool tried = false;
      for (int node = current + 1; node < count && kept < 0; ++node) {
        if (p.verify.parent(first, node) != current) continue;
        const std::int32_t token = p.verify.token_ids[first + node];
        const std::int32_t line = sampled_line(row, node, token);
        const accept_coin coin(random_of(settings), p.position[first + node], node);
        tried = true;
        if (is_greedy(settings) ? token == at.d.best
                                : keeps(coin, keep_probability(at, shared, refused, line, token))) {
          kept = node;
        } else if (!is_greedy(settings)) {
          const double left = team.sum(p.vocab_size, [&](int id) {
            return after_refusal(probability(at, id), id, shared, refused, line, token);
          });
          if (left != left) return end(team, row, accepted, -1, row_status::nan_probabilities, line);
          // where nothing is left, p stays as it was
          if (left > 0) {
            if (team.writes_scratch()) shared.refusals[refused] = {1.0 / left, line, token};
            team.sync();
            ++refused;
          }
        }
      }
      if (kept < 0) {
        const std::uint32_t position = static_cast<std::uint32_t>(p.position[first + current]) + 1;
        const std::int32_t token = draw(team, at, shared, refused, tried, settings, position, current);
        // no weight is left only if the distributions are not of these logits
        if (token < 0) return end(team, row, accepted, -1, row_status::no_allowed_token, current);
        if (team.rank() == 0) log_probability(row, accepted, at, token);
        return end(team, row, accepted, token, row_status::ok, 0);
      }
      if (team.rank() == 0) {
        const std::int32_t token = p.verify.token_ids[first + kept];
        p.result.keep(row, accepted, kept, token);
        log_probability(row, accepted, at, token);
      }
      ++accepted;
      current = kept;
    }
  }

 private:
  struct node_view {
    row_distribution d;
    logits_line line;
  };

  STEPGRAPH_HD node_view view(int token) const {
    return {p.distributions[token],
            {p.logits + token * p.logits_stride,
             p.allowed.words ? p.allowed.words + token * p.allowed.stride : nullptr, p.vocab_size}};
  }

  /// The target's probability of `id`. Most are 0, which needs no division.
  STEPGRAPH_HD double probability(const node_view& at, int id) const {
    const float weight = at.d.weight(at.line, id);
    return weight > 0 ? static_cast<double>(weight) / at.d.total : 0.0;
  }

  /// The line of q that the draft was drawn from, or -1 if it was chosen.
  STEPGRAPH_HD std::int32_t sampled_line(int row, int node, std::int32_t token) const {
    if (!p.draft.lines || token < 0 || token >= p.vocab_size) return -1;
    const std::int32_t line = p.draft.lines[row * p.draft.stride + node - 1];
    if (line < 0 || line >= p.draft.line_count) return -1;
    const float q = p.draft.q(line, token);
    return q > 0.0f && q <= 1.0f ? line : -1;
  }

  /// `value`, the probability of `id`, after one refusal and before it is scaled; NaN where q is no
  /// probability.
  STEPGRAPH_HD double subtract(double value, int id, std::int32_t line, std::int32_t refused_id) const {
    if (line < 0) return id == refused_id ? 0.0 : value;
    if (value == 0) return value;
    const float q = p.draft.q(line, id);
    if (!(q >= 0.0f)) return static_cast<double>(NAN);
    const double left = value - static_cast<double>(q);
    return left > 0 ? left : 0.0;
  }

  /// The current probability of `id`, from the target's, after the first `refused` refusals.
  STEPGRAPH_HD double current(double value, int id, const scratch& shared, int refused) const {
    for (int i = 0; i < refused && value != 0; ++i) {
      const refusal& it = shared.refusals[i];
      value = subtract(value, id, it.line, it.id) * it.scale;
    }
    return value;
  }

  STEPGRAPH_HD double after_refusal(double value, int id, const scratch& shared, int refused,
                                    std::int32_t line, std::int32_t token) const {
    return subtract(current(value, id, shared, refused), id, line, token);
  }

  STEPGRAPH_HD double keep_probability(const node_view& at, const scratch& shared, int refused,
                                       std::int32_t line, std::int32_t token) const {
    if (token < 0 || token >= p.vocab_size) return 0.0;
    const double mine = current(probability(at, token), token, shared, refused);
    return line < 0 ? mine : mine / static_cast<double>(p.draft.q(line, token));
  }

  template <class Team>
  STEPGRAPH_HD std::int32_t draw(Team& team, const node_view& at, const scratch& shared, int refused,
                                 bool tried, const sampling_settings& s, std::uint32_t position,
                                 int node) const {
    if (is_greedy(s)) return at.d.best;
    const auto weight = [&](int id) { return current(probability(at, id), id, shared, refused); };
    const auto node_word = static_cast<std::uint32_t>(node);
    if (tried)
      return draw_token(team, p.vocab_size, weight, residual_draw(random_of(s), position, node_word));
    return draw_token(team, p.vocab_size, weight, bonus_draw(random_of(s), position, node_word));
  }

  STEPGRAPH_HD void log_probability(int row, int entry, const node_view& at, std::int32_t token) const {
    const std::int64_t place = row * p.result.stride + entry;
    if (p.logprobs) p.logprobs[place] = static_cast<float>(log(at.d.probability(at.line, token)));
    if (p.unfiltered_logprobs) p.unfiltered_logprobs[place] = at.d.unfiltered_logprob(at.line.logits[token]);
  }

  template <class Team>
  STEPGRAPH_HD void end(Team& team, int row, int accepted, std::int32_t bonus, row_status status,
                        std::int64_t value) const {
    if (team.rank() != 0) return;
    if (status != row_status::ok) p.faults.report(op_id::rejection_accept, row, status, value);
    p.result.store(row, p.result.finish(row, accepted, bonus));
  }
};

}  // namespace stepgraph
