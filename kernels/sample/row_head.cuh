#pragma once

#include "kernels/sample/cluster.cuh"
#include "kernels/sample/row_team.cuh"

namespace stepgraph {

constexpr int row_cluster_blocks = 8;

/// A head of a line's ranking that holds all that top-k and top-p may leave, found and gathered by the blocks of a
/// cluster, if that is few. The ranking is cut by histograms of the distance from the largest logit: at the first
/// bin by which the head is sure to hold top_k entries, or a probability of top_p by what its bins weigh at least
/// and the others at most. Where that bin alone holds too many, it is divided. So the head is a little more than
/// what stays; what exactly stays is then found among its entries.
template <class Team>
class cluster_head {
  static constexpr int blocks = row_cluster_blocks, threads = row_team_threads;
  static constexpr int bins = 256, most_few = 1024;
  using scan_count = cub::BlockScan<int, threads, cub::BLOCK_SCAN_WARP_SCANS>;

  /// A head of the ranking, cut at a distance from the largest logit; and what is known of the entries around it.
  struct head_cut {
    std::uint32_t limit;  // bits of the distance: entries below it are in the head
    int count;            // entries of the head
    int bin;              // the last one in the head, at this level
    int count_before;     // entries before that bin
    double least_before;  // of their weight, at least
    double most_after;    // weight of the entries after that bin, at most
    double most_of_all;   // of all entries
  };

 public:
  struct storage {
    typename scan_count::TempStorage count;
    std::uint32_t counts[2][blocks][bins];  // at levels in turn
    std::uint32_t counted[bins];            // of this block, then of all
    int before[blocks];                     // entries of each block in the head
    head_cut cut;
    std::uint64_t elsewhere[blocks];  // mass of each block's other entries
    float logits[most_few];
    std::int32_t ids[most_few];
  };

  __device__ cluster_head(Team& team, storage& shared) : team_(team), shared_(shared) {}

  /// Gathers the head, into every block or into the first; false if it is not few.
  __device__ bool find(const logits_line& line, const sampling_settings& s, const row_distribution& d,
                       bool everywhere) {
    const bool by_count = s.top_k > 0 && s.top_k < line.vocab_size;
    if (!by_count && !(s.top_p < 1.0f)) return false;
    const int top_k = by_count ? s.top_k : 0;
    std::uint32_t base = 0;
    for (int level = 0;; ++level) {
      count_bins(line, d, level, base);
      if (threadIdx.x < 32) find_last_bin(level, base, top_k, s.top_p, d.inverse_temperature);
      __syncthreads();
      const head_cut& cut = shared_.cut;
      const bool few = cut.count <= most_few;
      // a bin without an end, or as narrow as a bin may be, is not divided
      if (!few && (level + 1 == levels || (level == 0 && (cut.bin == 0 || cut.bin == bins - 1))))
        return false;
      count_head(level, few ? cut.bin : cut.bin - 1);
      if (few) break;
      base = bin_begin(level, base, cut.bin);
    }
    gather(line, d, !by_count, everywhere ? blocks : 1);
    masses_ = !by_count;
    return true;
  }

  /// What was gathered, ids ascending.
  __device__ logits_line entries() const {
    logits_line head{shared_.logits, nullptr, shared_.cut.count, shared_.ids};
    // of a line cut by top-k nothing else counts
    for (int i = 0; masses_ && i < blocks; ++i) head.mass_elsewhere += shared_.elsewhere[i];
    return head;
  }

 private:
  /// The distance from the largest logit as a float's bits, which have its order.
  __device__ static std::uint32_t distance_bits(float logit, float max_logit) {
    return __float_as_uint(logit == max_logit ? 0.0f : max_logit - logit);
  }

  // bins of the distance: at level 0 eight an octave from 2^-16 to 2^16, the first and the last bin without end;
  // at each further level a bin of the level before in equal parts
  static constexpr int levels = 3, level_bits = 8;
  static constexpr std::uint32_t first_bits = (127 - 16) << 23;
  __device__ static int shift_of(int level) { return 20 - level_bits * level; }
  /// Bin of a distance, -1 for one that is in none of this level.
  __device__ static int bin_of(int level, std::uint32_t base, std::uint32_t bits) {
    if (level == 0) {
      const int bin = static_cast<int>(bits >> shift_of(0)) - static_cast<int>(first_bits >> shift_of(0));
      return min(max(bin, 0), bins - 1);
    }
    const std::uint32_t bin = (bits - base) >> shift_of(level);
    return bits >= base && bin < bins ? static_cast<int>(bin) : -1;
  }
  /// Bits of the least distance of a bin.
  __device__ static std::uint32_t bin_begin(int level, std::uint32_t base, int bin) {
    if (level > 0) return base + (static_cast<std::uint32_t>(bin) << shift_of(level));
    constexpr std::uint32_t no_end = 0xffffffffu;
    return bin <= 0      ? 0
           : bin >= bins ? no_end
                         : first_bits + (static_cast<std::uint32_t>(bin) << shift_of(0));
  }
  __device__ static double weight_at(std::uint32_t bits, float inverse_temperature) {
    constexpr std::uint32_t infinite = 0x7f800000u;
    return bits >= infinite ? 0.0 : static_cast<double>(expf(-__uint_as_float(bits) * inverse_temperature));
  }

