#pragma once

#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <vector>

#include "runtime/choose_tokens.hpp"
#include "runtime/step_executor.hpp"

namespace stepgraph {

/// A "model" for the host backend whose next token follows from the three before it and how many there are. It keeps
/// them in the KV cache and reads them back through the page table, of a tree along the ancestors. Its draft reads the
/// same from a cache of its own and is wrong now and then; what it is fed of the target's states must be those of its
/// positions. Sampled or not there is one token that it may say: all the probability is that one's.
struct recent_model {
  static constexpr int vocab = 13;
  static constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};
  static draft_shape draft() { return {.layout = layout, .hidden_size = 1, .vocab_size = vocab}; }

  int fails_in = 0;           // the body's call of this number from now on fails; then -1. 0: none does
  bool synchronizes = false;  // it fails so, else by throwing
  bool masked = false;        // what it does not say has the larger logits, and only the mask forbids it

  /// What comes after `recent`, the last of `count` tokens.
  static std::int32_t next(std::span<const std::int32_t> recent, std::int64_t count) {
    std::uint32_t mixed = 2166136261u + static_cast<std::uint32_t>(count);
    for (const std::int32_t token : recent.last(std::min<std::size_t>(recent.size(), 3)))
      mixed = (mixed ^ static_cast<std::uint32_t>(token + 1)) * 16777619u;
    return static_cast<std::int32_t>((mixed >> 8) % vocab);
  }
  static std::int32_t next(std::span<const std::int32_t> history) {
    return next(history, static_cast<std::int64_t>(history.size()));
  }

  std::vector<step_definition> steps() {
    std::vector<step_definition> all;
    const auto define = [&](step_kind kind, int variant, bool sampled, bool tree) {
      all.push_back({.kind = kind,
                     .variant = variant,
                     .body = [this](const step_context& step) { body(step); },
                     .scratch_bytes = [](int rows, int tokens) -> std::size_t {
                       return (sizeof(float) * vocab + sizeof(std::uint32_t)) * (rows + tokens);
                     },
                     .sampled = sampled,
                     .tree = tree});
    };
    for (const bool sampled : {false, true}) {
      for (const step_kind kind : {step_kind::decode, step_kind::extend, step_kind::target_verify,
                                   step_kind::draft_extend, step_kind::draft_decode})
        define(kind, sampled, sampled, false);
      define(step_kind::target_verify, 2 + sampled, sampled, true);
    }
    return all;
  }

  void body(const step_context& step) {
    if (fails_in > 0 && --fails_in == 0) {
      fails_in = -1;
      if (!synchronizes) throw std::runtime_error("the body fails");
      step.stream.synchronize();
    }
    auto* const logits = reinterpret_cast<float*>(step.scratch.data());
    auto* const words = masked ? reinterpret_cast<std::uint32_t*>(
                                     logits + std::int64_t{vocab} * (step.key.rows + step.key.tokens))
                               : nullptr;
    enqueue_host(step.stream, "recent_model",
                 [step, logits, words, kv = step.kv->layers.front()] { fill(step, kv, logits, words); });
    choose_tokens(step, {.data = logits,
                         .stride = vocab,
                         .vocab_size = vocab,
                         .allowed = {.words = words, .stride = words ? 1 : 0}});
  }

 private:
  static void fill(const step_context& step, const kv_pages_view& kv, float* logits, std::uint32_t* words) {
    const bool drafting = is_draft(step.key.kind), verify = step.key.kind == step_kind::target_verify;
    const std::int32_t live_tokens = step.cu_seqlens_q[step.key.rows];
    const auto cell = [&](std::int64_t slot) {
      const std::int64_t page = slot >> step.page_shift, in_page = slot & ((1 << step.page_shift) - 1);
      return static_cast<float*>(const_cast<void*>(kv.keys)) + page * kv.page_stride +
             in_page * kv.token_stride;
    };
    const auto token_at = [&](std::int64_t slot) {
      const float value = *cell(slot);  // of a draft that skipped a step anything
      return value >= 0 && value < vocab ? static_cast<std::int32_t>(value) : 0;
    };
    for (int t = 0; t < live_tokens; ++t)
      *cell(step.out_cache_loc[t]) = static_cast<float>(step.token_ids[t]);
    for (int t = 0; t < live_tokens; ++t) {
      const int row = step.row_of[t];
      if (drafting) {
        // the state that comes with a token is the target's at the position before it; a row that the draft was not
        // extended over has an older one, and drafts that are worse
        const float state = step.hidden_in[step.hidden_row[t]];
        const bool known =
            step.query_counts[row] > 0 && (step.key.kind == step_kind::draft_extend || step.draft_step > 1);
        if (known && state != static_cast<float>(step.positions[t])) std::abort();
      } else if (step.hidden) {
        step.hidden[t] = static_cast<float>(step.positions[t]);
      }
      if (!verify && t != step.last_row[row]) continue;
      const int first = step.cu_seqlens_q[row];
      std::vector<std::int32_t> history;
      std::int64_t before = step.causal_length[t];
      if (step.ancestors) before = step.cache_seqlens[row] - (step.cu_seqlens_q[row + 1] - first);
      for (std::int64_t position = 0; position < before; ++position) {
        const std::int64_t page =
            step.page_table[row * step.page_table_stride + (position >> step.page_shift)];
        history.push_back(token_at((page << step.page_shift) + (position & ((1 << step.page_shift) - 1))));
      }
      if (step.ancestors)
        for (int node = 0; first + node <= t; ++node)
          if (step.ancestors[t] >> node & 1) history.push_back(token_at(step.out_cache_loc[first + node]));
      const std::int64_t count = static_cast<std::int64_t>(history.size()) + (drafting ? 1 : 0);
      std::int32_t said = next(history, count);
      if (drafting && count % 4 == 1) said = (said + 1) % vocab;
      float* const line = logits + std::int64_t{verify ? t : row} * vocab;
      // allowed beside it is its neighbour, which is as unlikely as without a mask
      const std::uint32_t allowed = 1u << said | 1u << (said + 1) % vocab;
      for (int id = 0; id < vocab; ++id)
        line[id] = id == said ? 0.0f : words && !(allowed >> id & 1) ? 9.0f : -1e30f;
      if (words) words[verify ? t : row] = allowed;
      if (drafting && step.hidden_out)
        step.hidden_out[step.out_line ? step.out_line[row] : row] = static_cast<float>(step.positions[t] + 1);
    }
  }
};

}  // namespace stepgraph
