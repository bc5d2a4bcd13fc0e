#pragma once

#include "kernels/sample/ranked_logit.cuh"
#include "kernels/sample/row_head.cuh"

/// Several blocks over one line. A block keeps its part of the line in shared memory, so the line is read once;
/// what blocks find is exchanged through the shared memory of all of them.
namespace stepgraph {

/// The threads of a cluster over one line; see row_team.hpp for what each pass means. Block i has the i-th
/// part of the line. Sums are made in an order that depends on the line's length alone.
class cluster_row_team {
  static constexpr int blocks = row_cluster_blocks, threads = row_team_threads, warps = threads / 32,
                       max_digits = 2048;

 public:
  static constexpr bool compares_few = false;

  struct storage {
    block_row_team::storage block;
    // note: two sets in turn, so that what is written next needs no wait for who still reads
    struct letters {
      double sum[blocks];
      double partial[blocks * warps];
      std::uint64_t ranked[blocks * warps];
      int token;
    } mail[2];
    double chosen_limit;
    int chosen;
    // note: what is not few is ranked by all blocks instead
    union {
      typename cluster_head<cluster_row_team>::storage head;
      unsigned long long masses[max_digits];  // of all blocks
    };
  };

  /// `part`: room for this block's part of a line, or null.
  __device__ cluster_row_team(storage& shared, float* part)
      : shared_(shared), part_(part), inner_(shared.block) {
    detail::cluster_arrive();
  }

  __device__ static int block() { return blockIdx.x; }
  __device__ static int rank() { return block() * threads + threadIdx.x; }
  __device__ static void sync() { __syncthreads(); }
  __device__ static bool writes_scratch() { return threadIdx.x == 0; }

  /// Entries that a block has of a line; the last blocks may have fewer.
  __host__ __device__ static int share(int vocab_size) {
    return ((vocab_size + blocks - 1) / blocks + 3) / 4 * 4;
  }

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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    std::uint64_t best = 0;
    for_each(line.vocab_size, [&](int id) {
      if (line.allows(id)) best = max(best, ranked_logit(line.logits[id], id));
    });
    best = detail::largest_of_warp(best);
    auto& mail = next_mail();
    if (lane < blocks) detail::store_remote(&mail.ranked[block() * warps + warp], lane, best);
    exchange();
    best = 0;
    for (int i = lane; i < blocks * warps; i += 32) best = max(best, mail.ranked[i]);
    best = detail::largest_of_warp(best);
    if (best == 0) return {-INFINITY, -1, INT_MAX};
    const int id = id_of_ranked(best);
    if (ranks_nan(best)) return {-INFINITY, -1, id};
    return {float_of_key(static_cast<std::uint32_t>(best >> 32)), id, INT_MAX};
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

  template <class Use>
  __device__ void narrow(const logits_line& line, const sampling_settings& s, const row_distribution& d,
                         bool everywhere, const Use& use) {
    cluster_head<cluster_row_team> head(*this, shared_.head);
    if (!head.find(line, s, d, everywhere)) return use(*this, line);
    if (everywhere || block() == 0) use(inner_, head.entries());
  }

  // what follows is for cluster_head
  __device__ block_row_team& of_block() {
    return inner_;
  }

  __device__ static int first(int vocab_size) {
    return min(block() * share(vocab_size), vocab_size);
  }
  __device__ static int last(int vocab_size) {
    return min((block() + 1) * share(vocab_size), vocab_size);
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

 private:
  /// A set of mail that no block reads any more; written before the next exchange, read after it.
  __device__ storage::letters& next_mail() {
    if (!met_) {
      detail::cluster_wait();  // all blocks are there
      met_ = true;
    }
    turn_ ^= 1;
    return shared_.mail[turn_];
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

  storage& shared_;
  float* part_;
  block_row_team inner_;
  int turn_ = 0;
  bool met_ = false;
};

}  // namespace stepgraph
