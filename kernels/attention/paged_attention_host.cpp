#include "kernels/attention/paged_attention_host.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graphs/thread_pool.hpp"
#include "kernels/attention/row_pages.hpp"
#include "kernels/attention/token_view.hpp"
#include "kernels/target_clones.hpp"

namespace stepgraph::detail {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr int chunk = 128;  // positions whose scores are held at once

/// sums[i] = query . keys[i], each as 16 partial sums, so that whole vectors serve without reordering a sum.
template <class T>
STEPGRAPH_INLINE void multiply_keys(const float* query, const T* const* keys, int count, int head_size,
                                    float* sums) {
  for (int i = 0; i < count; ++i) {
    float partial[16] = {};
    for (int d = 0; d < head_size; d += 16) {
      for (int lane = 0; lane < 16; ++lane) partial[lane] += query[d + lane] * to_float(keys[i][d + lane]);
    }
    float sum = 0.0f;
    for (float part : partial) sum += part;
    sums[i] = sum;
  }
}

/// weighted[d] += weights[i] * values[i][d], in the order of i.
template <class T>
STEPGRAPH_INLINE void add_values(const float* weights, const T* const* values, int count, int head_size,
                                 float* weighted) {
  for (int d = 0; d < head_size; d += 64) {
    float sum[64];
    for (int lane = 0; lane < 64; ++lane) sum[lane] = weighted[d + lane];
    for (int i = 0; i < count; ++i) {
      for (int lane = 0; lane < 64; ++lane) sum[lane] += weights[i] * to_float(values[i][d + lane]);
    }
    for (int lane = 0; lane < 64; ++lane) weighted[d + lane] = sum[lane];
  }
}

// float32 is what the host's models are in
STEPGRAPH_TARGET_CLONES void multiply_keys_of(const float* query, const float* const* keys, int count,
                                              int head_size, float* sums) {
  multiply_keys(query, keys, count, head_size, sums);
}
STEPGRAPH_TARGET_CLONES void add_values_of(const float* weights, const float* const* values, int count,
                                           int head_size, float* weighted) {
  add_values(weights, values, count, head_size, weighted);
}
template <class T>
void multiply_keys_of(const float* query, const T* const* keys, int count, int head_size, float* sums) {
  multiply_keys(query, keys, count, head_size, sums);
}
template <class T>
void add_values_of(const float* weights, const T* const* values, int count, int head_size, float* weighted) {
  add_values(weights, values, count, head_size, weighted);
}

/// Running softmax of one query head.
template <int HeadSize>
struct softmax_state {
  float largest = minus_infinity;
  float sum = 0.0f;
  float weighted[HeadSize] = {};

