#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "kernels/launch.cuh"
#include "kernels/sample/row_team.hpp"

namespace stepgraph {

constexpr int row_team_threads = 512;

namespace detail {
struct better_logit {
  __device__ largest_logit operator()(const largest_logit& a, const largest_logit& b) const {
    const bool take_b = b.id >= 0 && (a.id < 0 || b.logit > a.logit || (b.logit == a.logit && b.id < a.id));
    return {take_b ? b.logit : a.logit, take_b ? b.id : a.id, a.nan_id < b.nan_id ? a.nan_id : b.nan_id};
  }
};
}  // namespace detail

/// The threads of one block over one line; see row_team.hpp for what each pass means.
class block_row_team {
  static constexpr int threads = row_team_threads;
  static constexpr int warps = threads / 32;
  static constexpr int max_digits = 2048;
  using reduce_largest = cub::BlockReduce<largest_logit, threads>;
  using reduce_sum = cub::BlockReduce<double, threads>;
  using reduce_mass = cub::BlockReduce<std::uint64_t, threads>;
  using scan_mass = cub::BlockScan<std::uint64_t, threads, cub::BLOCK_SCAN_WARP_SCANS>;

 public:
  struct storage {
    union {
      typename reduce_largest::TempStorage largest;
      typename reduce_sum::TempStorage sum;
      typename reduce_mass::TempStorage all_mass;
      typename scan_mass::TempStorage mass;
      double partial[warps];
    };
    unsigned long long masses[max_digits];
    largest_logit best;
    double total;
    found_digit found;
    detail::ranking_cutoff cutoff;
  };

  static constexpr bool compares_few = true;
  static constexpr int few = 256;  // entries that are ranked by comparing each with each

  __device__ explicit block_row_team(storage& shared) : shared_(shared) {}

  __device__ static int rank() { return threadIdx.x; }
  __device__ static constexpr int size() { return threads; }
  __device__ static void sync() { __syncthreads(); }
  __device__ static bool writes_scratch() { return threadIdx.x == 0; }

  template <class Visit>
  __device__ void for_each(int vocab_size, const Visit& visit) {
#pragma unroll 4
    for (int entry = threadIdx.x; entry < vocab_size; entry += threads) visit(entry);
  }

  __device__ static logits_line hold(const logits_line& line) {
    return line;
  }

  template <class Use>
  __device__ void narrow(const logits_line& line, const sampling_settings&, const row_distribution&, bool,
                         const Use& use) {
    use(*this, line);
  }

  /// select_head of at most `few` entries.
  template <class Rank, class Needed>
  __device__ detail::ranking_cutoff head_of_few(const logits_line& line, const Rank& rank,
                                                const Needed& needed) {
    auto* const all = reinterpret_cast<detail::ranked_mass*>(shared_.masses);
    const int entries = line.vocab_size, entry = threadIdx.x;
    const detail::ranked_mass mine = entry < entries ? rank(entry) : detail::ranked_mass{0, 0};
    if (entry < entries) all[entry] = mine;
    if (entry == 0) shared_.cutoff = {};
    __syncthreads();
    if (entry < entries && mine.mass > 0) {
      std::uint64_t before = 0, total = 0;
      bool last_of_equals = true;
      for (int i = 0; i < entries; ++i) {
        const detail::ranked_mass other = all[i];
        total += other.mass;
        if (other.key > mine.key || (other.key == mine.key && i < entry)) before += other.mass;
        if (other.key == mine.key && i > entry && other.mass > 0) last_of_equals = false;
      }
      const std::uint64_t target = needed(total);
      // exactly one crosses
      if (before < target && before + mine.mass >= target)
        shared_.cutoff = {mine.key, last_of_equals ? INT_MAX : line.id(entry)};
    }
    __syncthreads();
    const detail::ranking_cutoff found = shared_.cutoff;
    __syncthreads();
    return found;
  }

  __device__ largest_logit largest(const logits_line& line) {
    largest_logit best{-INFINITY, -1, INT_MAX};
#pragma unroll 4
    for (int id = threadIdx.x; id < line.vocab_size; id += threads) {
      if (!line.allows(id)) continue;
      const float logit = line.logits[id];
      best = detail::better_logit()(
          best, isnan(logit) ? largest_logit{-INFINITY, -1, id} : largest_logit{logit, id, INT_MAX});
    }
    best = reduce_to_first(best);
    if (threadIdx.x == 0) shared_.best = best;
    __syncthreads();
    best = shared_.best;
    __syncthreads();  // the storage is used again
    return best;
  }

  template <class Weight>
  __device__ double sum(int vocab_size, const Weight& weight) {
    double mine = 0;
#pragma unroll 4
    for (int id = threadIdx.x; id < vocab_size; id += threads) mine += weight(id);
    const double total = reduce_to_first(mine);
    if (threadIdx.x == 0) shared_.total = total;
    __syncthreads();
    const double all = shared_.total;
    __syncthreads();
    return all;
  }

