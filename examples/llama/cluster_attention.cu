#include "examples/llama/cluster_attention.hpp"

#include <algorithm>

#include "examples/llama/successor.cuh"
#include "graphs/error.hpp"
#include "kernels/attention/mma.cuh"
#include "kernels/launch.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define STEPGRAPH_CLUSTER(blocks)  // never launched there
#else
#define STEPGRAPH_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#endif

namespace stepgraph::llama {
namespace {

using namespace stepgraph::detail;  // the instructions

constexpr int threads = 128, warps = 4;
constexpr int tile_tokens = 64;  // keys and values of a stage; a warp takes 16
constexpr int max_cluster = 8;
constexpr std::uint32_t nowhere = ~0u;  // of shared memory

template <int HeadSize>
constexpr int stages = HeadSize == 64 ? 4 : 3;

template <int HeadSize, int QueryTiles>
constexpr int shared_bytes = stages<HeadSize> * 2 * tile_tokens* HeadSize * 2 +  // keys and values
                             warps * 16 * QueryTiles* HeadSize * 4 +    // what blocks send each other
                             warps* max_cluster * 16 * QueryTiles * 8;  // largest logits and sums

__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

/// Says that this block is there, no more.
__device__ __forceinline__ void cluster_greet() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Stores into the shared memory of block `rank` of the cluster, where it lies as `to` does here.
__device__ __forceinline__ void store_remote(float2* to, int rank, float2 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.v2.f32 [at], {%2, %3}; }" ::
          "r"(shared_address(to)),
      "r"(rank), "f"(value.x), "f"(value.y)
      : "memory");
#endif
}

/// A piece of a line lies elsewhere in each of eight lines, so that they are in different banks.
__device__ __forceinline__ int swizzled(int piece, int line) {
  return piece ^ (line & 7);
}

/// A fault is rare and its report long: kept out of straight code.
__device__ __noinline__ void report(const fault_sink& faults, int row, row_status status,
                                    std::int64_t value) {
  faults.report(op_id::paged_attention, row, status, value);
}

struct row_shape {
  int first_token, tokens, length;
  __device__ int base() const { return length - tokens; }
};

__device__ row_shape shape_of(const paged_attention_params& p, int row) {
  const int begin = __ldcg(p.cu_seqlens_q + row), end = __ldcg(p.cu_seqlens_q + row + 1);
  const int length = __ldcg(p.cache_seqlens + row);
  const std::int64_t capacity = p.page_columns << p.page_shift;
  row_shape shape;
  shape.first_token = min(max(begin, 0), p.tokens);
  shape.tokens = min(max(end, shape.first_token), p.tokens) - shape.first_token;
  shape.length = static_cast<int>(min(std::int64_t{max(length, 0)}, capacity));
  if (shape.tokens > 0 && shape.length != length && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    report(p.faults, row, row_status::length_clamped, length);
  return shape;
}

/// Brings a row's keys and values, tile by tile, into shared memory. A thread has the same 16-byte piece of several
/// tokens of each tile.
template <int HeadSize>
struct tile_loader {
  static constexpr int pieces = HeadSize / 8, pass_tokens = threads / pieces,
                       passes = tile_tokens / pass_tokens;
  static constexpr int line_bytes = HeadSize * 2, keys_bytes = tile_tokens * line_bytes;
  const paged_attention_params& p;
  const std::int32_t* table;
  int row, length, token, piece;
  std::int64_t head_offset;
  std::uint32_t ring;

  __device__ tile_loader(const paged_attention_params& params, int row, int length, std::uint32_t ring)
      : p(params),
        table(params.page_table + row * params.page_table_stride),
        row(row),
        length(length),
        token(threadIdx.x / pieces),
        piece(threadIdx.x % pieces),
        head_offset(blockIdx.y * params.cache.head_stride + piece * 8),
        ring(ring) {}

  __device__ void look_up(int tile, std::int32_t (&pages)[passes]) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int position = tile * tile_tokens + pass * pass_tokens + token;
      pages[pass] = position < length ? __ldcg(table + (position >> p.page_shift)) : 0;
    }
  }

  /// Element of the pool where this thread's piece of `position` lies, negative if nowhere.
  __device__ std::int64_t place(int position, std::int32_t page) const {
    if (page < 0 || (p.cache.pages > 0 && page >= p.cache.pages)) {
      if (piece == 0) report(p.faults, row, row_status::slot_out_of_range, page);
      return -1;
    }
    const int in_page = position & ((1 << p.page_shift) - 1);
    return page * p.cache.page_stride + in_page * p.cache.token_stride + head_offset;
  }

  __device__ std::uint32_t target(int stage, int line) const {
    return ring + stage * 2 * keys_bytes + line * line_bytes + swizzled(piece, line) * 16;
  }

  __device__ void copy(std::uint32_t to, std::int64_t from) const {
    copy_async(to, static_cast<const bf16*>(p.cache.keys) + max(from, std::int64_t{0}), from >= 0);
    copy_async(to + keys_bytes, static_cast<const bf16*>(p.cache.values) + max(from, std::int64_t{0}),
               from >= 0);
  }

  /// Starts the copies of a tile's positions before `end`; zeros for those past the row.
  __device__ void start(int tile, int stage, const std::int32_t (&pages)[passes], int end) const {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int line = pass * pass_tokens + token, position = tile * tile_tokens + line;
      if (position < end || position >= length)
        copy(target(stage, line), position < end ? place(position, pages[pass]) : -1);
    }
  }
};

