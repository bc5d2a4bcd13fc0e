#pragma once

#include "kernels/attention/wgmma.cuh"
#include "kernels/sample/ranked_logit.hpp"

/// The largest logits of tokens that a warpgroup's products leave: kept by thread while tiles go by, put together at the
/// end. Sums lie as after `warpgroup_product`, with rows of the vocabulary as lines and tokens as columns.
namespace stepgraph::llama {

constexpr int warpgroup_threads = 128;

#if STEPGRAPH_HAS_WGMMA

/// What a thread knows of one token: the largest of the logits it has seen and the row it came from. Rows come in
/// order, so that of equals the first stays; so does the first NaN.
struct largest_logit {
  float value;
  std::int32_t row;
  __device__ __forceinline__ void raise(float other, std::int32_t from) {
    asm("{\n.reg .pred number, more;\n"
        "setp.num.f32 number, %0, %0;\n"
        "setp.gtu.and.f32 more, %2, %0, number;\n"
        "@more mov.f32 %0, %2;\n"
        "@more mov.s32 %1, %3;\n}"
        : "+f"(value), "+r"(row)
        : "f"(other), "r"(from));
  }
};

/// The largest of `Count` numbers over the eight lanes that have the same tokens. Lanes halve the tokens between them
/// while they can: a lane is left with those from `first` on.
template <int Count, int Lanes, int Size>
__device__ __forceinline__ void share_largest(std::uint64_t (&top)[Size], int& first, int lane) {
  if constexpr (Lanes < 32) {
    if constexpr (Count % 2 == 0) {
      const bool upper = lane & Lanes;
#pragma unroll
      for (int i = 0; i < Count / 2; ++i) {
        const std::uint64_t given = upper ? top[i] : top[i + Count / 2];
        const std::uint64_t kept = upper ? top[i + Count / 2] : top[i];
        top[i] = max(kept, __shfl_xor_sync(~0u, given, Lanes));
      }
      first += upper ? Count / 2 : 0;
      share_largest<Count / 2, 2 * Lanes>(top, first, lane);
    } else {
#pragma unroll
      for (int i = 0; i < Count; ++i) top[i] = max(top[i], __shfl_xor_sync(~0u, top[i], Lanes));
      share_largest<Count, 2 * Lanes>(top, first, lane);
    }
  }
}
/// How many each lane is left with.
template <int Count>
constexpr int left_to_lane = Count % 8 == 0   ? Count / 8
                             : Count % 4 == 0 ? Count / 4
                             : Count % 2 == 0 ? Count / 2
                                              : Count;

/// The numbers of a head's tokens.
struct raised_numbers {
  std::uint64_t* of;
  const std::int32_t* line;  // [tokens] number of each token, or null: the token's own
  std::int32_t rows;         // of the vocabulary

  __device__ std::uint64_t* at(int token) const { return of + (line ? line[token] : token); }
};

/// A warpgroup's largest logits of `Tokens` tokens: what its threads know, put together, raises the tokens' numbers.
template <int Tokens>
__device__ __forceinline__ void raise_all(const raised_numbers& to,
                                          const largest_logit (&known)[Tokens / 8][2],
                                          std::uint64_t (&of_warp)[4][Tokens], int first_token, int end_token,
                                          int barrier) {
  const int thread = threadIdx.x % warpgroup_threads, lane = thread % 32;
  // what other blocks have found by now, read before the work that hides it
  std::uint64_t* numbers[(Tokens + warpgroup_threads - 1) / warpgroup_threads];
  std::uint64_t found[(Tokens + warpgroup_threads - 1) / warpgroup_threads];
#pragma unroll
  for (int i = 0; i * warpgroup_threads < Tokens; ++i) {
    const int token = first_token + thread + i * warpgroup_threads;
    numbers[i] = nullptr;
    if (thread + i * warpgroup_threads >= Tokens || token >= end_token) continue;
    numbers[i] = to.at(token);
    found[i] = __ldcg(numbers[i]);
  }
  std::uint64_t top[Tokens / 4];
#pragma unroll
  for (int j = 0; j < Tokens / 8; ++j)
#pragma unroll
    for (int k = 0; k < 2; ++k)
      top[2 * j + k] = known[j][k].row < to.rows ? ranked_logit(known[j][k].value, known[j][k].row) : 0;
  int first = 0;
  share_largest<Tokens / 4, 4>(top, first, lane);
#pragma unroll
  for (int i = 0; i < left_to_lane<Tokens / 4>; ++i) {
    const int number = first + i;
    of_warp[thread / 32][8 * (number / 2) + lane % 4 * 2 + number % 2] = top[i];
  }
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(warpgroup_threads) : "memory");
#pragma unroll
  for (int i = 0; i * warpgroup_threads < Tokens; ++i) {
    if (!numbers[i]) continue;
    const int own = thread + i * warpgroup_threads;
    const std::uint64_t best =
        max(max(of_warp[0][own], of_warp[1][own]), max(of_warp[2][own], of_warp[3][own]));
    if (best > found[i])
      atomicMax(reinterpret_cast<unsigned long long*>(numbers[i]), static_cast<unsigned long long>(best));
  }
}

#endif  // STEPGRAPH_HAS_WGMMA

}  // namespace stepgraph::llama
