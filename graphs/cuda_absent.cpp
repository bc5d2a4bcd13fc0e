// stands in for cuda_backend.cpp where the library is built without CUDA
#include "graphs/cuda_backend.hpp"
#include "graphs/error.hpp"

namespace stepgraph::detail::cuda {
namespace {

constexpr int no_device = 100;  // cudaErrorNoDevice

[[noreturn]] void refuse(const char* what) {
  throw cuda_error(message(what, ": this stepgraph was built without CUDA; configure with -Dcuda=enabled"),
                   no_device);
}

}  // namespace

int device_count() noexcept {
  return 0;
}
void make_current(int) {
  refuse("device::cuda");
}
void check_device(int) {
  refuse("device::cuda");
}
std::string device_name(int) {
  refuse("device name");
}
int multiprocessors(int) {
  refuse("multiprocessors");
}
std::size_t free_bytes(int) {
  refuse("free_bytes");
}

void* stream_create(int) {
  refuse("stream");
}
void stream_destroy(void*) noexcept {}
void stream_synchronize(void*) {
  refuse("stream::synchronize");
}
bool stream_query(void*) {
  refuse("stream::query");
}
bool stream_capturing(void*) {
  refuse("stream::is_capturing");
}
void stream_wait(void*, void*) {
  refuse("stream::wait");
}
void copy(void*, void*, const void*, std::size_t) {
  refuse("stream::copy");
}
void fill(void*, void*, unsigned char, std::size_t) {
  refuse("stream::fill");
}

void* event_create(int, bool) {
  refuse("event");
}
void event_destroy(void*) noexcept {}
void event_record(void*, void*) {
  refuse("event::record");
}
bool event_query(void*) {
  refuse("event::query");
}
void event_synchronize(void*) {
  refuse("event::synchronize");
}
float event_milliseconds(void*, void*) {
  refuse("event::milliseconds_since");
}

void* allocate(int, std::size_t) {
  refuse("device_memory");
}
void deallocate(void*) noexcept {}
void* allocate_pinned(int, std::size_t) {
  refuse("pinned_memory");
}
void deallocate_pinned(void*) noexcept {}

std::string foreign_memory(int, const void*) {
  refuse("foreign_memory");
}

void capture_begin(void*) {
  refuse("capture");
}
void* capture_end(void*) {
  refuse("capture");
}
void capture_discard(void*) noexcept {}
void graph_destroy(void*) noexcept {}
std::size_t graph_nodes(void*) {
  refuse("graph::node_count");
}
std::size_t graph_programmatic_edges(void*) {
  refuse("graph::programmatic_edges");
}
void graph_dot(void*, std::ostream&) {
  refuse("graph::dot");
}
executable instantiate(int, void*) {
  refuse("graph::instantiate");
}
void exec_destroy(void*) noexcept {}
void exec_launch(void*, void*) {
  refuse("graph_exec::launch");
}
std::string exec_update(void*, void*) {
  refuse("graph_exec::update");
}

}  // namespace stepgraph::detail::cuda
