#include <algorithm>
#include <cfloat>

#include "kernels/attention/paged_attention_host.hpp"
#include "kernels/attention/row_pages.hpp"
#include "kernels/attention/token_view.hpp"
#include "kernels/launch.cuh"

namespace stepgraph {
namespace {

constexpr int threads = 128;
constexpr int lane_elements = 8;  // of a head that one thread holds

template <class T>
__device__ void load(const T* from, float (&to)[lane_elements]) {
  // note: 16-byte loads; f32 takes two
  constexpr int per_vector = 16 / sizeof(T);
#pragma unroll
  for (int v = 0; v < lane_elements / per_vector; ++v) {
    const uint4 vector = reinterpret_cast<const uint4*>(from)[v];
    const T* parts = reinterpret_cast<const T*>(&vector);
#pragma unroll
    for (int i = 0; i < per_vector; ++i) to[v * per_vector + i] = to_float(parts[i]);
  }
}

// grid: captured tokens x heads
// a block attends one query token with one head: groups of lanes take positions in turn and keep a running
// softmax each, which are merged at the end
template <class T, int HeadSize>
__global__ void __launch_bounds__(threads)
    paged_attention_kernel(const __grid_constant__ paged_attention_params p) {
  constexpr int lanes = HeadSize / lane_elements;  // threads that share a position
  constexpr int groups = threads / lanes;
  __shared__ float group_largest[groups], group_sum[groups];
  __shared__ float group_weighted[groups][HeadSize];
  wait_for_predecessor();

  const int token = blockIdx.x, head = blockIdx.y;
  const std::int64_t at = static_cast<std::int64_t>(token) * p.heads + head;
  T* const output = static_cast<T*>(p.output) + at * HeadSize;
  const int row = p.row_of[token];
  const bool has_row = row >= 0 && row < p.rows;
  const detail::row_pages pages = detail::row_pages::of(p, has_row ? row : 0);
  const int j = has_row && (p.tree_mask || p.step_kv.keys) ? token - p.cu_seqlens_q[row] : 0;
  const std::int64_t capacity = pages.capacity + (p.step_kv.keys ? j + 1 : 0);
  std::int64_t end = p.causal_length[token];
  if (end > capacity || !has_row) {
    if (threadIdx.x == 0) p.faults.report(op_id::paged_attention, row, row_status::length_clamped, end);
    end = has_row ? capacity : 0;
  }
  // dead tokens, and tokens with nothing to see
  if (end <= 0) {
    for (int d = threadIdx.x; d < HeadSize; d += threads) output[d] = from_float<T>(0.0f);
    if (p.log_sum_exp && threadIdx.x == 0) p.log_sum_exp[at] = -INFINITY;
    return;
  }

  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int kv_head = head / (p.heads / p.kv_heads);
  float query[lane_elements], weighted[lane_elements] = {};
  load(static_cast<const T*>(p.query) + at * HeadSize + lane * lane_elements, query);
  float largest = -FLT_MAX, sum = 0.0f;
  const std::int64_t own_from = p.step_kv.keys ? end - 1 - j : end;
  const detail::token_view view = detail::token_view::make(
      static_cast<std::int32_t>(end) - 1 - j, j, p.window, p.tree_mask ? p.tree_mask + token : nullptr);
  // every lane of a warp takes part in the shuffles, so all go round equally often
  for (std::int64_t first = view.begin; first < end; first += groups) {
    const std::int64_t position = first + group;
    bool seen = position < end && view.sees(static_cast<std::int32_t>(position));
    const bool own = position >= own_from;
    std::int64_t offset = 0;
    if (seen && own) {
      offset = (token - j + position - own_from) * p.step_kv.token_stride + kv_head * p.step_kv.head_stride +
               lane * lane_elements;
    } else if (seen) {
      const std::int64_t page = pages.entries[position >> p.page_shift];
      if (page < 0 || (p.cache.pages > 0 && page >= p.cache.pages)) {
        if (lane == 0) p.faults.report(op_id::paged_attention, row, row_status::slot_out_of_range, page);
        seen = false;
      } else {
        offset = page * p.cache.page_stride +
                 (position & ((std::int64_t{1} << p.page_shift) - 1)) * p.cache.token_stride +
                 kv_head * p.cache.head_stride + lane * lane_elements;
      }
    }
    float key[lane_elements] = {}, value[lane_elements] = {};
    if (seen) {
      load(static_cast<const T*>(own ? p.step_kv.keys : p.cache.keys) + offset, key);
      load(static_cast<const T*>(own ? p.step_kv.values : p.cache.values) + offset, value);
    }
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < lane_elements; ++i) score += query[i] * key[i];
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      score += __shfl_xor_sync(~0u, score, distance);
    if (!seen) continue;
    score *= p.scale;
    if (p.logit_cap > 0) score = p.logit_cap * tanhf(score / p.logit_cap);
    if (score > largest) {
      const float factor = expf(largest - score);
      sum *= factor;
#pragma unroll
      for (int i = 0; i < lane_elements; ++i) weighted[i] *= factor;
      largest = score;
    }
    const float weight = expf(score - largest);
    sum += weight;
#pragma unroll
    for (int i = 0; i < lane_elements; ++i) weighted[i] += weight * value[i];
  }

  // merge the groups
  if (lane == 0) {
    group_largest[group] = largest;
    group_sum[group] = sum;
  }
#pragma unroll
  for (int i = 0; i < lane_elements; ++i) group_weighted[group][lane * lane_elements + i] = weighted[i];
  __syncthreads();
  float all_largest = p.sink ? p.sink[head] : -FLT_MAX;
  for (int g = 0; g < groups; ++g)
    if (group_sum[g] > 0) all_largest = fmaxf(all_largest, group_largest[g]);
  float total = p.sink ? expf(p.sink[head] - all_largest) : 0.0f;
  for (int g = 0; g < groups; ++g) total += group_sum[g] * expf(group_largest[g] - all_largest);
  for (int d = threadIdx.x; d < HeadSize; d += threads) {
    float result = 0.0f;
    for (int g = 0; g < groups; ++g) result += group_weighted[g][d] * expf(group_largest[g] - all_largest);
    output[d] = from_float<T>(total == 0 ? 0.0f : result / total);  // a NaN that was seen is shown
  }
  if (p.log_sum_exp && threadIdx.x == 0)
    p.log_sum_exp[at] = total == 0 ? -INFINITY : all_largest + logf(total);
}

template <class T>
void launch_for(stream_ref at, const paged_attention_params& p) {
  const dim3 grid(p.tokens, p.heads);
  const auto kernel = p.head_size == 64 ? paged_attention_kernel<T, 64> : paged_attention_kernel<T, 128>;
  launch<paged_attention_params>(at, "paged_attention", kernel, grid, dim3(threads), p);
}

}  // namespace

void detail::paged_attention_cuda(stream_ref at, const paged_attention_params& params) {
  switch (params.type) {
    case element_type::f32:
      return launch_for<float>(at, params);
    case element_type::f16:
      return launch_for<f16>(at, params);
    case element_type::bf16:
      return launch_for<bf16>(at, params);
  }
}

}  // namespace stepgraph
