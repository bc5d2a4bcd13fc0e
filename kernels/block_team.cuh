#pragma once

#include <cstdint>

#include "kernels/settled.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

constexpr int tile_threads = 256;

/// The threads of one block.
class block_team {
 public:
  static constexpr int warps = tile_threads / 32;
  // note: two sums in turn, so that the one needs no barrier before the next
  struct storage {
    alignas(16) std::int64_t of_warp[2][2][warps];
  };
  __device__ explicit block_team(storage& shared)
      : shared_(shared), rank_(settled(static_cast<std::int32_t>(threadIdx.x))) {}

  __device__ int rank() const { return rank_; }
  __device__ static constexpr int size() { return tile_threads; }
  __device__ static void sync() { __syncthreads(); }

  using sum = host_team::sum;
  __device__ sum exclusive_sum(std::int64_t value) {
    sum result;
    exclusive_sums({value}, {&result});
    return result;
  }
  __device__ host_team::sums exclusive_sums(std::int64_t a, std::int64_t b) {
    host_team::sums result;
    exclusive_sums({a, b}, {&result.first, &result.second});
    return result;
  }

  __device__ std::int64_t sum_of(std::int64_t value) {
    const std::uint32_t low = __reduce_add_sync(~0u, static_cast<std::uint32_t>(value) & 0x7ffffffu);
    const std::uint32_t high = __reduce_add_sync(~0u, static_cast<std::uint32_t>(value >> 27));
    auto& of_warp = shared_.of_warp[turn_][0];
    turn_ ^= 1;
    if ((rank_ & 31) == 0) of_warp[rank_ >> 5] = low + (std::int64_t{high} << 27);
    __syncthreads();
    std::int64_t of[warps];
#pragma unroll
    for (int w = 0; w < warps; ++w) of[w] = of_warp[w];
    return tree(of);
  }

  template <int lanes, class Item, class Visit>
  __device__ void spread(int items, const Item& item, std::int32_t count, const Visit& visit) const {
    __shared__ Item item_of[tile_threads];
    __shared__ std::int32_t count_of[tile_threads];
    item_of[rank_] = item;
    count_of[rank_] = count;
    __syncthreads();
    STEPGRAPH_NO_UNROLL
    for (int slot = rank_; slot < items * lanes; slot += tile_threads) {
      const int from = slot / lanes;
      for (std::int32_t k = slot % lanes; k < count_of[from]; k += lanes) visit(item_of[from], k);
    }
  }

 private:
  /// Sums of `n` numbers: in warps, then of warps, with one barrier.
  template <int n>
  __device__ void exclusive_sums(const std::int64_t (&value)[n], sum* const (&result)[n]) {
    const int lane = rank_ & 31, warp = rank_ >> 5;
    std::int64_t through[n];
#pragma unroll
    for (int i = 0; i < n; ++i) through[i] = value[i];
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const std::int64_t lower = __shfl_up_sync(~0u, through[i], step);
        through[i] += lane >= step ? lower : 0;
      }
    auto& of_warp = shared_.of_warp[turn_];
    turn_ ^= 1;
    if (lane == 31)
#pragma unroll
      for (int i = 0; i < n; ++i) of_warp[i][warp] = through[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < n; ++i) {
      std::int64_t all[warps], lower[warps];
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        all[w] = of_warp[i][w];
        lower[w] = w < warp ? all[w] : 0;
      }
      *result[i] = {tree(lower) + through[i] - value[i], tree(all)};
    }
  }
  /// Sum in few steps one after the other.
  __device__ static std::int64_t tree(std::int64_t (&of)[warps]) {
#pragma unroll
    for (int half = warps / 2; half > 0; half /= 2)
#pragma unroll
      for (int w = 0; w < half; ++w) of[w] += of[w + half];
    return of[0];
  }

  storage& shared_;
  std::int32_t rank_;
  int turn_ = 0;
};

}  // namespace stepgraph
