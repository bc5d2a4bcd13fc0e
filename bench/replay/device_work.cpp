#include "bench/replay/device_work.hpp"

#include <cstring>

#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

std::uint32_t fold(const void* from, std::int64_t bytes) {
  const auto* const words = static_cast<const std::uint64_t*>(from);
  std::uint64_t all = 0;
  for (std::int64_t i = 0; i < bytes / 8; ++i) all ^= words[i];
  return static_cast<std::uint32_t>(all ^ all >> 32);
}

void gather_host(const gather_params& p) {
  const auto* const cache = static_cast<const std::byte*>(p.cache);
  std::uint32_t all = 0;
  for (std::int64_t i = 0; i < std::int64_t{p.tokens} * p.topk; ++i)
    if (p.slots[i] >= 0) all ^= fold(cache + std::int64_t{p.slots[i]} * p.line_bytes, p.line_bytes);
  *p.sink = all;
}

}  // namespace

#if STEPGRAPH_CUDA
#define ON_CUDA(call) return cuda_work::call
#else
#define ON_CUDA(call) throw cuda_error("graph_replay: this stepgraph was built without CUDA", 0)
#endif

void fill_device(stream_ref at, [[maybe_unused]] void* to, [[maybe_unused]] std::int64_t count,
                 [[maybe_unused]] std::uint32_t seed) {
  if (at.is_host()) return;
  ON_CUDA(fill(at, to, count, seed));
}

void read_bytes(stream_ref at, const void* from, std::int64_t bytes, std::uint32_t* sink) {
  if (at.is_host()) return enqueue_host(at, "read_bytes", [=] { *sink = fold(from, bytes); });
  ON_CUDA(read(at, from, bytes, sink));
}

void copy_bytes(stream_ref at, void* to, const void* from, std::int64_t bytes) {
  if (at.is_host()) return enqueue_host(at, "copy_bytes", [=] { std::memcpy(to, from, bytes); });
  ON_CUDA(copy(at, to, from, bytes));
}

void dead_blocks(stream_ref at, [[maybe_unused]] const dead_blocks_params& params) {
  STEPGRAPH_EXPECTS(!at.is_host(), "dead_blocks: there are no blocks on the host");
  ON_CUDA(dead_blocks(at, params));
}

void gather_attention_stand_in(stream_ref at, const gather_params& params) {
  if (at.is_host()) return enqueue_host(at, "gather_attention_stand_in", [params] { gather_host(params); });
  ON_CUDA(gather(at, params));
}

#undef ON_CUDA

}  // namespace stepgraph::bench
