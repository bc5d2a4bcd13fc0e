// stepgraph's ops for programs in other languages that run them beside a peer's: C functions with arguments
// by name, in tensors that the caller owns. A tool of the comparisons, not an interface of the library.
#include <exception>

#include "tests/peers/library/arguments.hpp"

namespace {

thread_local std::string last_error;

stepgraph::device device_of(int ordinal) {
  return ordinal < 0 ? stepgraph::device::host() : stepgraph::device::cuda(ordinal);
}

/// -1 if `work` throws; the message is kept.
template <class Work>
std::int64_t guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

}  // namespace

extern "C" {

/// Why the thread's last call failed.
const char* stepgraph_peer_error() {
  return last_error.c_str();
}

/// Enqueues `op` on a cudaStream_t of device `ordinal`, or runs it on the host where that is negative. 0, or
/// -1 with an error.
int stepgraph_peer_call(const char* op, const char* json, int ordinal, void* cuda_stream) {
  return static_cast<int>(guarded([&] {
    const stepgraph::peers::arguments a(json);
    const stepgraph::device where = device_of(ordinal);
    const auto call = [&](stepgraph::stream_ref at) {
      using namespace stepgraph::peers;
      STEPGRAPH_EXPECTS(call_metadata(op, at, a) || call_sparse(op, at, a) || call_attention(op, at, a),
                        "no op is named ", op);
    };
    if (where.is_host()) {
      const stepgraph::stream own(where);
      call(own);
      own.synchronize();
    } else {
      call(stepgraph::stream_ref::adopt_cuda(where, cuda_stream));
    }
    return 0;
  }));
}

/// Bytes that paged attention wants as its workspace, or -1 with an error.
std::int64_t stepgraph_peer_workspace(const char* json, int ordinal) {
  return guarded([&] {
    return stepgraph::peers::attention_workspace_bytes(device_of(ordinal), stepgraph::peers::arguments(json));
  });
}
}
