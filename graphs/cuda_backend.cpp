#include "graphs/cuda_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graphs/cuda_check.hpp"
#include "graphs/error.hpp"

namespace stepgraph::detail::cuda {
namespace {

/// Errors after which every further call on the context fails the same way.
bool context_is_lost(cudaError_t status) noexcept {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

std::mutex first_cause_lock;
std::optional<std::string> first_cause;
int first_cause_code = 0;

cudaStream_t as_stream(void* stream) noexcept {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t as_event(void* event) noexcept {
  return static_cast<cudaEvent_t>(event);
}
cudaGraph_t as_graph(void* graph) noexcept {
  return static_cast<cudaGraph_t>(graph);
}
cudaGraphExec_t as_exec(void* exec) noexcept {
  return static_cast<cudaGraphExec_t>(exec);
}

/// Makes `ordinal` current for a scope.
class device_guard {
 public:
  explicit device_guard(int ordinal) {
    STEPGRAPH_CUDA_TRY(cudaGetDevice(&before_));
    if (before_ != ordinal) STEPGRAPH_CUDA_TRY(cudaSetDevice(ordinal));
  }
  ~device_guard() { (void)cudaSetDevice(before_); }
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;

 private:
  int before_ = 0;
};

bool done_or_throw(cudaError_t status, const char* call, source_place place = source_place::current()) {
  if (status == cudaSuccess) return true;
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  throw_status(status, call, place);
}

}  // namespace

void throw_status(cudaError_t status, const char* call, source_place place) {
  (void)cudaGetLastError();  // a refused call must not fail the next one
  const std::string text =
      with_place(message(call, ": ", cudaGetErrorName(status), ", ", cudaGetErrorString(status)), place);
  const std::scoped_lock lock(first_cause_lock);
  if (context_is_lost(status) && !first_cause) {
    first_cause = text;
    first_cause_code = status;
  }
  if (first_cause)
    throw device_lost(message("the CUDA context is lost; first cause: ", *first_cause), first_cause_code);
  if (status == cudaErrorMemoryAllocation) {
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    throw out_of_memory(
        message(text, "; ", free,
                " bytes of device memory are free, the driver does not say how many it needs"),
        0, free);
  }
  throw cuda_error(text, status);
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

void check_device(int ordinal) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    (void)cudaGetLastError();
    throw cuda_error(
        message("device::cuda(", ordinal, "): there is no usable CUDA device: ", cudaGetErrorString(status)),
        status);
  }
  if (ordinal < 0 || ordinal >= count)
    throw cuda_error(message("device::cuda(", ordinal, "): there are ", count, " CUDA devices"),
                     cudaErrorInvalidDevice);
}

void make_current(int ordinal) {
  int now = 0;
  STEPGRAPH_CUDA_TRY(cudaGetDevice(&now));
  if (now != ordinal) STEPGRAPH_CUDA_TRY(cudaSetDevice(ordinal));
}

std::string device_name(int ordinal) {
  cudaDeviceProp properties{};
  STEPGRAPH_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal));
  return properties.name;
}

int multiprocessors(int ordinal) {
  int count = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal));
  return count;
}

std::size_t free_bytes(int ordinal) {
  const device_guard guard(ordinal);
  std::size_t free = 0, total = 0;
  STEPGRAPH_CUDA_TRY(cudaMemGetInfo(&free, &total));
  return free;
}

void* stream_create(int ordinal) {
  const device_guard guard(ordinal);
  cudaStream_t made = nullptr;
  STEPGRAPH_CUDA_TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

// destructors ignore the status: at driver shutdown there is nothing left to destroy
void stream_destroy(void* stream) noexcept {
  (void)cudaStreamDestroy(as_stream(stream));
}
void event_destroy(void* event) noexcept {
  (void)cudaEventDestroy(as_event(event));
}
void deallocate(void* pointer) noexcept {
  (void)cudaFree(pointer);
}
void deallocate_pinned(void* pointer) noexcept {
  (void)cudaFreeHost(pointer);
}
void graph_destroy(void* graph) noexcept {
  (void)cudaGraphDestroy(as_graph(graph));
}
void exec_destroy(void* exec) noexcept {
  (void)cudaGraphExecDestroy(as_exec(exec));
}

void stream_synchronize(void* stream) {
  STEPGRAPH_CUDA_TRY(cudaStreamSynchronize(as_stream(stream)));
}
bool stream_query(void* stream) {
  return done_or_throw(cudaStreamQuery(as_stream(stream)), "cudaStreamQuery");
}

bool stream_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  STEPGRAPH_CUDA_TRY(cudaStreamIsCapturing(as_stream(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

void stream_wait(void* stream, void* event) {
  STEPGRAPH_CUDA_TRY(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}

void copy(void* stream, void* to, const void* from, std::size_t bytes) {
  STEPGRAPH_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)));
}

void fill(void* stream, void* to, unsigned char value, std::size_t bytes) {
  STEPGRAPH_CUDA_TRY(cudaMemsetAsync(to, value, bytes, as_stream(stream)));
}

void* event_create(int ordinal, bool timing) {
  const device_guard guard(ordinal);
  cudaEvent_t made = nullptr;
  STEPGRAPH_CUDA_TRY(cudaEventCreateWithFlags(&made, timing ? cudaEventDefault : cudaEventDisableTiming));
  return made;
}

void event_record(void* event, void* stream) {
  STEPGRAPH_CUDA_TRY(cudaEventRecord(as_event(event), as_stream(stream)));
}
bool event_query(void* event) {
  return done_or_throw(cudaEventQuery(as_event(event)), "cudaEventQuery");
}
void event_synchronize(void* event) {
  STEPGRAPH_CUDA_TRY(cudaEventSynchronize(as_event(event)));
}

float event_milliseconds(void* start, void* end) {
  float milliseconds = 0;
  STEPGRAPH_CUDA_TRY(cudaEventElapsedTime(&milliseconds, as_event(start), as_event(end)));
  return milliseconds;
}

void* allocate(int ordinal, std::size_t bytes) {
  const device_guard guard(ordinal);
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    const std::size_t there = free_bytes(ordinal);
    throw out_of_memory(message("device memory: ", bytes, " bytes needed, ", there, " free"), bytes, there);
  }
  STEPGRAPH_CUDA_TRY(status);
  return pointer;
}

void* allocate_pinned(int ordinal, std::size_t bytes) {
  const device_guard guard(ordinal);
  void* pointer = nullptr;
  const cudaError_t status = cudaHostAlloc(&pointer, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw out_of_memory(message("pinned memory: ", bytes, " bytes refused"), bytes, 0);
  }
  STEPGRAPH_CUDA_TRY(status);
  return pointer;
}

std::string foreign_memory(int ordinal, const void* pointer) {
  const device_guard guard(ordinal);
  cudaPointerAttributes found{};
  STEPGRAPH_CUDA_TRY(cudaPointerGetAttributes(&found, pointer));
  if (found.type == cudaMemoryTypeUnregistered) return "host memory that CUDA did not allocate";
  if (found.type == cudaMemoryTypeDevice && found.device != ordinal)
    return message("memory of cuda:", found.device);
  return {};
}

void capture_begin(void* stream) {
  STEPGRAPH_CUDA_TRY(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal));
}