  __device__ void count_bins(const logits_line& line, const row_distribution& d, int level,
                             std::uint32_t base) {
    for (int bin = threadIdx.x; bin < bins; bin += threads) shared_.counted[bin] = 0;
    __syncthreads();
    team_.for_each(line.vocab_size, [&](int id) {
      if (!line.allows(id)) return;
      const int bin = bin_of(level, base, distance_bits(line.logits[id], d.max_logit));
      if (bin >= 0) atomicAdd(&shared_.counted[bin], 1u);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < bins * blocks; i += threads)
      detail::store_remote(&shared_.counts[level % 2][Team::block()][i % bins], i / bins,
                           shared_.counted[i % bins]);
    team_.exchange();
    // of this block no more, but of all
    for (int bin = threadIdx.x; bin < bins; bin += threads) {
      std::uint32_t all = 0;
      for (int b = 0; b < blocks; ++b) all += shared_.counts[level % 2][b][bin];
      shared_.counted[bin] = all;
    }
    __syncthreads();
  }

  // by one warp: the first bin at which the head is sure to hold `top_k` entries or, where that is 0, a
  // probability of `top_p`
  __device__ void find_last_bin(int level, std::uint32_t base, int top_k, float top_p,
                                float inverse_temperature) {
    constexpr int each = bins / 32;
    const int lane = threadIdx.x % 32;
    const head_cut outer = level > 0 ? shared_.cut : head_cut{};
    const auto count_of = [&](int bin) { return static_cast<int>(shared_.counted[bin]); };
    // a bin's entries weigh at least what its far end weighs, at most what its near end does; where entries are
    // counted it does not matter
    const auto weight_from = [&](int bin) {
      return top_k > 0 ? 0.0 : weight_at(bin_begin(level, base, bin), inverse_temperature);
    };
    int counts = 0;
    double leasts = 0, mosts = 0;
    for (int bin = lane * each; bin < (lane + 1) * each; ++bin) {
      const int count = count_of(bin);
      counts += count;
      leasts += count * weight_from(bin + 1);
      mosts += count * weight_from(bin);
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
    const int all = outer.count_before + __shfl_sync(~0u, count_before, 31);
    const double most_here = __shfl_sync(~0u, most_before, 31);
    const double most_of_all = level > 0 ? outer.most_of_all : most_here;
    count_before += outer.count_before - counts;
    least_before += outer.least_before - leasts;
    most_before -= mosts;
    head_cut found{.limit = bin_begin(level, base, bins), .count = all, .bin = -1};
    for (int bin = lane * each; bin < (lane + 1) * each && found.bin < 0; ++bin) {
      const int count = count_of(bin), next_count = count_before + count;
      const double next_least = least_before + count * weight_from(bin + 1);
      most_before += count * weight_from(bin);
      const double after = most_here - most_before > 0 ? most_here - most_before : 0.0;
      const double most_after = outer.most_after + after;
      // note: the margin covers the rounding of all that is added up
      const bool enough = top_k > 0 ? next_count >= top_k
                                    : next_least * (1.0 - top_p) - most_after * top_p > 1e-5 * most_of_all;
      if (enough)
        found = {bin_begin(level, base, bin + 1),
                 next_count,
                 bin,
                 count_before,
                 least_before,
                 most_after,
                 most_of_all};
      count_before = next_count;
      least_before = next_least;
    }
    const unsigned over = __ballot_sync(~0u, found.bin >= 0);
    if (lane != (over ? __ffs(over) - 1 : 0)) return;
    if (!over) found.bin = bins - 1;  // the head is all there is
    shared_.cut = found;
  }

  /// Adds the entries up to the bin to what each block has of the head.
  __device__ void count_head(int level, int last_bin) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp >= blocks) return;
    unsigned sum = 0;
    for (int bin = lane; bin <= last_bin; bin += 32) sum += shared_.counts[level % 2][warp][bin];
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) shared_.before[warp] = static_cast<int>(sum) + (level > 0 ? shared_.before[warp] : 0);
  }

  /// The entries of the head into the first `copies` blocks; and the mass of the others.
  __device__ void gather(const logits_line& line, const row_distribution& d, bool masses, int copies) {
    const std::uint32_t limit = shared_.cut.limit;
    const int each = (Team::share(line.vocab_size) + threads - 1) / threads;
    const int from =
        min(Team::first(line.vocab_size) + static_cast<int>(threadIdx.x) * each, Team::last(line.vocab_size));
    const int to = min(from + each, Team::last(line.vocab_size));
    int mine = 0;
    std::uint64_t elsewhere = 0;
    for (int id = from; id < to; ++id) {
      if (!line.allows(id)) continue;
      const float logit = line.logits[id];
      if (distance_bits(logit, d.max_logit) < limit)
        ++mine;
      else if (masses)
        elsewhere += d.mass(logit);
    }
    int place;
    scan_count(shared_.count).ExclusiveSum(mine, place);
    __syncthreads();
    for (int b = 0; b < Team::block(); ++b) place += shared_.before[b];
    for (int id = from; mine > 0 && id < to; ++id) {
      if (!line.allows(id)) continue;
      const float logit = line.logits[id];
      if (distance_bits(logit, d.max_logit) >= limit) continue;
      for (int b = 0; b < copies; ++b) {
        detail::store_remote(&shared_.logits[place], b, logit);
        detail::store_remote(&shared_.ids[place], b, id);
      }
      ++place;
      --mine;
    }
    if (masses) {
      elsewhere = team_.of_block().reduce_to_first(elsewhere);
      if (threadIdx.x == 0)
        for (int b = 0; b < copies; ++b)
          detail::store_remote(&shared_.elsewhere[Team::block()], b, elsewhere);
    }
    team_.exchange();
  }

  Team& team_;
  storage& shared_;
  bool masses_ = false;
};

}  // namespace stepgraph
