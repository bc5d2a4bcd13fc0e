#pragma once

#include "kernels/sample/row_team.cuh"

/// Several blocks over one line. A block keeps its part of the line in shared memory, so the line is read once;
/// what blocks find is exchanged through the shared memory of all of them.
namespace stepgraph {

constexpr int row_cluster_blocks = 8;

namespace detail {

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define STEPGRAPH_ROW_CLUSTER  // never launched there
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
template <class T>
__device__ __forceinline__ void store_remote(T*, int, T) {}
template <class T>
__device__ __forceinline__ T load_remote(const T* from, int) {
  return *from;
}
__device__ __forceinline__ int cluster_rank() { return 0; }
#else
#define STEPGRAPH_ROW_CLUSTER __cluster_dims__(row_cluster_blocks, 1, 1)
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ std::uint32_t remote_address(const void* at, int block) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(at)), "r"(block));
  return remote;
}
/// Stores into the shared memory of a block of the cluster, where it lies as `to` does here.
template <class T>
__device__ __forceinline__ void store_remote(T* to, int block, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4)
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(remote_address(to, block)),
                 "r"(__builtin_bit_cast(std::uint32_t, value))
                 : "memory");
  else
    asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(remote_address(to, block)),
                 "l"(__builtin_bit_cast(std::uint64_t, value))
                 : "memory");
}
__device__ __forceinline__ std::uint64_t load_remote(const unsigned long long* from, int block) {
  std::uint64_t value;
  asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(value) : "r"(remote_address(from, block)) : "memory");
  return value;
}
#endif

}  // namespace detail

/// The threads of a cluster over one line; see row_team.hpp for what each pass means. Block i has the i-th
/// part of the line. Sums are made in an order that depends on the line's length alone.
class cluster_row_team {
  static constexpr int blocks = row_cluster_blocks, threads = row_team_threads, warps = threads / 32;
  static constexpr int bins = 256, most_few = 1024, max_digits = 2048;
  using scan_count = cub::BlockScan<int, threads>;

 public:
  static constexpr bool compares_few = false;

  struct storage {
    block_row_team::storage block;
    typename scan_count::TempStorage count;
    // note: two sets in turn, so that what is written next needs no wait for who still reads
    struct letters {
      double sum[blocks];
      largest_logit largest[blocks];
      double partial[blocks * warps];
      int token;
    } mail[2];
    std::uint64_t elsewhere[blocks];
    std::uint32_t counted[bins];  // of this block
    double chosen_limit;
    int chosen, last_bin, candidates, before[blocks + 1];
    union {
      std::uint32_t counts[blocks][bins];
      unsigned long long masses[max_digits];  // of all blocks
    };
    float few_logits[most_few];
    std::int32_t few_ids[most_few];
  };

  /// `part`: room for this block's part of a line, or null.
  __device__ cluster_row_team(storage& shared, float* part) : shared_(shared), part_(part), inner_(shared.block) {
    detail::cluster_arrive();
  }

  __device__ static int block() { return blockIdx.x; }
  __device__ static int rank() { return block() * threads + threadIdx.x; }
  __device__ static void sync() { __syncthreads(); }
  __device__ static bool writes_scratch() { return threadIdx.x == 0; }

  /// Entries that a block has of a line; the last blocks may have fewer.
  __host__ __device__ static int share(int vocab_size) { return ((vocab_size + blocks - 1) / blocks + 3) / 4 * 4; }

  template <class Visit>
  __device__ void for_each(int vocab_size, const Visit& visit) {
    const int end = last(vocab_size);
#pragma unroll 4
    for (int entry = first(vocab_size) + threadIdx.x; entry < end; entry += threads) visit(entry);
  }

  __device__ logits_line hold(const logits_line& line) {
    if (!part_) return line;
    const int from = first(line.vocab_size), count = last(line.vocab_size) - from;
    const float* const source = line.logits + from;
    if (reinterpret_cast<std::uintptr_t>(source) % 16 == 0 && count % 4 == 0) {
      auto* const to = reinterpret_cast<float4*>(part_);
      const auto* const quads = reinterpret_cast<const float4*>(source);
#pragma unroll 4
      for (int i = threadIdx.x; i < count / 4; i += threads) to[i] = quads[i];
    } else {
#pragma unroll 8
      for (int i = threadIdx.x; i < count; i += threads) part_[i] = source[i];
    }
    __syncthreads();
    return {part_ - from, line.allowed, line.vocab_size};
  }

