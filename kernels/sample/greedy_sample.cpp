#include "kernels/sample/greedy_sample.hpp"

#include <climits>

#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/sample/check_logits.hpp"
#include "kernels/sample/row_team.hpp"

namespace stepgraph {
namespace {

void sample_row(const greedy_sample_params& p, int row) {
  const bool live = row < live_count(p.live_rows, p.rows);
  if (!live || (p.query_counts && p.query_counts[row] <= 0)) return p.out.store_none(p.next_token, row, live);
  const logits_line line{p.logits + row * p.logits_stride,
                         p.allowed.words ? p.allowed.words + row * p.allowed.stride : nullptr, p.vocab_size};
  const largest_logit best = host_row_team::largest(line);
  p.out.store(p.next_token, row, best.nan_id != INT_MAX ? -1 : best.id >= 0 ? best.id : -2);
  if (best.nan_id != INT_MAX)
    p.faults.report(op_id::greedy_sample, row, row_status::nan_logits, best.nan_id);
  else if (best.id < 0)
    p.faults.report(op_id::greedy_sample, row, row_status::no_allowed_token, p.vocab_size);
}

}  // namespace

void greedy_sample(stream_ref at, const greedy_sample_params& p) {
  constexpr const char* op = "greedy_sample";
  detail::check_pointers(op,
                         {{"logits", p.logits}, {"live_rows", p.live_rows}, {"next_token", p.next_token}});
  STEPGRAPH_EXPECTS(p.rows > 0 && p.vocab_size > 0, op, ": rows and vocab_size must be positive, got ",
                    p.rows, " and ", p.vocab_size);
  STEPGRAPH_EXPECTS(p.logits_stride >= p.vocab_size || p.rows == 1, op, ": logits_stride ", p.logits_stride,
                    " is less than vocab_size ", p.vocab_size);
  detail::check_allowed(op, p.allowed, p.vocab_size, p.rows);
  if (at.is_host())
    return enqueue_host(at, op, [p] {
      thread_pool::shared().parallel_for(p.rows, 1, [&p](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) sample_row(p, static_cast<int>(row));
      });
    });
#if STEPGRAPH_CUDA
  detail::greedy_sample_cuda(at, p);
#else
  throw cuda_error(message(op, ": this stepgraph was built without CUDA"), 0);
#endif
}

}  // namespace stepgraph