/// A warp's 16 query rows against its 16 keys of each tile, in tensor-core layout.
template <int HeadSize>
struct query_tile {
  static constexpr int line_bytes = HeadSize * 2;
  std::uint32_t query[HeadSize / 16][4];
  float weighted[HeadSize / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  int end[2];  // positions that the thread's two rows see

  __device__ void load(const paged_attention_params& p, const row_shape& shape, int first_line) {
    const int lane = threadIdx.x % 32, group = p.heads / p.kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = first_line + half * 8 + lane / 4, j = line / group;
      const bool there = j < shape.tokens;
      end[half] = there ? shape.base() + j + 1 : 0;
      const bf16* const from =
          static_cast<const bf16*>(p.query) +
          (std::int64_t{shape.first_token + (there ? j : 0)} * p.heads + blockIdx.y * group + line % group) *
              HeadSize +
          lane % 4 * 2;
#pragma unroll
      for (int step = 0; step < HeadSize / 16; ++step) {
        query[step][half] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16) : 0;
        query[step][half + 2] = there ? *reinterpret_cast<const std::uint32_t*>(from + step * 16 + 8) : 0;
      }
    }
  }

  /// `keys`: shared address of the warp's 16 lines; `first`: position of the first of them.
  __device__ void attend(std::uint32_t keys, std::uint32_t values, int first, float scale) {
    const int lane = threadIdx.x % 32;
    float scores[2][4] = {};
    const std::uint32_t key_line = keys + (lane / 16 * 8 + lane % 8) * line_bytes;
#pragma unroll
    for (int step = 0; step < HeadSize / 16; ++step) {
      std::uint32_t b[4];
      load_matrices(b, key_line + swizzled(step * 2 + lane / 8 % 2, lane) * 16);
      multiply_add<bf16>(scores[0], query[step], b[0], b[1]);
      multiply_add<bf16>(scores[1], query[step], b[2], b[3]);
    }
    float now[2] = {largest[0], largest[1]}, factor[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool seen = first + n * 8 + lane % 4 * 2 + e % 2 < end[e / 2];
        scores[n][e] = seen ? scores[n][e] * scale : -INFINITY;
        now[e / 2] = fmaxf(now[e / 2], scores[n][e]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 1));
      now[half] = fmaxf(now[half], __shfl_xor_sync(~0u, now[half], 2));
      const float from = now[half] == -INFINITY ? 0.0f : now[half];
      factor[half] = exp2_fast(largest[half] - from);
      largest[half] = now[half];
      now[half] = from;
      sum[half] *= factor[half];
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = exp2_fast(scores[n][e] - now[e / 2]);
        sum[e / 2] += scores[n][e];
      }
    const std::uint32_t a[4] = {
        pack<bf16>(scores[0][0], scores[0][1]), pack<bf16>(scores[0][2], scores[0][3]),
        pack<bf16>(scores[1][0], scores[1][1]), pack<bf16>(scores[1][2], scores[1][3])};
    const std::uint32_t value_line = values + (lane / 8 % 2 * 8 + lane % 8) * line_bytes;