  __device__ largest_logit largest(const logits_line& line) {
    largest_logit best{-INFINITY, -1, INT_MAX};
    for_each(line.vocab_size, [&](int id) {
      if (!line.allows(id)) return;
      const float logit = line.logits[id];
      best = detail::better_logit()(
          best, isnan(logit) ? largest_logit{-INFINITY, -1, id} : largest_logit{logit, id, INT_MAX});
    });
    best = inner_.reduce_to_first(best);
    auto& mail = next_mail();
    if (threadIdx.x == 0) {
      for (int i = 0; i < blocks; ++i) {
        detail::store_remote(&mail.largest[block()].logit, i, best.logit);
        detail::store_remote(&mail.largest[block()].id, i, best.id);
        detail::store_remote(&mail.largest[block()].nan_id, i, best.nan_id);
      }
    }
    exchange();
    best = mail.largest[0];
    for (int i = 1; i < blocks; ++i) best = detail::better_logit()(best, mail.largest[i]);
    return best;
  }

  template <class Weight>
  __device__ double sum(int vocab_size, const Weight& weight) {
    double mine = 0;
    for_each(vocab_size, [&](int id) { mine += weight(id); });
    mine = inner_.reduce_to_first(mine);
    auto& mail = next_mail();
    if (threadIdx.x == 0)
      for (int i = 0; i < blocks; ++i) detail::store_remote(&mail.sum[block()], i, mine);
    exchange();
    double all = 0;
    for (int i = 0; i < blocks; ++i) all += mail.sum[i];
    return all;
  }

