#include <algorithm>
#include <chrono>

#include "graphs/nvtx.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/step/step_prologue.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

const step_definition& step_executor::state::definition(step_kind kind, int variant) const {
  const auto found = std::ranges::find_if(
      steps, [&](const step_definition& step) { return step.kind == kind && step.variant == variant; });
  STEPGRAPH_EXPECTS(found != steps.end(), "step_executor: no step was defined for kind ", to_string(kind),
                    ", variant ", variant);
  return *found;
}

/// Token buckets that steps of `rows` rows are captured for: no smaller than the rows, no larger than they
/// need.
std::vector<int> step_executor::state::token_sizes(step_kind kind, int rows) const {
  if (!is_ragged(kind)) return {rows};
  const std::int64_t most =
      kind == step_kind::target_verify ? std::int64_t{rows} * (limits.max_draft_tokens + 1) : INT32_MAX;
  std::vector<int> sizes;
  for (const int tokens : token_buckets.sizes()) {
    if (tokens < rows) continue;
    sizes.push_back(tokens);
    if (tokens >= most) break;
  }
  if (sizes.empty()) sizes.push_back(rows);
  return sizes;
}

step_key step_executor::state::key_for(step_kind kind, int rows, int tokens, int variant) const {
  const int bucket = row_buckets.bucket_for(std::max(rows, 1));
  const int wanted = std::max(tokens, bucket);
  if (!is_ragged(kind) || wanted > token_buckets.largest()) return {kind, bucket, bucket, variant};
  return {kind, bucket, token_buckets.bucket_for(wanted), variant};
}

step_context step_executor::state::context(const step_key& key) {
  return {.key = key,
          .stream = stream,
          .live_rows = buffers.live_rows,
          .requests = buffers.requests,
          .query_counts = buffers.query_counts,
          .cache_seqlens = buffers.cache_seqlens,
          .cu_seqlens_q = buffers.cu_seqlens_q,
          .cu_seqlens_k = buffers.cu_seqlens_k,
          .last_row = buffers.last_row,
          .token_ids = buffers.token_ids,
          .positions = buffers.positions,
          .row_of = buffers.row_of,
          .causal_length = buffers.causal_length,
          .out_cache_loc = buffers.out_cache_loc,
          .page_table = buffers.page_table,
          .page_table_stride = buffers.page_table_stride,
          .page_columns = buffers.page_columns,
          .page_shift = page_shift,
          .kv = &buffers.kv,
          .accepted = buffers.accepted,
          .next_token = buffers.next_token,
          .scratch = buffers.scratch,
          .faults = sink()};
}

/// One whole step: prologue, metadata, the embedder's body, epilogue. Captured or eager, the same calls.
void step_executor::state::enqueue(const step_key& key, const step_definition& step) {
  const bool accepts = key.kind == step_kind::target_verify;
  const detail::staging_layout layout{key.rows, key.tokens};
  const auto staged = [&](std::size_t offset) {
    return reinterpret_cast<const std::int32_t*>(buffers.staging + offset);
  };
  const auto* const header = reinterpret_cast<const staged_header*>(buffers.staging);
  // len = tokens before the step + E
  const row_lengths lengths{.live_rows = buffers.live_rows,
                            .rows = key.rows,
                            .seq_lens = buffers.seq_lens,
                            .delta_by_row = buffers.query_counts,
                            .cap = limits.max_context};
  step_prologue(stream,
                {.header = header,
                 .staged_requests = staged(layout.requests()),
                 .staged_query_counts = staged(layout.query_counts()),
                 .staged_lengths = staged(layout.lengths()),
                 .staged_tokens = staged(layout.token_ids()),
                 .patches = reinterpret_cast<const page_patch*>(buffers.staging + layout.patches()),
                 .max_patches = options.requests ? 0 : layout.max_patches(),
                 .state = buffers.state,
                 .vocab_size = limits.vocab_size,
                 .live_rows = buffers.live_rows,
                 .requests = buffers.requests,
                 .query_counts = buffers.query_counts,
                 .seq_lens = buffers.seq_lens,
                 .row_status = buffers.row_status,
                 .token_ids = buffers.token_ids,
                 .inputs = {.lengths = lengths,
                            .query_counts = buffers.query_counts,
                            .max_query_count = accepts               ? limits.max_draft_tokens + 1
                                               : is_ragged(key.kind) ? key.tokens
                                                                     : 1,
                            .tokens = key.tokens,
                            .requests = buffers.requests,
                            .source = source,
                            .skip = 0,  // a body's kernels store through every slot: the sink takes it
                            .cu_seqlens_q = buffers.cu_seqlens_q,
                            .last_row = buffers.last_row,
                            .row_of = buffers.row_of,
                            .position = buffers.positions,
                            .causal_length = buffers.causal_length,
                            .out_cache_loc = buffers.out_cache_loc,
                            .faults = sink()}});
  decode_metadata(stream, {.lengths = lengths,
                           .requests = buffers.requests,
                           .source = source,
                           .skip = -1,
                           .cache_seqlens = buffers.cache_seqlens,
                           .cu_seqlens_k = buffers.cu_seqlens_k,
                           .page_table = buffers.page_table,
                           .page_table_stride = buffers.page_table_stride,
                           .page_columns = buffers.page_columns,
                           .faults = sink()});
  step.body(context(key));
  step_epilogue(stream, {.header = header,
                         .live_rows = buffers.live_rows,
                         .rows = key.rows,
                         .requests = buffers.requests,
                         .query_counts = buffers.query_counts,
                         .cache_seqlens = buffers.cache_seqlens,
                         .next_token = buffers.next_token,
                         .row_status = buffers.row_status,
                         .emit_count = accepts ? buffers.accepted.emit_count : nullptr,
                         .cache_advance = accepts ? buffers.accepted.cache_advance : nullptr,
                         .emit_tokens = accepts ? buffers.accepted.emit_tokens : nullptr,
                         .emit_stride = buffers.accepted.stride,
                         .state = buffers.state,
                         .results = results.data(),
                         .result_tokens = result_tokens.data(),
                         .result_slots = limits.in_flight,
                         .ring_rows = row_buckets.largest()});
}