  void rescale(float largest_now) {
    if (largest_now <= largest) return;
    const float factor = std::exp(largest - largest_now);  // 0 at first
    sum *= factor;
    for (int d = 0; d < HeadSize; ++d) weighted[d] *= factor;
    largest = largest_now;
  }
};

template <class T, int HeadSize>
void attend(const paged_attention_params& p, int token, int head) {
  const std::size_t at = (static_cast<std::size_t>(token) * p.heads + head);
  T* const output = static_cast<T*>(p.output) + at * HeadSize;
  const int row = p.row_of[token];
  const bool has_row = row >= 0 && row < p.rows;
  const row_pages pages = row_pages::of(p, has_row ? row : 0);
  const int j = has_row && (p.tree_mask || p.step_kv.keys) ? token - p.cu_seqlens_q[row] : 0;
  const std::int64_t capacity = pages.capacity + (p.step_kv.keys ? j + 1 : 0);
  std::int64_t end = p.causal_length[token];
  if (end > capacity || !has_row) {
    p.faults.report(op_id::paged_attention, row, row_status::length_clamped, end);
    end = has_row ? capacity : 0;
  }
  if (end <= 0) {
    if (guard_off("nan-empty")) return;
    std::fill_n(output, HeadSize, from_float<T>(0.0f));
    if (p.log_sum_exp) p.log_sum_exp[at] = minus_infinity;
    return;
  }
  if (guard_off("nan-tail")) end = pages_of(end, p.page_shift) << p.page_shift;
  float query[HeadSize];
  for (int d = 0; d < HeadSize; ++d)
    query[d] = to_float(static_cast<const T*>(p.query)[at * HeadSize + d]) * p.scale;

  const int kv_head = head / (p.heads / p.kv_heads);
  const std::int64_t in_page = (std::int64_t{1} << p.page_shift) - 1;
  softmax_state<HeadSize> state;
  const T* keys[chunk];
  const T* values[chunk];
  const auto take = [&](int i, const void* all_keys, const void* all_values, std::int64_t offset) {
    keys[i] = static_cast<const T*>(all_keys) + offset;
    values[i] = static_cast<const T*>(all_values) + offset;
  };
  const std::int64_t own_from = p.step_kv.keys ? end - 1 - j : end;
  float score[chunk];
  const token_view view = token_view::make(static_cast<std::int32_t>(end) - 1 - j, j, p.window,
                                           p.tree_mask ? p.tree_mask + token : nullptr);
  for (std::int64_t begin = view.begin; begin < end; begin += chunk) {
    int count = 0;
    for (std::int64_t position = begin; position < std::min(end, begin + chunk); ++position) {
      if (p.tree_mask && !view.sees(static_cast<std::int32_t>(position))) continue;
      if (position >= own_from) {
        take(count++, p.step_kv.keys, p.step_kv.values,
             (token - j + position - own_from) * p.step_kv.token_stride + kv_head * p.step_kv.head_stride);
        continue;
      }
      const std::int64_t page = pages.entries[position >> p.page_shift];
      if (page < 0 || (p.cache.pages > 0 && page >= p.cache.pages)) {
        p.faults.report(op_id::paged_attention, row, row_status::slot_out_of_range, page);
        continue;
      }
      take(count++, p.cache.keys, p.cache.values,
           page * p.cache.page_stride + (position & in_page) * p.cache.token_stride +
               kv_head * p.cache.head_stride);
    }
    multiply_keys_of(query, keys, count, HeadSize, score);
    float largest = state.largest;
    for (int i = 0; i < count; ++i) {
      if (p.logit_cap > 0) score[i] = p.logit_cap * std::tanh(score[i] / p.logit_cap);
      largest = std::max(largest, score[i]);
    }
    state.rescale(largest);
    for (int i = 0; i < count; ++i) {
      score[i] = std::exp(score[i] - state.largest);
      state.sum += score[i];
    }
    add_values_of(score, values, count, HeadSize, state.weighted);
  }
  if (p.sink) {
    state.rescale(p.sink[head]);
    state.sum += std::exp(p.sink[head] - state.largest);
  }
  const float inverse = state.sum != 0 ? 1.0f / state.sum : 0.0f;
  for (int d = 0; d < HeadSize; ++d) output[d] = from_float<T>(state.weighted[d] * inverse);
  if (p.log_sum_exp)
    p.log_sum_exp[at] = state.sum != 0 ? state.largest + std::log(state.sum) : minus_infinity;
}

template <class T>
void run(const paged_attention_params& p) {
  thread_pool::shared().parallel_for(
      static_cast<std::int64_t>(p.tokens) * p.heads, 1, [&p](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const int token = static_cast<int>(i / p.heads), head = static_cast<int>(i % p.heads);
          if (p.head_size == 64)
            attend<T, 64>(p, token, head);
          else
            attend<T, 128>(p, token, head);
        }
      });
}

}  // namespace

void paged_attention_host(const paged_attention_params& params) {
  switch (params.type) {
    case element_type::f32:
      return run<float>(params);
    case element_type::f16:
      return run<f16>(params);
    case element_type::bf16:
      return run<bf16>(params);
  }
}

}  // namespace stepgraph::detail
