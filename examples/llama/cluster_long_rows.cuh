#pragma once

#include "examples/llama/cluster_merge.cuh"
#include "examples/llama/cluster_tile.cuh"

/// Long rows: their tiles are shared evenly by all blocks, whatever rows those have of their own.
namespace stepgraph::llama::detail {

struct cluster_params {
  paged_attention_params op;
  bool merge_first;        // the warps of a block before the blocks of a cluster
  int long_tiles;          // a row of more tiles is long
  float* partials;         // [groups, KV heads, 2, lines, head size] values, then [lines] log2 sums
  std::int32_t* counters;  // [groups, KV heads], zero between launches
};

/// Floats of what a block leaves of a row that others have a share of.
template <int HeadSize, int QueryTiles>
constexpr int partial_floats = 16 * QueryTiles*(HeadSize + 1);

/// Most rows of a launch.
constexpr int cluster_rows = 256;

inline __device__ int tiles_of(int length) {
  return (length + tile_tokens - 1) / tile_tokens;
}

/// Whether some row is long. Reads what is there before the predecessor ends.
inline __device__ int longest_row(const paged_attention_params& p) {
  int longest = 0, row = threadIdx.x % 32;
  do {
    // note: loads without a condition, so that they go out together with what else is read
    const int at = min(row, p.rows - 1), begin = __ldcg(p.cu_seqlens_q + at),
              end = __ldcg(p.cu_seqlens_q + at + 1), length = __ldcg(p.cache_seqlens + at);
    longest = max(longest, begin < end ? length : 0);
    row += 32;
  } while (row < p.rows);
  return longest;
}

/// Where each row's tiles begin in the concatenation of the long ones'; starts: [rows + 1], in shared memory.
inline __device__ void start_long_rows(const cluster_params& p, std::int32_t* starts) {
  const int lane = threadIdx.x % 32, each = (p.op.rows + 31) / 32, first = min(lane * each, p.op.rows),
            last = min(first + each, p.op.rows);
  const auto cost = [&](int row) {
    const row_shape shape = shape_of(p.op, row);
    const int tiles = shape.tokens > 0 ? tiles_of(shape.length) : 0;
    return tiles > p.long_tiles ? tiles : 0;
  };
  int sum = 0;
  for (int row = first; row < last; ++row) sum += cost(row);
  int before = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(~0u, before, distance);
    if (lane >= distance) before += below;
  }
  if (lane == 31) starts[p.op.rows] = before;
  before -= sum;
  for (int row = first; row < last; ++row) {
    starts[row] = before;
    before += cost(row);
  }
}

/// What a warp has of a run of tiles of a row, into `parts` and `softmaxes` as `merge_lines` wants them.
template <int HeadSize, int QueryTiles>
__device__ void attend_run(const paged_attention_params& p, int row, const row_shape& shape, int first,
                           int last, unsigned char* shared, float2* parts, float2* softmaxes) {
  constexpr int ring_stages = stages<HeadSize>;
  using loader_type = tile_loader<HeadSize>;
  const int warp = threadIdx.x / 32;
  const loader_type loader(p, row, shape.length, shared_address(shared));
  std::int32_t pages[loader_type::passes];
#pragma unroll 1
  for (int i = 0; i < ring_stages; ++i) {
    loader.look_up(first + i, pages);
    if (first + i < last) loader.start(first + i, i, pages, shape.length);
    commit_copies();
  }
  loader.look_up(first + ring_stages, pages);
  query_tile<HeadSize> attention[QueryTiles];
#pragma unroll
  for (int q = 0; q < QueryTiles; ++q) attention[q].load(p, shape, q * 16);
  const float scale = p.scale * 1.4426950408889634f;
  int stage = 0;
#pragma unroll 1
  for (int tile = first; tile < last; ++tile) {
    if (tile == first)
      wait_copies<ring_stages - 1>();
    else
      wait_copies<ring_stages - 2>();
    __syncthreads();  // as in the kernel
    if (tile > first) {
      const int ahead = tile - 1 + ring_stages;
      if (ahead < last) loader.start(ahead, stage == 0 ? ring_stages - 1 : stage - 1, pages, shape.length);
      commit_copies();
      loader.look_up(ahead + 1, pages);
    }
    const std::uint32_t keys =
        loader.ring + stage * 2 * loader_type::keys_bytes + warp * 16 * loader_type::line_bytes;
#pragma unroll
    for (int q = 0; q < QueryTiles; ++q)
      attention[q].attend(keys, keys + loader_type::keys_bytes, tile * tile_tokens + warp * 16, scale);
    stage = stage + 1 == ring_stages ? 0 : stage + 1;
  }
  wait_copies<0>();
  __syncthreads();
  leave_shares(attention, live_lines_of<QueryTiles>(p, shape), parts, softmaxes);
  __syncthreads();
}