void* capture_end(void* stream) {
  cudaGraph_t graph = nullptr;
  STEPGRAPH_CUDA_TRY(cudaStreamEndCapture(as_stream(stream), &graph));
  if (!graph) throw capture_error("cudaStreamEndCapture: the capture was invalidated");
  return graph;
}

void capture_discard(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(as_stream(stream), &graph);
  if (graph) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}

std::size_t graph_nodes(void* graph) {
  std::size_t count = 0;
  STEPGRAPH_CUDA_TRY(cudaGraphGetNodes(as_graph(graph), nullptr, &count));
  return count;
}

std::size_t graph_programmatic_edges(void* graph) {
  std::size_t count = 0;
  STEPGRAPH_CUDA_TRY(cudaGraphGetEdges(as_graph(graph), nullptr, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> edges(count);
  STEPGRAPH_CUDA_TRY(cudaGraphGetEdges(as_graph(graph), from.data(), to.data(), edges.data(), &count));
  return static_cast<std::size_t>(std::ranges::count_if(
      edges, [](const cudaGraphEdgeData& edge) { return edge.type == cudaGraphDependencyTypeProgrammatic; }));
}

void graph_dot(void* graph, std::ostream& out) {
  // the runtime only writes to a named file
  std::string path = (std::filesystem::temp_directory_path() / "stepgraph-XXXXXX").string();
  const int file = mkstemp(path.data());
  STEPGRAPH_EXPECTS(file >= 0, "graph::dot: no temporary file can be made in ",
                    std::filesystem::temp_directory_path().string());
  close(file);
  const cudaError_t status = cudaGraphDebugDotPrint(as_graph(graph), path.c_str(), 0);
  if (status == cudaSuccess) out << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  STEPGRAPH_CUDA_TRY(status);
}

executable instantiate(int ordinal, void* graph) {
  const device_guard guard(ordinal);
  const std::size_t before = free_bytes(ordinal);
  cudaGraphExec_t exec = nullptr;
  STEPGRAPH_CUDA_TRY(cudaGraphInstantiate(&exec, as_graph(graph), 0));
  try {
    // uploaded now, so that the first launch allocates no more than the thousandth
    void* const upload = stream_create(ordinal);
    const cudaError_t status = cudaGraphUpload(exec, as_stream(upload));
    const cudaError_t finished = cudaStreamSynchronize(as_stream(upload));
    stream_destroy(upload);
    STEPGRAPH_CUDA_TRY(status);
    STEPGRAPH_CUDA_TRY(finished);
  } catch (...) {
    exec_destroy(exec);
    throw;
  }
  const std::size_t after = free_bytes(ordinal);
  return {exec, before > after ? before - after : 0};
}

void exec_launch(void* exec, void* stream) {
  STEPGRAPH_CUDA_TRY(cudaGraphLaunch(as_exec(exec), as_stream(stream)));
}

std::string exec_update(void* exec, void* graph) {
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t status = cudaGraphExecUpdate(as_exec(exec), as_graph(graph), &info);
  if (status == cudaSuccess) return {};
  if (status != cudaErrorGraphExecUpdateFailure) STEPGRAPH_CUDA_TRY(status);
  (void)cudaGetLastError();
  switch (info.result) {
    case cudaGraphExecUpdateErrorTopologyChanged:
      return "the topology changed";
    case cudaGraphExecUpdateErrorNodeTypeChanged:
      return "a node's type changed";
    case cudaGraphExecUpdateErrorFunctionChanged:
    case cudaGraphExecUpdateErrorUnsupportedFunctionChange:
      return "a node's kernel changed";
    case cudaGraphExecUpdateErrorParametersChanged:
      return "a node's parameters cannot be changed this way";
    default:
      return message("cudaGraphExecUpdate result ", static_cast<int>(info.result));
  }
}

}  // namespace stepgraph::detail::cuda
