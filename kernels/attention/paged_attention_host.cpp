#include "kernels/attention/paged_attention_host.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graphs/thread_pool.hpp"
#include "kernels/attention/token_view.hpp"

namespace stepgraph::detail {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr int chunk = 128;  // positions whose scores are held at once

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
  const std::int64_t capacity = p.page_columns << p.page_shift;
  const int row = p.row_of[token];
  std::int64_t end = p.causal_length[token];
  if (end > capacity || row < 0 || row >= p.rows) {
    p.faults.report(op_id::paged_attention, row, row_status::length_clamped, end);
    end = row < 0 || row >= p.rows ? 0 : capacity;
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
  const std::int32_t* const table = p.page_table + row * p.page_table_stride;
  const std::int64_t in_page = (std::int64_t{1} << p.page_shift) - 1;
  softmax_state<HeadSize> state;
  std::int64_t offset[chunk];  // of each position's key and value, elements
  float score[chunk];
  const int j = p.tree_mask ? token - p.cu_seqlens_q[row] : 0;
  const token_view view = token_view::make(static_cast<std::int32_t>(end) - 1 - j, j, p.window,
                                           p.tree_mask ? p.tree_mask + token : nullptr);
  for (std::int64_t begin = view.begin; begin < end; begin += chunk) {
    int count = 0;
    for (std::int64_t position = begin; position < std::min(end, begin + chunk); ++position) {
      if (p.tree_mask && !view.sees(static_cast<std::int32_t>(position))) continue;
      const std::int64_t page = table[position >> p.page_shift];
      if (page < 0 || (p.cache.pages > 0 && page >= p.cache.pages)) {
        p.faults.report(op_id::paged_attention, row, row_status::slot_out_of_range, page);
        continue;
      }
      offset[count++] = page * p.cache.page_stride + (position & in_page) * p.cache.token_stride +
                        kv_head * p.cache.head_stride;
    }
    float largest = state.largest;
    for (int i = 0; i < count; ++i) {
      const T* const key = static_cast<const T*>(p.cache.keys) + offset[i];
      // note: 16 partial sums, so that the compiler may use whole vectors without reordering a sum
      float partial[16] = {};
      for (int d = 0; d < HeadSize; d += 16)
        for (int lane = 0; lane < 16; ++lane) partial[lane] += query[d + lane] * to_float(key[d + lane]);
      float sum = 0.0f;
      for (float part : partial) sum += part;
      score[i] = p.logit_cap > 0 ? p.logit_cap * std::tanh(sum / p.logit_cap) : sum;
      largest = std::max(largest, score[i]);
    }
    state.rescale(largest);
    for (int i = 0; i < count; ++i) {
      const T* const value = static_cast<const T*>(p.cache.values) + offset[i];
      const float weight = std::exp(score[i] - state.largest);
      state.sum += weight;
      for (int d = 0; d < HeadSize; ++d) state.weighted[d] += weight * to_float(value[d]);
    }
  }
  if (p.sink) {
    state.rescale(p.sink[head]);
    state.sum += std::exp(p.sink[head] - state.largest);
  }
  const float inverse = state.sum > 0 ? 1.0f / state.sum : 0.0f;
  for (int d = 0; d < HeadSize; ++d) output[d] = from_float<T>(state.weighted[d] * inverse);
  if (p.log_sum_exp) p.log_sum_exp[at] = state.sum > 0 ? state.largest + std::log(state.sum) : minus_infinity;
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