  // a contiguous part of the line a warp; the warp in whose part the token lies then finds it
  template <class Weight, class Target>
  __device__ int draw(int vocab_size, const Weight& weight, const Target& target) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = (share(vocab_size) + warps - 1) / warps;
    const int from = min(first(vocab_size) + warp * part, last(vocab_size));
    const int to = min(from + part, last(vocab_size));
    double mine = 0;
#pragma unroll 4
    for (int id = from + lane; id < to; id += 32) mine += weight(id);
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
    auto& mail = next_mail();
    if (lane < blocks) detail::store_remote(&mail.partial[block() * warps + warp], lane, mine);
    exchange();
    if (warp == 0) choose_part(mail.partial, target);
    __syncthreads();
    const int chosen = shared_.chosen;
    if (chosen < 0) return -1;
    auto& answer = next_mail();
    if (chosen == block() * warps + warp) {
      const int token = draw_in_warp(from, to, shared_.chosen_limit, weight);
      if (lane < blocks) detail::store_remote(&answer.token, lane, token);
    }
    exchange();
    return answer.token;
  }

  template <class Rank, class Needed>
  __device__ found_digit find_digit(int vocab_size, const Rank& rank, std::uint32_t prefix, int shift,
                                    int bits, const Needed& needed) {
    const int digits = 1 << bits;
    auto* const mine = shared_.block.masses;
    for (int digit = threadIdx.x; digit < digits; digit += threads) mine[digit] = 0;
    __syncthreads();
    for_each(vocab_size, [&](int id) {
      const detail::ranked_mass it = rank(id);
      if (it.mass == 0 || (std::uint64_t{it.key} >> (shift + bits)) != prefix) return;
      atomicAdd(&mine[it.key >> shift & (digits - 1)], static_cast<unsigned long long>(it.mass));
    });
    exchange();
    const int part = digits / blocks;
    for (int i = threadIdx.x; i < part; i += threads) {
      const int digit = block() * part + i;
      unsigned long long all = 0;
      for (int from = 0; from < blocks; ++from) all += detail::load_remote(&mine[digit], from);
      for (int to = 0; to < blocks; ++to) detail::store_remote(&shared_.masses[digit], to, all);
    }
    exchange();
    return inner_.digit_of(shared_.masses, bits, needed);
  }

  /// A head of the ranking that holds all that top-k and top-p may leave, gathered by every block, if that is
  /// few; cut at a distance from the largest logit.
  template <class Use>
  __device__ void narrow(const logits_line& line, const sampling_settings& s, const row_distribution& d,
                         bool everywhere, const Use& use) {
    const bool by_count = s.top_k > 0 && s.top_k < line.vocab_size;
    if (!by_count && !(s.top_p < 1.0f)) return use(*this, line);
    count_bins(line, d);
    if (threadIdx.x < 32) find_last_bin(by_count ? s.top_k : 0, s.top_p, d.inverse_temperature);
    __syncthreads();
    if (shared_.candidates > most_few) return use(*this, line);
    gather(line, d, !by_count);
    if (!everywhere && block() != 0) return;
    logits_line head{shared_.few_logits, nullptr, shared_.candidates, shared_.few_ids};
    if (!by_count)
      for (int i = 0; i < blocks; ++i) head.mass_elsewhere += shared_.elsewhere[i];
    use(inner_, head);
  }

 private:
  __device__ static int first(int vocab_size) { return min(block() * share(vocab_size), vocab_size); }
  __device__ static int last(int vocab_size) { return min((block() + 1) * share(vocab_size), vocab_size); }

  /// A set of mail that no block reads any more; written before the next exchange, read after it.
  __device__ storage::letters& next_mail() {
    if (!met_) {
      detail::cluster_wait();  // all blocks are there
      met_ = true;
    }
    turn_ ^= 1;
    return shared_.mail[turn_];
  }

  /// All that was stored before, here or elsewhere, may be read.
  __device__ void exchange() {
    if (!met_) {
      detail::cluster_wait();
      met_ = true;
    }
    detail::cluster_arrive();
    detail::cluster_wait();
  }

  // by one warp: the part of the line in which the cumulative weight exceeds the target, of all warps' sums
  template <class Target>
  __device__ void choose_part(const double* partial, const Target& target) {
    constexpr int each = blocks * warps / 32;
    const int lane = threadIdx.x % 32;
    double own[each], sum = 0;
    for (int i = 0; i < each; ++i) sum += own[i] = partial[lane * each + i];
    double before = sum;
    for (int offset = 1; offset < 32; offset *= 2) {
      const double lower = __shfl_up_sync(~0u, before, offset);
      if (lane >= offset) before += lower;
    }
    const double limit = target(__shfl_sync(~0u, before, 31));
    before -= sum;
    int last_positive = -1, chosen = -1;
    double before_last = 0, before_chosen = 0;
    for (int i = 0; i < each; ++i) {
      if (!(own[i] > 0)) continue;
      last_positive = lane * each + i;
      before_last = before;
      before += own[i];
      if (chosen < 0 && before > limit) {
        chosen = last_positive;
        before_chosen = before_last;
      }
    }
    // the last of positive weight stands in where rounding leaves none
    const unsigned over = __ballot_sync(~0u, chosen >= 0), positive = __ballot_sync(~0u, last_positive >= 0);
    const int owner = over ? __ffs(over) - 1 : positive ? 31 - __clz(positive) : 0;
    if (lane != owner) return;
    shared_.chosen = over ? chosen : last_positive;
    shared_.chosen_limit = limit - (over ? before_chosen : before_last);
  }

  template <class Weight>
  __device__ static int draw_in_warp(int from, int to, double limit, const Weight& weight) {
    const int lane = threadIdx.x % 32;
    double before = 0;
    int last_positive = -1;
    for (int base = from; base < to; base += 32) {
      const double mine = base + lane < to ? static_cast<double>(weight(base + lane)) : 0.0;
      double sum = mine;
      for (int offset = 1; offset < 32; offset *= 2) {
        const double lower = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += lower;
      }
      const unsigned positive = __ballot_sync(~0u, mine > 0),
                     over = __ballot_sync(~0u, mine > 0 && before + sum > limit);
      if (over) return base + __ffs(over) - 1;
      if (positive) last_positive = base + 31 - __clz(positive);
      before += __shfl_sync(~0u, sum, 31);
    }
    return last_positive;
  }

  /// Bins of the distance from the largest logit, eight an octave: bin 0 from 0 on, the last without end.
  static constexpr int first_exponent = 127 - 16, bin_shift = 20, bins_an_octave = 8;
  static constexpr int least_bin = first_exponent * bins_an_octave;
  __device__ static int bin_of(float logit, float max_logit) {
    const float distance = logit == max_logit ? 0.0f : max_logit - logit;
    const int bin = static_cast<int>(__float_as_uint(distance) >> bin_shift) - least_bin;
    return min(max(bin, 0), bins - 1);
  }
  /// Where a bin begins.
  __device__ static float distance_of(int bin) {
    return bin <= 0      ? 0.0f
           : bin >= bins ? INFINITY
                         : __uint_as_float(static_cast<std::uint32_t>(bin + least_bin) << bin_shift);
  }

  __device__ void count_bins(const logits_line& line, const row_distribution& d) {
    for (int bin = threadIdx.x; bin < bins; bin += threads) shared_.counted[bin] = 0;
    __syncthreads();
    for_each(line.vocab_size, [&](int id) {
      if (line.allows(id)) atomicAdd(&shared_.counted[bin_of(line.logits[id], d.max_logit)], 1u);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < bins * blocks; i += threads)
      detail::store_remote(&shared_.counts[block()][i % bins], i / bins, shared_.counted[i % bins]);
    exchange();
  }

  // by one warp: the first bin at which the head is sure to hold `top_k` entries or, where that is 0, a
  // probability of `top_p`; and how many entries the head has
  __device__ void find_last_bin(int top_k, float top_p, float inverse_temperature) {
    constexpr int each = bins / 32;
    const int lane = threadIdx.x % 32;
    int count[each], counts = 0;
    double least[each], most[each], leasts = 0, mosts = 0;
    for (int i = 0; i < each; ++i) {
      const int bin = lane * each + i;
      count[i] = 0;
      for (int b = 0; b < blocks; ++b) count[i] += static_cast<int>(shared_.counts[b][bin]);
      counts += count[i];
      leasts += least[i] = count[i] * static_cast<double>(expf(-distance_of(bin + 1) * inverse_temperature));
      mosts += most[i] = count[i] * static_cast<double>(expf(-distance_of(bin) * inverse_temperature));
    }
    int count_before = counts;
    double least_before = leasts, most_before = mosts;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int lower_count = __shfl_up_sync(~0u, count_before, offset);
      const double lower_least = __shfl_up_sync(~0u, least_before, offset),
                   lower_most = __shfl_up_sync(~0u, most_before, offset);
      if (lane < offset) continue;
      count_before += lower_count;
      least_before += lower_least;
      most_before += lower_most;
    }
    const int all = __shfl_sync(~0u, count_before, 31);
    const double all_most = __shfl_sync(~0u, most_before, 31);
    count_before -= counts;
    least_before -= leasts;
    most_before -= mosts;
    int found = -1, found_count = 0;
    for (int i = 0; i < each && found < 0; ++i) {
      count_before += count[i];
      least_before += least[i];
      most_before += most[i];
      const double tail = all_most - most_before > 0 ? all_most - most_before : 0.0;
      // note: the margin covers the rounding of all that is added up
      const bool enough = top_k > 0 ? count_before >= top_k
                                    : least_before * (1.0 - top_p) - tail * top_p > 1e-5 * all_most;
      if (!enough) continue;
      found = lane * each + i;
      found_count = count_before;
    }
    const unsigned over = __ballot_sync(~0u, found >= 0);
    if (lane != (over ? __ffs(over) - 1 : 0)) return;
    shared_.last_bin = over ? found : bins - 1;
    shared_.candidates = over ? found_count : all;
  }

  /// The entries up to the last bin, ids ascending, into every block; and the mass of the others.
  __device__ void gather(const logits_line& line, const row_distribution& d, bool masses) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, last_bin = shared_.last_bin;
    if (warp < blocks) {
      int sum = 0;
      for (int bin = lane; bin <= last_bin; bin += 32) sum += static_cast<int>(shared_.counts[warp][bin]);
      sum = __reduce_add_sync(~0u, sum);
      if (lane == 0) shared_.before[warp] = sum;
    }
    const int each = (share(line.vocab_size) + threads - 1) / threads;
    const int from = min(first(line.vocab_size) + static_cast<int>(threadIdx.x) * each, last(line.vocab_size));
    const int to = min(from + each, last(line.vocab_size));
    int mine = 0;
    std::uint64_t elsewhere = 0;
    for (int id = from; id < to; ++id) {
      if (!line.allows(id)) continue;
      const float logit = line.logits[id];
      if (bin_of(logit, d.max_logit) <= last_bin)
        ++mine;
      else if (masses)
        elsewhere += d.mass(logit);
    }
    int place;
    scan_count(shared_.count).ExclusiveSum(mine, place);
    __syncthreads();
    for (int b = 0; b < block(); ++b) place += shared_.before[b];
    for (int id = from; mine > 0 && id < to; ++id) {
      if (!line.allows(id)) continue;
      const float logit = line.logits[id];
      if (bin_of(logit, d.max_logit) > last_bin) continue;
      for (int b = 0; b < blocks; ++b) {
        detail::store_remote(&shared_.few_logits[place], b, logit);
        detail::store_remote(&shared_.few_ids[place], b, id);
      }
      ++place;
      --mine;
    }
    if (masses) {
      elsewhere = inner_.reduce_to_first(elsewhere);
      if (threadIdx.x == 0)
        for (int b = 0; b < blocks; ++b) detail::store_remote(&shared_.elsewhere[block()], b, elsewhere);
    }
    exchange();
  }

  storage& shared_;
  float* part_;
  block_row_team inner_;
  int turn_ = 0;
  bool met_ = false;
};

}  // namespace stepgraph
