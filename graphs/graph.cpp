#include "graphs/graph.hpp"

#include <ostream>
#include <vector>

#include "graphs/counters.hpp"
#include "graphs/cuda_backend.hpp"
#include "graphs/error.hpp"
#include "graphs/guard_off.hpp"
#include "graphs/host_backend.hpp"

namespace stepgraph {

struct graph::state {
  device where = device::host();
  std::vector<detail::host_node> nodes;  // host
  void* cuda = nullptr;                  // cudaGraph_t

  state() = default;
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    if (cuda) detail::cuda::graph_destroy(cuda);
  }
};

struct graph_exec::state {
  device where = device::host();
  std::vector<detail::host_node> nodes;  // host
  void* cuda = nullptr;                  // cudaGraphExec_t
  std::size_t node_count = 0;
  std::size_t device_bytes = 0;

  state() = default;
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    if (cuda) detail::cuda::exec_destroy(cuda);
  }
};

struct capture_scope::state {
  stream_ref at;
  std::shared_ptr<detail::host_recording> recording;  // host
  std::string violation;                              // what spoiled the capture; empty if nothing did
  state* outer = nullptr;                             // the capture that was open before
};

namespace {

// the capture open on this thread: work that would slip past it is refused
thread_local capture_scope::state* open_capture = nullptr;

[[noreturn]] void spoil(const std::string& what) {
  if (open_capture->violation.empty()) open_capture->violation = what;
  throw capture_error(what);
}

void leave(detail::host_recording& recording) {
  for (detail::host_stream* joined : recording.streams) joined->recording.reset();
}

}  // namespace

void detail::require_in_capture(stream_ref at, const char* what) {
  if (!at.is_host()) detail::cuda::make_current(at.where().ordinal());
  if (open_capture && !at.is_capturing() && !guard_off("lost-launch"))
    spoil(
        message("capture: ", what, " was sent to a stream outside the capture; join it with an event first"));
}

void detail::refuse_in_capture(const char* what) {
  if (open_capture && !guard_off("lost-launch"))
    spoil(message("capture: ", what, " inside the captured body"));
}

graph::graph(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}
graph::graph(graph&&) noexcept = default;
graph& graph::operator=(graph&&) noexcept = default;
graph::~graph() = default;

device graph::where() const noexcept {
  return state_->where;
}

std::size_t graph::node_count() const {
  return state_->cuda ? detail::cuda::graph_nodes(state_->cuda) : state_->nodes.size();
}

std::size_t graph::programmatic_edges() const {
  return state_->cuda ? detail::cuda::graph_programmatic_edges(state_->cuda) : 0;
}

void graph::dot(std::ostream& out) const {
  if (state_->cuda) return detail::cuda::graph_dot(state_->cuda, out);
  out << "digraph stepgraph {\n";
  for (std::size_t i = 0; i < state_->nodes.size(); ++i) {
    out << "  n" << i << " [label=\"" << state_->nodes[i].name << "\"];\n";
    if (i > 0) out << "  n" << i - 1 << " -> n" << i << ";\n";
  }
  out << "}\n";
}

graph_exec graph::instantiate() const {
  detail::refuse_in_capture("an instantiation");
  auto made = std::make_unique<graph_exec::state>();
  made->where = state_->where;
  made->node_count = node_count();
  if (state_->cuda) {
    const auto executable = detail::cuda::instantiate(state_->where.ordinal(), state_->cuda);
    made->cuda = executable.handle;
    made->device_bytes = executable.device_bytes;
  } else {
    made->nodes = state_->nodes;
  }
  ++detail::activity_totals().instantiations;
  return graph_exec(std::move(made));
}

graph_exec::graph_exec(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}
graph_exec::graph_exec(graph_exec&&) noexcept = default;
graph_exec& graph_exec::operator=(graph_exec&&) noexcept = default;
graph_exec::~graph_exec() = default;

device graph_exec::where() const noexcept {
  return state_->where;
}
std::size_t graph_exec::node_count() const noexcept {
  return state_->node_count;
}
std::size_t graph_exec::device_bytes() const noexcept {
  return state_->device_bytes;
}

void graph_exec::launch(stream_ref at) const {
  STEPGRAPH_EXPECTS(at.where() == state_->where, "graph_exec::launch: a graph of ", state_->where.name(),
                    " on a stream of ", at.where().name());
  detail::require_in_capture(at, "a graph launch");
  if (state_->cuda)
    detail::cuda::exec_launch(state_->cuda, at.native());
  else if (auto& recording = detail::host_stream::of(at).recording)
    recording->nodes.insert(recording->nodes.end(), state_->nodes.begin(), state_->nodes.end());
  else
    for (const detail::host_node& node : state_->nodes) node.run();
  ++detail::activity_totals().launches;
}

update_result graph_exec::update(const graph& from) {
  detail::refuse_in_capture("an update");
  STEPGRAPH_EXPECTS(from.where() == state_->where, "graph_exec::update: from a graph of another device");
  if (state_->cuda) {
    if (std::string reason = detail::cuda::exec_update(state_->cuda, from.state_->cuda); !reason.empty())
      return {.updated = false, .reason = std::move(reason), .node = {}};
  } else {
    const auto& nodes = from.state_->nodes;
    if (nodes.size() != state_->nodes.size())
      return {.updated = false, .reason = "the topology changed", .node = {}};
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i].name != state_->nodes[i].name)
        return {.updated = false, .reason = "a node's kernel changed", .node = nodes[i].name};
    state_->nodes = nodes;
  }
  ++detail::activity_totals().updates;
  return {.updated = true, .reason = {}, .node = {}};
}

capture_scope::capture_scope(stream_ref at) : state_(new state{.at = at, .recording = {}, .violation = {}}) {
  STEPGRAPH_EXPECTS(!at.is_capturing(), "capture: the stream is capturing already");
  detail::refuse_in_capture("another capture");
  if (at.is_host()) {
    state_->recording = std::make_shared<detail::host_recording>();
    detail::host_stream::of(at).join(state_->recording);
  } else {
    detail::cuda::make_current(at.where().ordinal());
    detail::cuda::capture_begin(at.native());
  }
  state_->outer = std::exchange(open_capture, state_.get());
}

capture_scope::~capture_scope() {
  if (!state_) return;
  open_capture = state_->outer;
  if (state_->recording)
    leave(*state_->recording);
  else
    detail::cuda::capture_discard(state_->at.native());
}

graph capture_scope::end() {
  if (!state_->violation.empty()) throw capture_error(state_->violation);  // the destructor discards
  auto made = std::make_unique<graph::state>();  // before the capture is ended, for it may throw
  const std::unique_ptr<state> mine = std::move(state_);
  open_capture = mine->outer;
  made->where = mine->at.where();
  if (mine->recording) {
    leave(*mine->recording);
    made->nodes = std::move(mine->recording->nodes);
  } else {
    made->cuda = detail::cuda::capture_end(mine->at.native());
  }
  ++detail::activity_totals().captures;
  return graph(std::move(made));
}

}  // namespace stepgraph