#pragma unroll
    for (int n = 0; n < HeadSize / 16; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, value_line + swizzled(n * 2 + lane / 16, lane) * 16);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        float(&c)[4] = weighted[2 * n + tile];
#pragma unroll
        for (int e = 0; e < 4; ++e) c[e] *= factor[e / 2];
        multiply_add<bf16>(c, a, b[2 * tile], b[2 * tile + 1]);
      }
    }
  }
};

// grid: blocks of a cluster, KV heads, captured rows
// the blocks of a cluster take tiles of 64 tokens of a row in turn, for the query heads of one KV head and all tokens of the row;
// each sends every other its share of the weighted values' columns, and each writes its columns of the output
template <int HeadSize, int QueryTiles, int Cluster>
__global__ void __launch_bounds__(threads) STEPGRAPH_CLUSTER(Cluster)
    cluster_attention_kernel(const __grid_constant__ paged_attention_params p) {
  constexpr int ring_stages = stages<HeadSize>, lines = 16 * QueryTiles, sources = warps * Cluster;
  constexpr int columns = HeadSize / Cluster;  // of the output that a block writes
  using loader_type = tile_loader<HeadSize>;
  extern __shared__ __align__(128) unsigned char shared[];
  float2* const sent = reinterpret_cast<float2*>(shared + ring_stages * 2 * loader_type::keys_bytes);
  float2* const softmaxes = sent + warps * lines * HeadSize / 2;  // [lines, sources] largest, sum
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x, row = blockIdx.z;
  allow_successor();
  const row_shape shape = shape_of(p, row);
  if (shape.tokens <= 0) {
    wait_for_predecessor();
    return;
  }
  if (Cluster > 1) cluster_greet();
  const int tiles = (shape.length + tile_tokens - 1) / tile_tokens;
  const int count = rank < tiles ? (tiles - rank + Cluster - 1) / Cluster : 0;
  const loader_type loader(p, row, shape.length, shared_address(shared));
  const int base = max(shape.base(), 0);

  // what earlier steps have written
  std::int32_t next_pages[loader_type::passes];
  const auto tile_of = [&](int i) { return i < count ? rank + i * Cluster : tiles; };
  loader.look_up(tile_of(0), next_pages);
#pragma unroll 1
  for (int i = 0; i < ring_stages; ++i) {
    std::int32_t pages[loader_type::passes];
#pragma unroll
    for (int pass = 0; pass < loader_type::passes; ++pass) pages[pass] = next_pages[pass];
    loader.look_up(tile_of(i + 1), next_pages);
    if (i < count) loader.start(tile_of(i), i, pages, base);
    commit_copies();
  }
  // this step's tokens, as far as they lie in the same tiles
  constexpr int new_passes = lines / loader_type::pass_tokens;
  std::int64_t new_from[new_passes];
  std::uint32_t new_to[new_passes];
#pragma unroll
  for (int pass = 0; pass < new_passes; ++pass) {
    const int position = base + pass * loader_type::pass_tokens + loader.token, tile = position / tile_tokens;
    const int i = tile / Cluster;
    const bool mine = position < shape.length && tile % Cluster == rank && i < ring_stages;
    new_to[pass] = mine ? loader.target(i, position % tile_tokens) : nowhere;
    new_from[pass] = mine ? loader.place(position, __ldcg(loader.table + (position >> p.page_shift))) : -1;
  }
  wait_for_predecessor();
#pragma unroll
  for (int pass = 0; pass < new_passes; ++pass)
    if (new_to[pass] != nowhere) loader.copy(new_to[pass], new_from[pass]);
  commit_copies();

  query_tile<HeadSize> attention[QueryTiles];
#pragma unroll
  for (int q = 0; q < QueryTiles; ++q) attention[q].load(p, shape, q * 16);
  const float scale = p.scale * 1.4426950408889634f;
  int stage = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const int tile = rank + i * Cluster;
    if (i < ring_stages && (tile + 1) * tile_tokens > base)
      wait_copies<0>();
    else if (i == 0)
      wait_copies<ring_stages>();
    else if (i < ring_stages)
      wait_copies<ring_stages - 1>();
    else
      wait_copies<ring_stages - 2>();
    __syncthreads();  // all copies of this tile are there, and nobody reads the stage before it any more
    if (i > 0) {
      const int ahead = i - 1 + ring_stages;
      if (ahead < count)
        loader.start(tile_of(ahead), stage == 0 ? ring_stages - 1 : stage - 1, next_pages, shape.length);
      commit_copies();
      loader.look_up(tile_of(ahead + 1), next_pages);
    }
    const std::uint32_t keys =
        loader.ring + stage * 2 * loader_type::keys_bytes + warp * 16 * loader_type::line_bytes;
#pragma unroll
    for (int q = 0; q < QueryTiles; ++q)
      attention[q].attend(keys, keys + loader_type::keys_bytes, tile * tile_tokens + warp * 16, scale);
    stage = stage + 1 == ring_stages ? 0 : stage + 1;
  }
  wait_copies<0>();

  // every block gets its columns of all warps' sums
  if (Cluster > 1) cluster_wait();
  const int group = p.heads / p.kv_heads, live_lines = shape.tokens * group, source = rank * warps + warp;
