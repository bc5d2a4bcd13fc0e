#include "runtime/executor_checks.hpp"

#include <algorithm>
#include <bit>

#include "graphs/error.hpp"
#include "graphs/guard_off.hpp"
#include "graphs/memory_resource.hpp"
#include "kernels/check_aligned.hpp"

namespace stepgraph::detail {
namespace {

void check_layout(const char* name, const kv_layout& layout) {
  constexpr int most = 1 << 16;
  const auto fits = [](int number) { return number > 0 && number <= most; };
  STEPGRAPH_EXPECTS(fits(layout.layers) && fits(layout.kv_heads) && fits(layout.head_size), name,
                    ": layers, kv_heads and head_size must be in [1, ", most, "], got ", layout.layers, ", ",
                    layout.kv_heads, " and ", layout.head_size);
}

void check(const step_limits& limits, const kv_layout& layout) {
  STEPGRAPH_EXPECTS(limits.max_rows > 0, "step_limits: max_rows must be positive, got ", limits.max_rows);
  STEPGRAPH_EXPECTS(limits.max_step_tokens > 0, "step_limits: max_step_tokens must be positive, got ",
                    limits.max_step_tokens);
  STEPGRAPH_EXPECTS(limits.max_requests > 0, "step_limits: max_requests must be positive, got ",
                    limits.max_requests);
  STEPGRAPH_EXPECTS(limits.max_context > 0 && limits.max_context <= INT32_MAX,
                    "step_limits: max_context must be in [1, 2^31), got ", limits.max_context);
  STEPGRAPH_EXPECTS(limits.page_size > 0 && std::has_single_bit(static_cast<unsigned>(limits.page_size)) &&
                        limits.page_size <= 1024,
                    "step_limits: page_size must be a power of two from 1 to 1024, got ", limits.page_size);
  STEPGRAPH_EXPECTS(limits.kv_pages >= 0, "step_limits: kv_pages must not be negative, got ",
                    limits.kv_pages);
  STEPGRAPH_EXPECTS(limits.max_draft_tokens >= 0 && limits.max_draft_tokens < 64,
                    "step_limits: max_draft_tokens must be in [0, 63], got ", limits.max_draft_tokens);
  STEPGRAPH_EXPECTS(limits.max_context <= INT32_MAX / limits.max_rows, "step_limits: ", limits.max_rows,
                    " rows of ", limits.max_context, " tokens overflow the int32 prefix sums cu_seqlens_k");
  STEPGRAPH_EXPECTS(limits.vocab_size > 0, "step_limits: vocab_size must be positive, got ",
                    limits.vocab_size);
  STEPGRAPH_EXPECTS(limits.hidden_size >= 0 && limits.hidden_size <= 1 << 20,
                    "step_limits: hidden_size must be in [0, 2^20], got ", limits.hidden_size);
  STEPGRAPH_EXPECTS(limits.in_flight > 0, "step_limits: in_flight must be positive, got ", limits.in_flight);
  check_layout("kv_layout", layout);
}

/// Refuses memory that the device's work cannot reach. note: the driver is asked here, once, not in every launch
void check_reachable(device where, std::initializer_list<named_pointer> pointers) {
  for (const named_pointer& each : pointers) {
    if (!each.pointer || guard_off("dtype")) continue;
    const std::string found = foreign_memory(where, each.pointer);
    STEPGRAPH_EXPECTS(found.empty(), "step_executor: ", each.name, " is ", found, ", not of ", where.name());
  }
}

/// Refuses what is adopted unless it fits the limits.
void check(device where, const step_limits& limits, const kv_layout& layout,
           const executor_options& options) {
  if (guard_off("key")) return;
  const int page_shift = std::countr_zero(static_cast<unsigned>(limits.page_size));
  if (options.stream)
    STEPGRAPH_EXPECTS(options.stream->where() == where, "step_executor: the adopted stream is on ",
                      options.stream->where().name(), ", not on ", where.name());
  if (options.memory)
    STEPGRAPH_EXPECTS(options.memory->where() == where, "step_executor: the adopted memory is on ",
                      options.memory->where().name(), ", not on ", where.name());
  if (options.kv_cache) {
    const kv_cache_view& kv = *options.kv_cache;
    STEPGRAPH_EXPECTS(kv.page_size == limits.page_size, "step_executor: the adopted KV cache has pages of ",
                      kv.page_size, " tokens, not of ", limits.page_size);
    STEPGRAPH_EXPECTS(static_cast<int>(kv.layers.size()) == layout.layers && kv.layout.type == layout.type &&
                          kv.layout.kv_heads == layout.kv_heads && kv.layout.head_size == layout.head_size,
                      "step_executor: the adopted KV cache has ", kv.layers.size(), " layers of ",
                      kv.layout.kv_heads, " x ", kv.layout.head_size, " ", to_string(kv.layout.type),
                      ", not ", layout.layers, " of ", layout.kv_heads, " x ", layout.head_size, " ",
                      to_string(layout.type));
  }
  if (options.kv_cache)
    for (const kv_pages_view& layer : options.kv_cache->layers)
      STEPGRAPH_EXPECTS(
          layer.keys && layer.values && layer.pages > 0 &&
              layer.pages == options.kv_cache->layers.front().pages &&
              (limits.kv_pages == 0 || limits.kv_pages == layer.pages),
          "step_executor: every layer of the adopted KV cache must have keys, values and the same ",
          "number of pages, and kv_pages be that or 0; got ", layer.pages, " pages in a layer, ",
          options.kv_cache->layers.front().pages, " in the first, kv_pages ", limits.kv_pages);
  if (options.kv_cache)
    for (const kv_pages_view& layer : options.kv_cache->layers)
      detail::check_aligned(
          "step_executor", 16,
          {{"options.kv_cache.keys", layer.keys}, {"options.kv_cache.values", layer.values}});
  if (options.kv_cache)
    for (const kv_pages_view& layer : options.kv_cache->layers)
      check_reachable(where,
                      {{"options.kv_cache.keys", layer.keys}, {"options.kv_cache.values", layer.values}});
  if (options.requests) {
    const page_source& source = options.requests->source;
    STEPGRAPH_EXPECTS(source.requests > 0 && source.row_stride >= source.columns,
                      "step_executor: the adopted request table has ", source.requests,
                      " requests and rows of ", source.columns, " columns ", source.row_stride, " apart");
    detail::check_pointers("step_executor", {{"options.requests.source.table", source.table},
                                             {"options.requests.seq_lens", options.requests->seq_lens},
                                             {"options.requests.last_token", options.requests->last_token}});
    check_reachable(where, {{"options.requests.source.table", source.table},
                            {"options.requests.seq_lens", options.requests->seq_lens},
                            {"options.requests.last_token", options.requests->last_token},
                            {"options.requests.sampling", options.requests->sampling}});
    STEPGRAPH_EXPECTS(source.page_shift == page_shift,
                      "step_executor: the adopted request table has pages of 2^", source.page_shift,
                      " tokens, not of ", limits.page_size);
    STEPGRAPH_EXPECTS(source.token_columns() >= limits.max_context,
                      "step_executor: the adopted request table names ", source.token_columns(),
                      " tokens a request, max_context is ", limits.max_context);
  }
  STEPGRAPH_EXPECTS(!options.row_buckets || options.row_buckets->largest() >= limits.max_rows,
                    "step_executor: the largest row bucket must hold max_rows ", limits.max_rows);
  STEPGRAPH_EXPECTS(!options.token_buckets || options.token_buckets->largest() >= limits.max_step_tokens,
                    "step_executor: the largest token bucket must hold max_step_tokens ",
                    limits.max_step_tokens);
}

void check_steps(const std::vector<step_definition>& steps) {
  STEPGRAPH_EXPECTS(!steps.empty(), "step_executor: no steps were defined");
  for (const step_definition& step : steps) {
    STEPGRAPH_EXPECTS(step.body, "step_executor: the ", to_string(step.kind), " step, variant ", step.variant,
                      ", has no body");
    STEPGRAPH_EXPECTS(std::ranges::count_if(steps,
                                            [&](const step_definition& other) {
                                              return other.kind == step.kind && other.variant == step.variant;
                                            }) == 1,
                      "step_executor: two steps of kind ", to_string(step.kind), ", variant ", step.variant);
    STEPGRAPH_EXPECTS(!step.tree || step.kind == step_kind::target_verify, "step_executor: the ",
                      to_string(step.kind), " step, variant ", step.variant,
                      ", has trees; only verify steps can");
  }
}

/// The draft must speak the target's tokens and be fed the target's states.
void check_draft(device where, const step_limits& limits, const std::vector<step_definition>& steps,
                 const executor_options& options) {
  for (const step_definition& step : steps)
    STEPGRAPH_EXPECTS(options.draft || !is_draft(step.kind), "step_executor: there is a ",
                      to_string(step.kind), " step but no draft among the options");
  for (const int length : options.draft_lengths)
    STEPGRAPH_EXPECTS(length >= 0 && length <= limits.max_draft_tokens, "step_executor: a draft length of ",
                      length, " is over max_draft_tokens ", limits.max_draft_tokens);
  if (!options.draft) return;
  const draft_shape& draft = *options.draft;
  STEPGRAPH_EXPECTS(limits.max_draft_tokens > 0, "step_executor: a draft needs max_draft_tokens over 0");
  STEPGRAPH_EXPECTS(draft.hidden_size > 0 && draft.hidden_size == limits.hidden_size,
                    "step_executor: the draft is fed states of ", draft.hidden_size,
                    " numbers, the target's have ", limits.hidden_size);
  STEPGRAPH_EXPECTS((draft.target_ids == nullptr) == (draft.draft_ids == nullptr),
                    "step_executor: the draft has one map of its vocabulary and not the other");
  STEPGRAPH_EXPECTS(draft.vocab_size > 0 && draft.vocab_size <= limits.vocab_size &&
                        (draft.target_ids || draft.vocab_size == limits.vocab_size),
                    "step_executor: the draft has a vocabulary of ", draft.vocab_size, ", the target of ",
                    limits.vocab_size, draft.target_ids ? "" : ", and there are no maps between them");
  check_layout("draft_shape", draft.layout);
  check_reachable(
      where, {{"options.draft.target_ids", draft.target_ids}, {"options.draft.draft_ids", draft.draft_ids}});
}

}  // namespace

void check_executor(device where, const step_limits& limits, const kv_layout& layout,
                    const std::vector<step_definition>& steps, const executor_options& options) {
  check(limits, layout);
  check_steps(steps);
  check_draft(where, limits, steps, options);
  check(where, limits, layout, options);
}

}  // namespace stepgraph::detail
