#include "runtime/step_buffers.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "graphs/guard_off.hpp"

namespace stepgraph::detail {
namespace {

/// A plan whose parts, once allocated, are put where they belong.
class bound_plan {
 public:
  explicit bound_plan(std::size_t gap) : plan_(gap) {}

  template <class T>
  void add(T*& pointer, const char* name, std::size_t count) {
    const auto part = plan_.add<T>(name, count);
    bindings_.push_back(
        [&pointer, part](const arena& made) { pointer = part.count > 0 ? made.view(part).data() : nullptr; });
  }

  void add(step_vectors& vectors, const char* const (&names)[11], std::size_t rows, std::size_t tokens) {
    std::int32_t** const parts[] = {&vectors.query_counts,  &vectors.seq_lens,     &vectors.cu_seqlens_q,
                                    &vectors.cu_seqlens_k,  &vectors.last_row,     &vectors.cache_seqlens,
                                    &vectors.token_ids,     &vectors.row_of,       &vectors.positions,
                                    &vectors.causal_length, &vectors.out_cache_loc};
    for (int i = 0; i < 11; ++i) add(*parts[i], names[i], i < 6 ? rows : tokens);
  }

  const arena_plan& plan() const { return plan_; }

  arena make(memory_resource& memory) {
    arena made(std::move(plan_), memory);
    for (const auto& bind : bindings_) bind(made);
    return made;
  }

