#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>

/// The only door from the host-compiled part of graphs/ to the CUDA runtime. cuda_backend.cpp implements it;
/// cuda_absent.cpp stands in for it in a host-only build and refuses by name. Handles are the runtime's own.
/// Everything but the functions marked noexcept throws `cuda_error`, `out_of_memory` or `device_lost`.
namespace stepgraph::detail::cuda {

int device_count() noexcept;
void check_device(int ordinal);
void make_current(int ordinal);
std::string device_name(int ordinal);
int multiprocessors(int ordinal);
std::size_t free_bytes(int ordinal);

void* stream_create(int ordinal);
void stream_destroy(void* stream) noexcept;
void stream_synchronize(void* stream);
bool stream_query(void* stream);
bool stream_capturing(void* stream);
void stream_wait(void* stream, void* event);
void copy(void* stream, void* to, const void* from, std::size_t bytes);
void fill(void* stream, void* to, unsigned char value, std::size_t bytes);

void* event_create(int ordinal, bool timing);
void event_destroy(void* event) noexcept;
void event_record(void* event, void* stream);
bool event_query(void* event);
void event_synchronize(void* event);
float event_milliseconds(void* start, void* end);

void* allocate(int ordinal, std::size_t bytes);
void deallocate(void* pointer) noexcept;
void* allocate_pinned(int ordinal, std::size_t bytes);
void deallocate_pinned(void* pointer) noexcept;

/// Empty if kernels of `ordinal` can reach `pointer`, else whose memory it is. For a check, not for a replay.
std::string foreign_memory(int ordinal, const void* pointer);

void capture_begin(void* stream);
void* capture_end(void* stream);  // a cudaGraph_t, never null
void capture_discard(void* stream) noexcept;
void graph_destroy(void* graph) noexcept;
std::size_t graph_nodes(void* graph);
std::size_t graph_programmatic_edges(void* graph);
void graph_dot(void* graph, std::ostream& out);

struct executable {
  void* handle;
  std::size_t device_bytes;
};
executable instantiate(int ordinal, void* graph);
void exec_destroy(void* exec) noexcept;
void exec_launch(void* exec, void* stream);
/// Empty if updated, else why not.
std::string exec_update(void* exec, void* graph);

}  // namespace stepgraph::detail::cuda
