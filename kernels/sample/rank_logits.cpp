#include "kernels/sample/rank_logits.hpp"

#include <climits>

#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/sample/check_logits.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "kernels/sample/row_team.hpp"

namespace stepgraph {
namespace {

void rank_row(const rank_logits_params& p, int row) {
  if (row >= live_count(p.live_rows, p.rows) || (p.query_counts && p.query_counts[row] <= 0)) return;
  const logits_line line{p.logits + row * p.logits_stride,
                         p.allowed.words ? p.allowed.words + row * p.allowed.stride : nullptr, p.vocab_size};
  const largest_logit best = host_row_team::largest(line);
  const int id = best.nan_id != INT_MAX ? best.nan_id : best.id;
  const std::uint64_t ranked = id >= 0 ? ranked_logit(line.logits[id], id) : nothing_ranked;
  if (ranked > p.ranked[row]) p.ranked[row] = ranked;
}

}  // namespace

void rank_logits(stream_ref at, const rank_logits_params& p) {
  constexpr const char* op = "rank_logits";
  STEPGRAPH_EXPECTS(p.logits && p.live_rows && p.ranked, op, ": a required pointer is null");
  STEPGRAPH_EXPECTS(p.rows > 0 && p.vocab_size > 0, op, ": rows and vocab_size must be positive, got ",
                    p.rows, " and ", p.vocab_size);
  STEPGRAPH_EXPECTS(p.logits_stride >= p.vocab_size || p.rows == 1, op, ": logits_stride ", p.logits_stride,
                    " is less than vocab_size ", p.vocab_size);
  detail::check_allowed(op, p.allowed, p.vocab_size, p.rows);
  if (at.is_host())
    return enqueue_host(at, op, [p] {
      thread_pool::shared().parallel_for(p.rows, 1, [&p](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) rank_row(p, static_cast<int>(row));
      });
    });
#if STEPGRAPH_CUDA
  detail::rank_logits_cuda(at, p);
#else
  throw cuda_error(message(op, ": this stepgraph was built without CUDA"), 0);
#endif
}

}  // namespace stepgraph
