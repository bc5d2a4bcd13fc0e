#include "kernels/sample/sample_tokens.hpp"

#include <cmath>

#include "kernels/sample/check_logits.hpp"
#include "kernels/sample/sample_tokens_op.hpp"

namespace stepgraph {

void check(const sampling_settings& s) {
  STEPGRAPH_EXPECTS(std::isfinite(s.temperature) && s.temperature >= 0.0f,
                    "sampling_settings: temperature must be finite and not negative, got ", s.temperature);
  STEPGRAPH_EXPECTS(!std::isnan(s.top_p), "sampling_settings: top_p is NaN");
  STEPGRAPH_EXPECTS(s.min_p <= 1.0f, "sampling_settings: min_p must be at most 1, got ", s.min_p);
}

void check(const sample_tokens_params& p) {
  constexpr const char* op = sample_tokens_op::name;
  STEPGRAPH_EXPECTS(p.rows > 0, op, ": rows must be positive, got ", p.rows);
  detail::check_logits(op, p.logits, p.logits_stride, p.rows, p.vocab_size);
  detail::check_sampling(op, p.sampling, p.allowed, p.vocab_size, p.rows);
  detail::check_pointers(
      op, {{"live_rows", p.live_rows}, {"position", p.position}, {"next_token", p.next_token}});
  STEPGRAPH_EXPECTS(p.purpose == draw_purpose::bonus_draw || p.purpose == draw_purpose::draft_draw, op,
                    ": purpose must be bonus_draw or draft_draw, got ",
                    static_cast<std::uint32_t>(p.purpose));
  STEPGRAPH_EXPECTS(p.node >= 0 && p.node < 1 << 24, op, ": node must be in [0, 2^24), got ", p.node);
  STEPGRAPH_EXPECTS(!p.probabilities || p.probabilities_stride >= p.vocab_size || p.rows == 1, op,
                    ": probabilities_stride ", p.probabilities_stride, " is less than vocab_size ",
                    p.vocab_size);
}

void sample_tokens(stream_ref at, const sample_tokens_params& params) {
  check(params);
  launch_rows(at, sample_tokens_op{params});
}

}  // namespace stepgraph
