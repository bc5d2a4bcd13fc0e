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

template <int threads, int in_flight, int blocks, reuse again = reuse::both>
void gather(stream_ref at, const get_k_and_s_params& p) {
  launch_gather<gather_shape<threads, in_flight, blocks, again>>(at, get_k_and_s_op{p});
}

template <class Op, int threads, int blocks, class Params>
void lines(stream_ref at, const Params& p) {
  launch_lines_shaped<Op, threads, blocks>(at, Op{p});
}

}  // namespace

const std::vector<kernel_variant<get_k_and_s_params>>& gather_variants() {
  static const std::vector<kernel_variant<get_k_and_s_params>> all = {
      {"tile driver",
       [](stream_ref at, const get_k_and_s_params& p) { launch_tiles_cuda(at, tiled_gather{p}); }},
      {"256 threads, 1 piece, 8 blocks", gather<256, 1, 8>},
      {"256 threads, 2 pieces, 4 blocks", gather<256, 2, 4>},
      {"256 threads, 2 pieces, 8 blocks", gather<256, 2, 8>},
      {"256 threads, 4 pieces, 2 blocks", gather<256, 4, 2>},
      {"256 threads, 4 pieces, 4 blocks", gather<256, 4, 4>},
      {"256 threads, 4 pieces, 8 blocks", gather<256, 4, 8>},
      {"256 threads, 8 pieces, 2 blocks", gather<256, 8, 2>},
      {"256 threads, 8 pieces, 4 blocks", gather<256, 8, 4>},
      {"512 threads, 4 pieces, 2 blocks", gather<512, 4, 2>},
      {"512 threads, 2 pieces, 4 blocks", gather<512, 2, 4>},
      {"128 threads, 4 pieces, 8 blocks", gather<128, 4, 8>},
      {"256 threads, 4 pieces, 4 blocks, loads not kept", gather<256, 4, 4, reuse::stored>},
      {"256 threads, 4 pieces, 4 blocks, stores not kept", gather<256, 4, 4, reuse::loaded>},
      {"256 threads, 4 pieces, 4 blocks, neither kept", gather<256, 4, 4, reuse::neither>},
  };
  return all;
}

const std::vector<kernel_variant<top_k_to_slots_params>>& top_k_variants() {
  static const std::vector<kernel_variant<top_k_to_slots_params>> all = {
      {"256 threads, 4 blocks", lines<top_k_to_slots_op, 256, 4>},
      {"512 threads, 2 blocks", lines<top_k_to_slots_op, 512, 2>},
      {"512 threads, 4 blocks", lines<top_k_to_slots_op, 512, 4>},
      {"1024 threads, 2 blocks", lines<top_k_to_slots_op, 1024, 2>},
  };
  return all;
}

const std::vector<kernel_variant<combine_top_k_and_window_params>>& combine_variants() {
  static const std::vector<kernel_variant<combine_top_k_and_window_params>> all = {
      {"32 threads, 32 blocks", lines<combine_top_k_and_window_op, 32, 32>},
      {"64 threads, 24 blocks", lines<combine_top_k_and_window_op, 64, 24>},
      {"128 threads, 4 blocks", lines<combine_top_k_and_window_op, 128, 4>},
      {"128 threads, 12 blocks", lines<combine_top_k_and_window_op, 128, 12>},
      {"128 threads, 16 blocks", lines<combine_top_k_and_window_op, 128, 16>},
      {"256 threads, 4 blocks", lines<combine_top_k_and_window_op, 256, 4>},
      {"256 threads, 8 blocks", lines<combine_top_k_and_window_op, 256, 8>},
  };
  return all;
}

}  // namespace stepgraph::bench