 private:
  arena_plan plan_;
  std::vector<std::function<void(const arena&)>> bindings_;
};

constexpr const char* target_names[11] = {"query_counts", "seq_lens",      "cu_seqlens_q", "cu_seqlens_k",
                                          "last_row",     "cache_seqlens", "token_ids",    "row_of",
                                          "positions",    "causal_length", "out_cache_loc"};
constexpr const char* draft_names[11] = {"draft_query_counts",  "draft_seq_lens",     "draft_cu_seqlens_q",
                                         "draft_cu_seqlens_k",  "draft_last_row",     "draft_cache_seqlens",
                                         "draft_token_ids",     "draft_row_of",       "draft_positions",
                                         "draft_causal_length", "draft_out_cache_loc"};

/// Elements between lines of the page tables: each begins at 16 bytes.
std::int64_t page_stride_of(const buffer_sizes& sizes) {
  return (sizes.page_columns + 3) / 4 * 4;
}

/// The round's own block. Returns where its undefined part ends.
std::size_t plan_step(bound_plan& plan, const buffer_sizes& sizes, step_buffers& buffers,
                      std::byte*& scratch) {
  const std::size_t rows = sizes.rows, tokens = sizes.tokens, requests = sizes.requests;
  const std::size_t drafts = sizes.emitted - 1, hidden = sizes.hidden_size;
  const bool draft = hidden > 0;
  plan.add(buffers.live_rows, "live_rows", 1);
  plan.add(buffers.requests, "requests", rows);
  plan.add(buffers.row_status, "row_status", rows);
  plan.add(buffers.next_token, "next_token", rows);
  plan.add(buffers.target, target_names, rows + 1, tokens);
  plan.add(buffers.argmax, "argmax", tokens);
  plan.add(buffers.ranked, "ranked_argmax", std::max(rows, tokens));
  accept_result& accepted = buffers.accepted;
  plan.add(accepted.accept_count, "accept_count", rows);
  plan.add(accepted.emit_count, "emit_count", rows);
  plan.add(accepted.cache_advance, "cache_advance", rows);
  plan.add(accepted.emit_tokens, "emit_tokens", rows * (sizes.emitted - (guard_off("sizing") ? 1 : 0)));
  plan.add(accepted.path, "path", rows * sizes.emitted);
  plan.add(buffers.wanted, "wanted", rows);
  plan.add(buffers.drafts, "drafts", rows * drafts);
  plan.add(buffers.draft_lines, "draft_lines", sizes.draft_vocab > 0 ? rows * drafts : 0);
  plan.add(buffers.row_parents, "row_parents", sizes.trees ? rows * sizes.emitted : 0);
  plan.add(buffers.parents, "parents", sizes.trees ? tokens : 0);
  plan.add(buffers.ancestors, "ancestors", sizes.trees ? tokens : 0);
  plan.add(buffers.distributions, "distributions", sizes.sampled ? tokens : 0);
  plan.add(buffers.hidden, "hidden", tokens * hidden);
  plan.add(buffers.page_table, "page_table", rows * static_cast<std::size_t>(page_stride_of(sizes)));
  plan.add(scratch, "scratch", sizes.scratch_bytes);
  const std::size_t by_step = (rows + 1) * std::max<std::size_t>(drafts, 1);
  plan.add(buffers.draft, draft_names, draft ? by_step : 0, draft ? std::max(tokens, by_step) : 0);
  plan.add(buffers.hidden_row, "draft_hidden_row", draft ? tokens : 0);
  plan.add(buffers.out_line, "draft_out_line", draft ? rows : 0);
  plan.add(buffers.drafting, "draft_drafting", draft ? rows : 0);
  plan.add(buffers.chain, "draft_chain", draft ? by_step : 0);
  plan.add(buffers.feed, "draft_feed", draft ? by_step : 0);
  plan.add(buffers.chain_drawn, "draft_chain_drawn", sizes.draft_vocab > 0 ? 1 : 0);
  plan.add(buffers.ranked_chain, "draft_ranked_chain", draft ? by_step : 0);
  for (float*& each : buffers.chain_hidden) plan.add(each, "draft_chain_hidden", rows * hidden);
  const std::size_t undefined_end = plan.plan().bytes();

  plan.add(buffers.staging, "staging", staging_layout{sizes.rows, sizes.tokens, sizes.trees}.bytes());
  buffers.probability_lines = static_cast<std::int32_t>(requests + 1 + rows * (drafts > 1 ? drafts - 1 : 0));
  plan.add(buffers.probabilities, "draft_probabilities",
           std::size_t(buffers.probability_lines) * sizes.draft_vocab);
  return undefined_end;
}

/// What lives as long as the executor.
void plan_lasting(bound_plan& plan, const kv_layout& layout, std::size_t kv_bytes, std::size_t draft_bytes,
                  const buffer_sizes& sizes, step_buffers& buffers, std::byte*& kv, std::byte*& draft_kv) {
  const std::size_t requests = sizes.requests, hidden = sizes.hidden_size;
  plan.add(buffers.fault_taken, "fault_taken", 1);
  plan.add(buffers.end_ids, "end_ids", sizes.end_ids);
  plan.add(buffers.planes, "kv_planes", sizes.trees ? 2ul * layout.layers : 0);
  plan.add(buffers.first_hidden, "draft_first_hidden", (requests + 1) * hidden);
  request_state& state = buffers.state;
  state = {};
  if (sizes.own_requests) {
    state.page_stride = page_stride_of(sizes);
    state.page_columns = static_cast<std::int32_t>(sizes.page_columns);
    plan.add(state.pages, "request_pages", requests * static_cast<std::size_t>(state.page_stride));
    plan.add(state.seq_lens, "request_seq_lens", requests);
    plan.add(state.last_token, "request_last_token", requests);
    plan.add(state.sampling, "request_sampling", sizes.sampled ? requests : 0);
  }
  state.requests = sizes.requests;
  plan.add(state.token_capacity, "request_capacity", requests);
  plan.add(state.finished, "request_finished", sizes.finishes ? requests : 0);
  plan.add(state.budget, "request_budget", sizes.finishes ? requests : 0);
  plan.add(state.first_draft, "request_first_draft", hidden > 0 ? requests + 1 : 0);
  plan.add(state.first_ranked, "request_first_ranked", hidden > 0 ? requests + 1 : 0);
  plan.add(state.first_drawn, "request_first_drawn", sizes.draft_vocab > 0 ? requests + 1 : 0);
  plan.add(buffers.live_pages, "live_pages", sizes.poison_requests ? requests : 0);
  plan.add(buffers.live_tokens, "page_live_tokens", sizes.poison_kv ? sizes.kv_pages : 0);
  plan.add(kv, "kv_cache", kv_bytes);
  plan.add(draft_kv, "draft_kv_cache", draft_bytes);
}

/// Both blocks, counted.
struct both_plans {
  both_plans(const kv_layout& layout, const kv_layout* draft_layout, int page_size, const buffer_sizes& sizes,
             step_buffers& buffers)
      : lasting(sizes.gap),
        step(sizes.gap),
        kv_bytes(sizes.own_kv ? kv_cache_bytes(layout, page_size, sizes.kv_pages) : 0),
        draft_bytes(sizes.hidden_size > 0 ? kv_cache_bytes(*draft_layout, page_size, sizes.kv_pages) : 0) {
    plan_lasting(lasting, layout, kv_bytes, draft_bytes, sizes, buffers, kv, draft_kv);
    undefined_end = plan_step(step, sizes, buffers, scratch);
  }
  both_plans(const both_plans&) = delete;  // the plans know where `kv` and the others lie
  both_plans& operator=(const both_plans&) = delete;