/// Puts together what `count` blocks have left of a row, slot(0), slot(1), ...
template <int HeadSize, int QueryTiles, class Slot>
__device__ void merge_blocks(const paged_attention_params& p, const row_shape& shape, int count,
                             const Slot& slot, float2* parts, float2* softmaxes) {
  constexpr int lines = 16 * QueryTiles, line_threads = 8, thread_columns = HeadSize / line_threads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = lane % line_threads;
  const int live_lines = live_lines_of<QueryTiles>(p, shape);
  // a warp takes every fourth block's
#pragma unroll 1
  for (int line = lane / line_threads; line < live_lines; line += 32 / line_threads) {
    float most = -INFINITY, total = 0.0f, value[thread_columns] = {};
#pragma unroll 4
    for (int i = warp; i < count; i += cluster_warps)
      most = fmaxf(most, __ldcg(slot(i) + lines * HeadSize + line));
#pragma unroll 4
    for (int i = warp; i < count; i += cluster_warps) {
      const float* const from = slot(i);
      const float log2_sum = __ldcg(from + lines * HeadSize + line);
      const float weight = log2_sum == -INFINITY ? 0.0f : exp2_fast(log2_sum - most);
      total += weight;
#pragma unroll
      for (int c = 0; c < thread_columns; c += 4) {
        const float4 each =
            __ldcg(reinterpret_cast<const float4*>(from + line * HeadSize + part * thread_columns + c));
        value[c] += weight * each.x;
        value[c + 1] += weight * each.y;
        value[c + 2] += weight * each.z;
        value[c + 3] += weight * each.w;
      }
    }
#pragma unroll
    for (int c = 0; c < thread_columns; c += 2)
      parts[((warp * lines + line) * HeadSize + part * thread_columns + c) / 2] = {value[c], value[c + 1]};
    if (part == 0) softmaxes[line * softmax_pitch<cluster_warps> + warp] = {most, total};
  }
  __syncthreads();
  merge_lines<lines, HeadSize, cluster_warps>(reinterpret_cast<const float*>(parts), softmaxes, live_lines,
                                              [&](int line, int column, const auto& each, float) {
                                                store_line<HeadSize>(p, shape, line, column, each);
                                              });
}

/// A block's share of all long rows. note: out of line, since the kernel's own code must stay short
template <int HeadSize, int QueryTiles>
__device__ __noinline__ void attend_long_rows(const cluster_params& p, unsigned char* shared, float2* parts,
                                              float2* softmaxes) {
  __shared__ std::int32_t starts[cluster_rows + 1];
  __shared__ bool last_here;
  constexpr int lines = 16 * QueryTiles, fewest = 4;  // tiles of a block
  __syncthreads();                                    // what the row's own part has in shared memory is read
  if (threadIdx.x < 32) start_long_rows(p, starts);
  __syncthreads();
  const int kv_heads = p.op.kv_heads, kv_head = blockIdx.y, groups = gridDim.x * gridDim.z,
            group = blockIdx.z * gridDim.x + blockIdx.x;
  const int total = starts[p.op.rows], share = max((total + groups - 1) / groups, fewest);
  const int end = static_cast<int>(min(std::int64_t{group + 1} * share, std::int64_t{total}));
  int at = static_cast<int>(min(std::int64_t{group} * share, std::int64_t{total})), row = 0;
  const auto slot = [&](int of_group, bool begins) {
    return p.partials + ((std::int64_t{of_group} * kv_heads + kv_head) * 2 + begins) *
                            partial_floats<HeadSize, QueryTiles>;
  };
  while (at < end) {
    while (starts[row + 1] <= at) ++row;
    const int row_begin = starts[row], row_end = starts[row + 1], until = min(end, row_end);
    const row_shape shape = shape_of(p.op, row);
    const int live_lines = live_lines_of<QueryTiles>(p.op, shape);
    attend_run<HeadSize, QueryTiles>(p.op, row, shape, at - row_begin, until - row_begin, shared, parts,
                                     softmaxes);
    const auto* const floats = reinterpret_cast<const float*>(parts);
    if (at == row_begin && until == row_end) {
      merge_lines<lines, HeadSize, cluster_warps>(floats, softmaxes, live_lines,
                                                  [&](int line, int column, const auto& value, float) {
                                                    store_line<HeadSize>(p.op, shape, line, column, value);
                                                  });
    } else {
      float* const mine = slot(group, at == row_begin);
      merge_lines<lines, HeadSize, cluster_warps>(
          floats, softmaxes, live_lines, [&](int line, int column, const auto& value, float log2_sum) {
            *reinterpret_cast<float4*>(mine + line * HeadSize + column) = {value[0], value[1], value[2],
                                                                           value[3]};
            if (column == 0) mine[lines * HeadSize + line] = log2_sum;
          });
      __syncthreads();
      const int first_group = row_begin / share, count = (row_end - 1) / share - first_group + 1;
      std::int32_t* const counter = p.counters + first_group * kv_heads + kv_head;
      if (threadIdx.x == 0) {
        last_here = count_arrival(counter) == count - 1;
        if (last_here) *counter = 0;
      }
      __syncthreads();
      if (last_here)
        merge_blocks<HeadSize, QueryTiles>(
            p.op, shape, count, [&](int i) -> const float* { return slot(first_group + i, i == 0); }, parts,
            softmaxes);
    }
    __syncthreads();  // before shared memory is written again
    at = until;
  }
}

}  // namespace stepgraph::llama::detail