#pragma unroll
  for (int q = 0; q < QueryTiles; ++q)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = attention[q].sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int line = q * 16 + half * 8 + lane / 4;
      if (line >= live_lines) continue;
      if (count > 0)
#pragma unroll
        for (int n = 0; n < HeadSize / 8; ++n) {
          const int column = n * 8 % columns + lane % 4 * 2, to = n * 8 / columns;
          float2* const at = sent + ((source * lines + line) * columns + column) / 2;
          const float2 value{attention[q].weighted[n][2 * half], attention[q].weighted[n][2 * half + 1]};
          if (Cluster > 1)
            store_remote(at, to, value);
          else
            *at = value;
        }
      for (int to = lane % 4; to < Cluster; to += 4) {
        float2* const at = softmaxes + line * sources + source;
        if (Cluster > 1)
          store_remote(at, to, {attention[q].largest[half], sum});
        else
          *at = {attention[q].largest[half], sum};
      }
    }
  if (Cluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }

  for (int line = warp; line < live_lines; line += warps) {
    float2 mine = lane < sources ? softmaxes[line * sources + lane] : float2{-INFINITY, 0.0f};
    float most = mine.x;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    const float weight = mine.x == -INFINITY ? 0.0f : exp2_fast(mine.x - most);
    float total = weight * mine.y;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
    const float factor = total > 0.0f ? __fdividef(1.0f, total) : 0.0f;
    const int token = shape.first_token + line / group, head = blockIdx.y * group + line % group;
    bf16* const to =
        static_cast<bf16*>(p.output) + (std::int64_t{token} * p.heads + head) * HeadSize + rank * columns;
    // eight lanes have a column each, of a quarter of the sources
#pragma unroll
    for (int first = 0; first < columns; first += 8) {
      float value = 0.0f;
#pragma unroll
      for (int i = 0; i < Cluster; ++i) {
        const int from = lane / 8 * Cluster + i;
        const float share = __shfl_sync(~0u, weight, from);
        const float part =
            reinterpret_cast<const float*>(sent)[(from * lines + line) * columns + first + lane % 8];
        value += share > 0.0f ? share * part : 0.0f;
      }
      value += __shfl_xor_sync(~0u, value, 8);
      value += __shfl_xor_sync(~0u, value, 16);
      if (lane < 8) to[first + lane] = from_float<bf16>(value * factor);
    }
  }
}