  // descends by the sums of one contiguous segment a warp: the first reads the whole line, the next a warp's
  // part of it
  template <class Weight, class Target>
  __device__ int draw(int vocab_size, const Weight& weight, const Target& target) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int begin = 0, end = vocab_size;
    double limit = 0;
    for (bool first = true; first || end - begin > 32; first = false) {
      const int segment = ((end - begin + warps - 1) / warps + 31) / 32 * 32;
      double mine = 0;
      const int from = begin + warp * segment, to = min(end, from + segment);
#pragma unroll 4
      for (int id = from + lane; id < to; id += 32) mine += weight(id);
      for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
      if (lane == 0) shared_.partial[warp] = mine;
      __syncthreads();
      if (first) {
        double total = 0;
        for (int w = 0; w < warps; ++w) total += shared_.partial[w];
        limit = target(total);
      }
      int chosen = -1;
      double before = 0, before_chosen = 0;
      for (int w = 0; w < warps; ++w) {
        if (!(shared_.partial[w] > 0)) continue;
        chosen = w;  // the last of positive weight stands in where rounding leaves none
        before_chosen = before;
        before += shared_.partial[w];
        if (before > limit) break;
      }
      __syncthreads();  // the partial sums are written again
      if (chosen < 0) return -1;
      limit -= before_chosen;
      begin += chosen * segment;
      end = min(end, begin + segment);
    }
    const double mine = begin + lane < end ? static_cast<double>(weight(begin + lane)) : 0.0;
    double sum = mine;
    for (int offset = 1; offset < 32; offset *= 2) {
      const double lower = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += lower;
    }
    const unsigned positive = __ballot_sync(~0u, mine > 0),
                   over = __ballot_sync(~0u, mine > 0 && sum > limit);
    return begin + (over ? __ffs(over) - 1 : 31 - __clz(positive));
  }

  template <class Rank, class Needed>
  __device__ found_digit find_digit(int vocab_size, const Rank& rank, std::uint32_t prefix, int shift,
                                    int bits, const Needed& needed) {
    const int digits = 1 << bits;
    for (int digit = threadIdx.x; digit < digits; digit += threads) shared_.masses[digit] = 0;
    __syncthreads();
#pragma unroll 4
    for (int id = threadIdx.x; id < vocab_size; id += threads) {
      const detail::ranked_mass it = rank(id);
      if (it.mass == 0 || (std::uint64_t{it.key} >> (shift + bits)) != prefix) continue;
      atomicAdd(&shared_.masses[it.key >> shift & (digits - 1)], static_cast<unsigned long long>(it.mass));
    }
    __syncthreads();
    return digit_of(shared_.masses, bits, needed);
  }

  /// Of all threads' values, for thread 0 alone. A barrier must come before the next.
  __device__ largest_logit reduce_to_first(const largest_logit& mine) {
    return reduce_largest(shared_.largest).Reduce(mine, detail::better_logit());
  }
  __device__ double reduce_to_first(double mine) {
    return reduce_sum(shared_.sum).Sum(mine);
  }
  __device__ std::uint64_t reduce_to_first(std::uint64_t mine) {
    return reduce_mass(shared_.all_mass).Sum(mine);
  }

  /// The digit at which the masses, from the largest digit down, reach `needed(mass of all)`.
  template <class Needed>
  __device__ found_digit digit_of(const unsigned long long* masses, int bits, const Needed& needed) {
    const int digits = 1 << bits;
    if (threadIdx.x == 0) shared_.found = {false, 0, 0, 0};
    // from the largest digit down, a few digits a thread
    constexpr int each = max_digits / threads;
    std::uint64_t mine[each], sum = 0, before = 0, total = 0;
    for (int i = 0; i < each; ++i) {
      const int digit = digits - 1 - static_cast<int>(threadIdx.x * each + i);
      mine[i] = digit >= 0 ? masses[digit] : 0;
      sum += mine[i];
    }
    scan_mass(shared_.mass).ExclusiveSum(sum, before, total);
    const std::uint64_t target = needed(total);
    for (int i = 0; i < each; ++i) {
      // exactly one digit crosses
      if (mine[i] > 0 && before < target && before + mine[i] >= target)
        shared_.found = {true,
                         static_cast<std::uint32_t>(digits - 1 - static_cast<int>(threadIdx.x * each + i)),
                         before, mine[i]};
      before += mine[i];
    }
    __syncthreads();
    const found_digit found = shared_.found;
    __syncthreads();
    return found;
  }

 private:
  storage& shared_;
};

}  // namespace stepgraph
