#include "kernels/sample/greedy_sample.hpp"

#include <cmath>

#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"

namespace stepgraph {
namespace {

void sample_row(const greedy_sample_params& p, int row) {
  if (row >= live_count(p.live_rows, p.rows)) {
    p.next_token[row] = 0;
    return;
  }
  if (p.query_counts && p.query_counts[row] <= 0) {
    p.next_token[row] = -1;
    return;
  }
  const float* const logits = p.logits + row * p.logits_stride;
  int best = 0;
  for (int id = 0; id < p.vocab_size; ++id) {
    if (std::isnan(logits[id])) {
      p.faults.report(op_id::greedy_sample, row, row_status::nan_logits, id);
      p.next_token[row] = -1;
      return;
    }
    if (logits[id] > logits[best]) best = id;
  }
  p.next_token[row] = best;
}

}  // namespace

void greedy_sample(stream_ref at, const greedy_sample_params& p) {
  constexpr const char* op = "greedy_sample";
  STEPGRAPH_EXPECTS(p.logits && p.live_rows && p.next_token, op, ": a required pointer is null");
  STEPGRAPH_EXPECTS(p.rows > 0 && p.vocab_size > 0, op, ": rows and vocab_size must be positive, got ",
                    p.rows, " and ", p.vocab_size);
  STEPGRAPH_EXPECTS(p.logits_stride >= p.vocab_size || p.rows == 1, op, ": logits_stride ", p.logits_stride,
                    " is less than vocab_size ", p.vocab_size);
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
