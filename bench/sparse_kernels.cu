#include "bench/sparse_kernels.hpp"

#include "kernels/sparse/combine_top_k_and_window_op.hpp"
#include "kernels/sparse/index_k_gather.cuh"
#include "kernels/sparse/line_driver.cuh"
#include "kernels/sparse/top_k_to_slots_op.hpp"
#include "kernels/tile_driver.cuh"

namespace stepgraph::bench {
namespace {

/// The same body under the tile driver: a line a row.
struct tiled_gather : get_k_and_s_op {};

template <int threads, int in_flight, int blocks, reuse again = reuse::neither>
void gather(stream_ref at, const get_k_and_s_params& p) {
  launch_gather<gather_shape<threads, in_flight, blocks, again>>(at, get_k_and_s_op{p});
}
template <int megabytes>
void gather_kept(stream_ref at, const get_k_and_s_params& p) {
  auto kept = p;
  kept.kept = (std::int64_t{megabytes} << 20) / index_k_cache::key_bytes;
  get_k_and_s(at, kept);
}

template <int quads, int threads, int blocks>
void combined(stream_ref at, const combine_top_k_and_window_params& p) {
  using op = combine_top_k_and_window_op_of<true, quads>;
  op body = op::with(p);
  body.p.kept = static_cast<std::int32_t>(lines_that_stay(at, std::int64_t{4} * p.padded_width()));
  launch_lines_shaped<op, threads, blocks>(at, body);
}
template <int megabytes>
void combined_kept(stream_ref at, const combine_top_k_and_window_params& p) {
  auto kept = p;
  kept.kept = static_cast<std::int32_t>((std::int64_t{megabytes} << 20) / (4 * p.padded_width()));
  combine_top_k_and_window(at, kept);
}

template <bool shared_lines, int threads, int blocks>
void top_k(stream_ref at, const top_k_to_slots_params& p) {
  if (shared_lines != (p.row_of != nullptr)) return top_k_to_slots(at, p);
  launch_lines_shaped<top_k_to_slots_op_of<shared_lines>, threads, blocks>(
      at, top_k_to_slots_op_of<shared_lines>{p});
}

/// What the launch and its chain of loads cost without the table: slots are the indices.
struct no_table_op : top_k_to_slots_op_of<false> {
  template <class Team>
  STEPGRAPH_HD void line(Team& team, const state&, int token, const place&) const {
    const std::int32_t* const indices =
        static_cast<const std::int32_t*>(p.indices.data) + token * p.index_stride;
    std::int32_t index[5];
    STEPGRAPH_UNROLL
    for (int k = 0; k < 5; ++k)
      index[k] = team.rank() + k * Team::size() < p.topk ? indices[team.rank() + k * Team::size()] : -1;
    STEPGRAPH_UNROLL
    for (int k = 0; k < 5; ++k)
      if (team.rank() + k * Team::size() < p.topk)
        p.slots.line(token)[team.rank() + k * Team::size()] = index[k];
  }
};
void no_table(stream_ref at, const top_k_to_slots_params& p) {
  launch_lines_shaped<no_table_op, 512, 3>(at, no_table_op{{p}});
}

}  // namespace

const std::vector<kernel_variant<get_k_and_s_params>>& gather_variants() {
  static const std::vector<kernel_variant<get_k_and_s_params>> all = {
      {"tile driver",
       [](stream_ref at, const get_k_and_s_params& p) { launch_tiles_cuda(at, tiled_gather{p}); }},
      {"nothing kept", gather_kept<0>},
      {"the first 8 MB kept", gather_kept<8>},
      {"the first 16 MB kept", gather_kept<16>},
      {"the first 32 MB kept", gather_kept<32>},
      {"loads kept", gather<64, 8, 16, reuse::both>},
      {"64 threads, 4 pieces, 16 blocks", gather<64, 4, 16>},
      {"64 threads, 8 pieces, 14 blocks", gather<64, 8, 14>},
      {"64 threads, 8 pieces, 12 blocks", gather<64, 8, 12>},
      {"128 threads, 8 pieces, 8 blocks", gather<128, 8, 8>},
  };
  return all;
}

const std::vector<kernel_variant<top_k_to_slots_params>>& top_k_variants() {
  static const std::vector<kernel_variant<top_k_to_slots_params>> all = {
      {"single entries, 512 threads", top_k<false, 512, 3>},
      {"single entries, 256 threads", top_k<false, 256, 6>},
      {"lines held where short, 512 threads", top_k<true, 512, 3>},
      {"lines held where short, 256 threads", top_k<true, 256, 6>},
      {"lines held where short, 1024 threads", top_k<true, 1024, 2>},
  };
  return all;
}

const std::vector<kernel_variant<combine_top_k_and_window_params>>& combine_variants() {
  static const std::vector<kernel_variant<combine_top_k_and_window_params>> all = {
      {"128 threads, 8 blocks", combined<5, 128, 8>},
      {"64 threads, 32 blocks", combined<5, 64, 32>},
      {"256 threads, 8 blocks", combined<5, 256, 8>},
      {"128 threads, 16 blocks, three accesses", combined<3, 128, 16>},
      {"128 threads, 32 blocks", combined<5, 128, 32>},
      {"nothing kept", combined_kept<0>},
      {"the first 16 MB kept", combined_kept<16>},
      {"the first 28 MB kept", combined_kept<28>},
      {"the first 32 MB kept", combined_kept<32>},
  };
  return all;
}

void top_k_without_table(stream_ref at, const top_k_to_slots_params& p) {
  no_table(at, p);
}

}  // namespace stepgraph::bench
