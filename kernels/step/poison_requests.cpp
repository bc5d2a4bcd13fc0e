#include "kernels/step/poison_requests.hpp"

#include "graphs/error.hpp"
#include "kernels/step/poison_requests_op.hpp"

namespace stepgraph {

void poison_requests(stream_ref at, const poison_requests_params& params) {
  constexpr const char* op = poison_requests_op::name;
  const request_state& state = params.state;
  STEPGRAPH_EXPECTS(params.live_pages, op, ": live_pages is null");
  STEPGRAPH_EXPECTS(state.requests > 0, op, ": requests must be positive, got ", state.requests);
  STEPGRAPH_EXPECTS(!state.pages || state.page_stride >= state.page_columns, op, ": lines of ",
                    state.page_columns, " pages are ", state.page_stride, " apart");
  STEPGRAPH_EXPECTS(
      (!params.hidden || params.hidden_size > 0) && (!params.probabilities || params.vocab_size > 0), op,
      ": hidden_size and vocab_size must be positive, got ", params.hidden_size, " and ", params.vocab_size);
  launch_rows(at, poison_requests_op{params});
}

}  // namespace stepgraph
