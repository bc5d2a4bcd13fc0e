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

/// Waits for the other threads of the warpgroup whose barrier it is.
__device__ __forceinline__ void named_barrier(int barrier) {
  __syncwarp();  // a warp arrives as one
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(warpgroup_threads) : "memory");
}
/// The same; whether `mine`, which a warp's threads share, is true of any of them. `votes` [4].
__device__ __forceinline__ bool any_of_warpgroup(bool mine, volatile int* votes, int barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) votes[threadIdx.x % warpgroup_threads / 32] = mine;
  named_barrier(barrier);
  return votes[0] | votes[1] | votes[2] | votes[3];
}

__device__ __forceinline__ void raise(std::uint64_t* number, std::uint64_t to) {
  atomicMax(reinterpret_cast<unsigned long long*>(number), static_cast<unsigned long long>(to));
}

/// The numbers of a head's tokens.
struct raised_numbers {
  std::uint64_t* of;
  const std::int32_t* line;  // [tokens] number of each token, or null: the token's own
  std::int32_t rows;         // of the vocabulary

  __device__ std::uint64_t* at(int token) const { return of + (line ? line[token] : token); }
};

/// Tokens whose numbers of four warps lie in shared memory at once: in one round, or two.
template <int Tokens>
constexpr int together = Tokens > warpgroup_threads ? Tokens / 2 : Tokens;

/// Shared memory of a warpgroup.
template <int Tokens>
struct largest_memory {
  union {
    std::uint64_t of_warp[4][together<Tokens>];
    float bound[Tokens];
  };
  int votes[4];
};

/// Column of the product that a thread's number `number` is of.
__device__ __forceinline__ int column_of(int number, int lane) {
  return 8 * (number / 2) + lane % 4 * 2 + number % 2;
}

/// A warpgroup's largest logits of `Tokens` tokens: what its threads know, put together, raises the tokens' numbers.
template <int Tokens>
__device__ __forceinline__ void raise_all(const raised_numbers& to,
                                          const largest_logit (&known)[Tokens / 8][2],
                                          largest_memory<Tokens>& memory, int first_token, int end_token,
                                          int barrier) {
  constexpr int rounds = Tokens / together<Tokens>, each = together<Tokens> / 4;
  const int thread = threadIdx.x % warpgroup_threads, lane = thread % 32;
  // what other blocks have found by now, read before the work that hides it
  std::uint64_t* numbers[rounds];
  std::uint64_t found[rounds];
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const int token = first_token + thread + round * together<Tokens>;
    numbers[round] = nullptr;
    if (thread >= together<Tokens> || token >= end_token) continue;
    numbers[round] = to.at(token);
    found[round] = __ldcg(numbers[round]);
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
  for (int round = 0; round < rounds; ++round) {
    named_barrier(barrier);  // the memory may still be read
#pragma unroll
    for (int i = 0; i < left_to_lane<Tokens / 4>; ++i)
      if (first / each == round) memory.of_warp[thread / 32][column_of(first % each + i, lane)] = top[i];
    named_barrier(barrier);
    if (!numbers[round]) continue;
    const std::uint64_t best = max(max(memory.of_warp[0][thread], memory.of_warp[1][thread]),
                                   max(memory.of_warp[2][thread], memory.of_warp[3][thread]));
    if (best > found[round]) raise(numbers[round], best);
  }
}

/// What all blocks have found by now, by column: of a thread those from its own number on, a warpgroup apart.
template <int Tokens>
struct found_numbers {
  std::uint64_t of[(Tokens + warpgroup_threads - 1) / warpgroup_threads];

  __device__ __forceinline__ void read(const raised_numbers& to, int first_token, int end_token) {
    const int thread = threadIdx.x % warpgroup_threads;
#pragma unroll
    for (int i = 0; i * warpgroup_threads < Tokens; ++i) {
      const int token = first_token + thread + i * warpgroup_threads;
      of[i] = token < end_token ? __ldcg(to.at(token)) : ~std::uint64_t{0};
    }
  }

  /// Leaves what a logit must reach to be worth a look.
  __device__ __forceinline__ void bound(largest_memory<Tokens>& memory, int barrier) const {
    named_barrier(barrier);  // the memory may still be read
#pragma unroll
    for (int i = 0; i * warpgroup_threads < Tokens; ++i) {
      const int column = threadIdx.x % warpgroup_threads + i * warpgroup_threads;
      if (column < Tokens)
        memory.bound[column] = of[i] <= nothing_ranked ? -INFINITY
                               : ranks_nan(of[i])      ? INFINITY
                                                  : float_of_key(static_cast<std::uint32_t>(of[i] >> 32));
    }
    named_barrier(barrier);
  }
};

/// A tile's logits where few are expected to be larger than what is known: those that are raise the numbers one by one.
/// False for all of the warpgroup, and nothing done, where they are many. Sums are of rows `row` and `row` + 8.
template <int Tokens>
__device__ __forceinline__ bool raise_few(const raised_numbers& to, const float (&sums)[Tokens / 8][4],
                                          int row, largest_memory<Tokens>& memory, int first_token,
                                          int end_token, int barrier) {
  constexpr int numbers = Tokens / 4, few = numbers < 16 ? 1 : numbers < 32 ? 2 : 3, few_lanes = 4;
  const int lane = threadIdx.x % 32;
  std::uint32_t larger[(numbers + 31) / 32] = {};
#pragma unroll
  for (int j = 0; j < Tokens / 8; ++j) {
    const float2 bounds = *reinterpret_cast<const float2*>(&memory.bound[column_of(2 * j, lane)]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float bound = k == 0 ? bounds.x : bounds.y;
      if (!(sums[j][k] < bound) || !(sums[j][2 + k] < bound))
        larger[(2 * j + k) / 32] |= 1u << (2 * j + k) % 32;
    }
  }
  int count = 0;
#pragma unroll
  for (const std::uint32_t each : larger) count += __popc(each);
  const bool many = __any_sync(~0u, count > few) || __popc(__ballot_sync(~0u, count > 0)) > few_lanes;
  if (any_of_warpgroup(many, memory.votes, barrier)) return false;
  while (__any_sync(~0u, count > 0)) {
    int number = -1;
#pragma unroll
    for (int word = 0; word < (numbers + 31) / 32; ++word)
      if (number < 0 && larger[word]) {
        number = 32 * word + __ffs(larger[word]) - 1;
        larger[word] &= larger[word] - 1;
      }
    --count;
    float first = 0.0f, second = 0.0f;
#pragma unroll
    for (int i = 0; i < numbers; ++i)
      if (i == number) {
        first = sums[i / 2][i % 2];
        second = sums[i / 2][2 + i % 2];
      }
    const int token = first_token + column_of(number, lane);
    if (number >= 0 && token < end_token)
      raise(to.at(token), max(ranked_logit(first, row), ranked_logit(second, row + 8)));
  }
  return true;
}

#endif  // STEPGRAPH_HAS_WGMMA

}  // namespace stepgraph::llama