void step_executor::state::capture_one(const step_key& key, const step_definition& step) {
  const nvtx_range range("stepgraph capture");
  detail::refuse_in_capture("another capture");
  try {
    // once eagerly, with nothing live: libraries load and handles are made outside the capture
    stream.fill(buffers.staging, 0, detail::staging_layout{key.rows, key.tokens}.bytes());
    enqueue(key, step);
    stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    const graph made = stepgraph::capture(stream, [&](stream_ref) { enqueue(key, step); });
    graph_exec exec = made.instantiate();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    reports.push_back({.key = key,
                       .milliseconds = took.count(),
                       .nodes = exec.node_count(),
                       .device_bytes = exec.device_bytes()});
    captures.emplace(key, captured{std::move(exec), statistics.buckets.size()});
    statistics.buckets.push_back({.key = key});
  } catch (const device_lost&) {
    throw;
  } catch (const std::exception& cause) {
    throw capture_error(message("capture of ", to_string(key), ": ", cause.what()));
  } catch (...) {
    throw capture_error(message("capture of ", to_string(key), ": the body threw no std::exception"));
  }
}

void step_executor::dot(step_kind kind, int rows, int tokens, int variant, std::ostream& out) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  const step_definition& step = s.definition(kind, variant);
  const step_key key = s.key_for(kind, rows, tokens, variant);
  stepgraph::capture(s.stream, [&](stream_ref) { s.enqueue(key, step); }).dot(out);
}

void step_executor::enqueue_step(step_kind kind, int rows, int tokens, int variant) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  s.enqueue(s.key_for(kind, rows, tokens, variant), s.definition(kind, variant));
}

std::span<const capture_report> step_executor::capture(const std::function<void(int, int)>& progress) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  std::vector<std::pair<step_key, const step_definition*>> wanted;
  for (const step_definition& step : s.steps)
    for (const int rows : s.row_buckets.sizes())
      for (const int tokens : s.token_sizes(step.kind, rows))
        wanted.emplace_back(step_key{step.kind, rows, tokens, step.variant}, &step);
  // largest first: the driver's memory pools then fit all that follow
  std::ranges::stable_sort(wanted, std::greater{}, [](const auto& each) {
    return std::int64_t{each.first.tokens} * each.first.rows;
  });
  s.stream.synchronize();
  int done = 0;
  for (const auto& [key, step] : wanted) {
    if (progress) progress(done++, static_cast<int>(wanted.size()));
    if (s.captures.contains(key)) continue;
    s.capture_one(key, *step);
  }
  if (progress) progress(done, static_cast<int>(wanted.size()));
  return s.reports;
}

}  // namespace stepgraph
