#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/step_executor.hpp"

namespace stepgraph {

/// A "model" for the host backend whose next token follows from every token before it, which it keeps in the KV
/// cache and reads back through the page table: a wrong length, page or slot shows in the text.
struct history_model {
  static constexpr int vocab = 13;
  static constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

  /// What comes after `history`.
  static std::int32_t next(std::span<const std::int32_t> history) {
    std::uint32_t mixed = 2166136261u;
    for (const std::int32_t token : history)
      mixed = (mixed ^ static_cast<std::uint32_t>(token + 1)) * 16777619u;
    return static_cast<std::int32_t>((mixed >> 8) % vocab);
  }

  static std::vector<step_definition> steps() {
    std::vector<step_definition> all;
    for (const step_kind kind : {step_kind::decode, step_kind::extend, step_kind::target_verify})
      all.push_back({.kind = kind, .variant = 0, .body = body, .scratch_bytes = {}});
    return all;
  }

  static void body(const step_context& step) {
    enqueue_host(step.stream, "history_model", [step, kv = step.kv->layers.front()] {
      const std::int32_t live_tokens = step.cu_seqlens_q[step.key.rows];
      const auto cell = [&](std::int64_t slot) {
        const std::int64_t page = slot >> step.page_shift, in_page = slot & ((1 << step.page_shift) - 1);
        return static_cast<float*>(const_cast<void*>(kv.keys)) + page * kv.page_stride +
               in_page * kv.token_stride;
      };
      for (int t = 0; t < live_tokens; ++t)
        *cell(step.out_cache_loc[t]) = static_cast<float>(step.token_ids[t]);
      std::vector<std::int32_t> history;
      for (int t = 0; t < live_tokens; ++t) {
        const int row = step.row_of[t];
        history.clear();
        for (int position = 0; position < step.causal_length[t]; ++position) {
          const std::int64_t page =
              step.page_table[row * step.page_table_stride + (position >> step.page_shift)];
          const std::int64_t slot = (page << step.page_shift) + (position & ((1 << step.page_shift) - 1));
          history.push_back(static_cast<std::int32_t>(*cell(slot)));
        }
        const std::int32_t token = next(history);
        if (step.key.kind == step_kind::target_verify)
          step.argmax[t] = token;
        else if (t == step.last_row[row])
          step.next_token[step.out_line ? step.out_line[row] : row] = token;
      }
    });
  }
};

}  // namespace stepgraph