  arena_plan all() const {
    arena_plan both = step.plan();
    both.append(lasting.plan());
    return both;
  }

  bound_plan lasting, step;
  std::size_t kv_bytes, draft_bytes, undefined_end;
  std::byte *kv = nullptr, *draft_kv = nullptr, *scratch = nullptr;
};

/// The step's block, once its memory is there.
arena make_step(bound_plan& plan, std::size_t undefined_end, const buffer_sizes& sizes,
                memory_resource& memory, step_buffers& buffers, std::byte* const& scratch) {
  arena made = plan.make(memory);
  buffers.page_columns = sizes.page_columns;
  buffers.page_table_stride = page_stride_of(sizes);
  buffers.accepted.next_token = buffers.next_token;
  buffers.accepted.stride = sizes.emitted;
  buffers.scratch = {scratch, sizes.scratch_bytes};
  buffers.undefined = {made.data(), undefined_end};
  return made;
}

}  // namespace

arena_plan plan_blocks(const kv_layout& layout, const kv_layout* draft_layout, int page_size,
                       const buffer_sizes& sizes) {
  step_buffers unused{};
  return both_plans(layout, draft_layout, page_size, sizes, unused).all();
}

blocks carve(const kv_layout& layout, const kv_layout* draft_layout, int page_size, const buffer_sizes& sizes,
             memory_resource& memory, std::size_t budget, step_buffers& buffers) {
  both_plans plans(layout, draft_layout, page_size, sizes, buffers);
  require_memory(plans.all(), memory, budget);
  blocks made;
  made.lasting = plans.lasting.make(memory);
  if (sizes.own_kv) buffers.kv = make_kv_cache(layout, page_size, sizes.kv_pages, {plans.kv, plans.kv_bytes});
  if (plans.draft_bytes > 0)
    buffers.draft_kv =
        make_kv_cache(*draft_layout, page_size, sizes.kv_pages, {plans.draft_kv, plans.draft_bytes});
  made.step = make_step(plans.step, plans.undefined_end, sizes, memory, buffers, plans.scratch);
  return made;
}

arena carve_step(const buffer_sizes& sizes, memory_resource& memory, std::size_t budget,
                 step_buffers& buffers) {
  bound_plan step(sizes.gap);
  std::byte* scratch = nullptr;
  const std::size_t undefined_end = plan_step(step, sizes, buffers, scratch);
  require_memory(step.plan(), memory, budget);
  return make_step(step, undefined_end, sizes, memory, buffers, scratch);
}

}  // namespace stepgraph::detail
