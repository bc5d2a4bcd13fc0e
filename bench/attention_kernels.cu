#include "bench/attention_kernels.hpp"

#include "kernels/element_type.hpp"
#include "kernels/launch.cuh"

namespace stepgraph::bench {
namespace {

struct fill_params {
  bf16* to;
  std::int64_t count;
  std::uint32_t seed;
};

// grid: fixed
// a thread hashes the indices of its elements
__global__ void fill_kernel(const __grid_constant__ fill_params p) {
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += threads) {
    std::uint32_t x =
        static_cast<std::uint32_t>(i) * 0x9e3779b1u ^ static_cast<std::uint32_t>(i >> 32) ^ p.seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    p.to[i] = from_float<bf16>(static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31f);
  }
}

struct read_params {
  const uint4* keys;
  const uint4* values;
  std::int64_t count;  // of 16-byte vectors in each
  std::uint32_t* sink;
};

// grid: eight blocks a multiprocessor
// a thread reads every so-many-th vector, eight under way at once
__global__ void __launch_bounds__(256) read_kernel(const __grid_constant__ read_params p) {
  constexpr int ahead = 4;
  const std::int64_t threads = std::int64_t{gridDim.x} * 256;
  std::uint32_t all = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * 256 + threadIdx.x; first < p.count;
       first += ahead * threads) {
    uint4 part[2 * ahead] = {};
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (first + i * threads >= p.count) break;
      part[2 * i] = p.keys[first + i * threads];
      part[2 * i + 1] = p.values[first + i * threads];
    }
#pragma unroll
    for (const uint4& each : part) all ^= each.x ^ each.y ^ each.z ^ each.w;
  }
  if (all == 0x12345678u) *p.sink = all;
}

}  // namespace

void fill_random(stream_ref at, void* to, std::int64_t count, std::uint32_t seed) {
  launch<fill_params>(at, "fill_random", fill_kernel, dim3(1056), dim3(256),
                      {static_cast<bf16*>(to), count, seed}, 0, false);
}

void read_plainly(stream_ref at, const void* keys, const void* values, std::int64_t bytes,
                  std::uint32_t* sink) {
  launch<read_params>(at, "read_plainly", read_kernel, dim3(at.where().multiprocessors() * 8), dim3(256),
                      {static_cast<const uint4*>(keys), static_cast<const uint4*>(values), bytes / 16, sink},
                      0, false);
}

}  // namespace stepgraph::bench
