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

template <reuse again>
using combine = combine_top_k_and_window_op_of<again>;

template <class Op, int threads, int blocks, class Params>
void lines(stream_ref at, const Params& p) {
  launch_lines_shaped<Op, threads, blocks>(at, Op{p});
}

}  // namespace

const std::vector<kernel_variant<get_k_and_s_params>>& gather_variants() {
  static const std::vector<kernel_variant<get_k_and_s_params>> all = {
      {"tile driver",
       [](stream_ref at, const get_k_and_s_params& p) { launch_tiles_cuda(at, tiled_gather{p}); }},
      {"128 threads, 2 pieces, 16 blocks", gather<128, 2, 16>},
      {"128 threads, 4 pieces, 6 blocks", gather<128, 4, 6>},
      {"128 threads, 4 pieces, 8 blocks", gather<128, 4, 8>},
      {"128 threads, 4 pieces, 12 blocks", gather<128, 4, 12>},
      {"128 threads, 8 pieces, 4 blocks", gather<128, 8, 4>},
      {"128 threads, 8 pieces, 6 blocks", gather<128, 8, 6>},
      {"64 threads, 4 pieces, 16 blocks", gather<64, 4, 16>},
      {"64 threads, 8 pieces, 10 blocks", gather<64, 8, 10>},
      {"256 threads, 4 pieces, 4 blocks", gather<256, 4, 4>},
      {"256 threads, 4 pieces, 5 blocks", gather<256, 4, 5>},
      {"256 threads, 8 pieces, 2 blocks", gather<256, 8, 2>},
      {"256 threads, 8 pieces, 3 blocks", gather<256, 8, 3>},
      {"128 threads, 4 pieces, 8 blocks, loads not kept", gather<128, 4, 8, reuse::stored>},
      {"128 threads, 4 pieces, 8 blocks, stores not kept", gather<128, 4, 8, reuse::loaded>},
      {"128 threads, 4 pieces, 8 blocks, neither kept", gather<128, 4, 8, reuse::neither>},
  };
  return all;
}

const std::vector<kernel_variant<top_k_to_slots_params>>& top_k_variants() {
  static const std::vector<kernel_variant<top_k_to_slots_params>> all = {
      {"parts of 128, 64 threads, 24 blocks", lines<top_k_to_slots_op_of<128>, 64, 24>},
      {"parts of 256, 64 threads, 24 blocks", lines<top_k_to_slots_op_of<256>, 64, 24>},
      {"parts of 256, 128 threads, 16 blocks", lines<top_k_to_slots_op_of<256>, 128, 16>},
      {"parts of 512, 128 threads, 8 blocks", lines<top_k_to_slots_op_of<512>, 128, 8>},
      {"parts of 512, 128 threads, 16 blocks", lines<top_k_to_slots_op_of<512>, 128, 16>},
      {"parts of 512, 256 threads, 4 blocks", lines<top_k_to_slots_op_of<512>, 256, 4>},
      {"parts of 512, 512 threads, 4 blocks", lines<top_k_to_slots_op_of<512>, 512, 4>},
      {"parts of 1024, 256 threads, 8 blocks", lines<top_k_to_slots_op_of<1024>, 256, 8>},
      {"parts of 1024, 512 threads, 4 blocks", lines<top_k_to_slots_op_of<1024>, 512, 4>},
      {"parts of 2048, 1024 threads, 2 blocks", lines<top_k_to_slots_op_of<2048>, 1024, 2>},
  };
  return all;
}

const std::vector<kernel_variant<combine_top_k_and_window_params>>& combine_variants() {
  static const std::vector<kernel_variant<combine_top_k_and_window_params>> all = {
      {"32 threads, 32 blocks", lines<combine<reuse::both>, 32, 32>},
      {"64 threads, 24 blocks", lines<combine<reuse::both>, 64, 24>},
      {"128 threads, 8 blocks", lines<combine<reuse::both>, 128, 8>},
      {"128 threads, 12 blocks", lines<combine<reuse::both>, 128, 12>},
      {"256 threads, 8 blocks", lines<combine<reuse::both>, 256, 8>},
      {"128 threads, 32 blocks", lines<combine<reuse::both>, 128, 32>},
      {"128 threads, 16 blocks, loads not kept", lines<combine<reuse::stored>, 128, 16>},
      {"128 threads, 16 blocks, stores not kept", lines<combine<reuse::loaded>, 128, 16>},
      {"128 threads, 16 blocks, neither kept", lines<combine<reuse::neither>, 128, 16>},
  };
  return all;
}

}  // namespace stepgraph::bench