int query_tiles(const paged_attention_params& p, int row_tokens) {
  return (row_tokens * (p.heads / std::max(p.kv_heads, 1)) + 15) / 16;
}

/// Blocks that share a row's KV head: as many as keep the GPU's multiprocessors at one or two each.
int cluster_of(int multiprocessors, const paged_attention_params& p) {
  const int units = p.rows * p.kv_heads;
  int cluster = max_cluster;
  while (cluster > 1 && units * cluster > 2 * multiprocessors) cluster /= 2;
  return cluster;
}

int attribute(device where, cudaDeviceAttr which) {
  int value = 0;
  STEPGRAPH_CUDA_TRY(cudaDeviceGetAttribute(&value, which, where.ordinal()));
  return value;
}

template <int HeadSize, int QueryTiles, int Cluster>
void launch_cluster(stream_ref at, const paged_attention_params& p) {
  const auto kernel = cluster_attention_kernel<HeadSize, QueryTiles, Cluster>;
  constexpr int bytes = shared_bytes<HeadSize, QueryTiles>;
  STEPGRAPH_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch<paged_attention_params>(at, "cluster_attention", kernel, dim3(Cluster, p.kv_heads, p.rows),
                                 dim3(threads), p, bytes);
}

template <int HeadSize, int QueryTiles>
void launch_tiles(stream_ref at, const paged_attention_params& p, int cluster) {
  if (cluster == 8) return launch_cluster<HeadSize, QueryTiles, 8>(at, p);
  if (cluster == 4) return launch_cluster<HeadSize, QueryTiles, 4>(at, p);
  if (cluster == 2) return launch_cluster<HeadSize, QueryTiles, 2>(at, p);
  launch_cluster<HeadSize, QueryTiles, 1>(at, p);
}

}  // namespace

bool has_cluster_attention(device where, const paged_attention_params& p, int row_tokens) {
  if (where.is_host() || p.type != element_type::bf16 || (p.head_size != 64 && p.head_size != 128) ||
      p.tree_mask || p.logit_cap > 0 || p.window > 0 || p.sink || p.log_sum_exp ||
      query_tiles(p, row_tokens) > 2)
    return false;
  if (attribute(where, cudaDevAttrComputeCapabilityMajor) < 9) return false;
  const int multiprocessors = attribute(where, cudaDevAttrMultiProcessorCount);
  const int cluster = cluster_of(multiprocessors, p);
  // note: a row's tiles are not shared further, so many long rows of different lengths are split_attention's
  return p.rows * p.kv_heads * cluster <= 2 * multiprocessors &&
         (cluster == max_cluster || (p.page_columns << p.page_shift) <= std::int64_t{2048} * cluster);
}

void cluster_attention(stream_ref at, const paged_attention_params& p, int row_tokens) {
  STEPGRAPH_EXPECTS(has_cluster_attention(at.where(), p, row_tokens) && p.cu_seqlens_q && p.cache_seqlens,
                    "cluster_attention: a step of ", p.rows, " rows of up to ", row_tokens,
                    " tokens that it does not serve");
  const int cluster = cluster_of(attribute(at.where(), cudaDevAttrMultiProcessorCount), p);
  const bool one = query_tiles(p, row_tokens) <= 1;
  if (p.head_size == 64)
    one ? launch_tiles<64, 1>(at, p, cluster) : launch_tiles<64, 2>(at, p, cluster);
  else
    one ? launch_tiles<128, 1>(at, p, cluster) : launch_tiles<128, 2>(at, p, cluster);
}

}  // namespace stepgraph::llama
