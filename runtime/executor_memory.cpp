#include <algorithm>

#include "runtime/executor_checks.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {

/// What all buffers are sized by.
detail::buffer_sizes step_executor::state::sizes() const {
  const auto sampled = [&](bool of_draft) {
    return std::ranges::any_of(
        steps, [&](const step_definition& step) { return step.sampled && is_draft(step.kind) == of_draft; });
  };
  const draft_shape* const draft = options.draft ? &*options.draft : nullptr;
  detail::buffer_sizes sizes{
      .rows = guard_off("pad-capacity") ? limits.max_rows : row_buckets.largest(),
      .tokens = std::max(row_buckets.largest(), token_buckets.largest()),
      .emitted = limits.max_draft_tokens + 1,
      .requests = options.requests ? options.requests->source.requests : limits.max_requests,
      .page_columns = pages_of(limits.max_context, page_shift),
      .kv_pages = limits.kv_pages,
      .scratch_bytes = 0,
      .own_requests = !options.requests,
      .own_kv = !options.kv_cache,
      .trees = std::ranges::any_of(steps, &step_definition::tree),
      .sampled = sampled(false) || sampled(true),
      .hidden_size = draft ? draft->hidden_size : 0,
      .draft_vocab = draft && sampled(true) ? draft->vocab_size : 0,
      .finishes = options.finish.has_value(),
      .end_ids = end_id_count(),
      .poison_requests = poisons_requests(),
      .poison_kv = poisons_kv(),
      .gap = options.poison ? canary_bytes : 0};
  if (sizes.kv_pages == 0) sizes.kv_pages = limits.max_requests * sizes.page_columns + 1;
  // a slot is an int32
  STEPGRAPH_EXPECTS(sizes.kv_pages <= INT32_MAX >> page_shift, "step_limits: ", sizes.kv_pages, " pages of ",
                    limits.page_size, " tokens are more than 2^31 slots; set kv_pages");
  for (const step_definition& step : steps)
    if (step.scratch_bytes)
      for (const int rows : row_buckets.sizes())
        for (const int tokens : token_sizes(step.kind, rows))
          sizes.scratch_bytes = std::max(guard_off("capture-order") ? 0 : sizes.scratch_bytes,
                                         step.scratch_bytes(rows, tokens));
  return sizes;
}

arena_plan step_executor::plan_memory(device where, const step_limits& limits, const kv_layout& layout,
                                      const std::vector<step_definition>& steps,
                                      const executor_options& options) {
  detail::check_executor(where, limits, layout, steps, options);
  const state counted(where, limits, steps, options);
  return detail::plan_blocks(layout, options.draft ? &options.draft->layout : nullptr, limits.page_size,
                             counted.sizes());
}

void step_executor::state::allocate(const kv_layout& layout) {
  const detail::buffer_sizes sizes = this->sizes();
  blocks = detail::carve(layout, options.draft ? &options.draft->layout : nullptr, limits.page_size, sizes,
                         memory(), options.memory_budget, buffers);
  if (options.kv_cache) buffers.kv = *options.kv_cache;
  limits.kv_pages = buffers.kv.layers.front().pages;
  if (options.requests) {
    const adopted_requests& adopted = *options.requests;
    source = adopted.source;
    if (source.pool_pages == 0) source.pool_pages = limits.kv_pages;
    STEPGRAPH_EXPECTS(source.pool_pages <= limits.kv_pages, "step_executor: the adopted request table names ",
                      source.pool_pages, " pages, the KV cache has ", limits.kv_pages);
    request_state& state = buffers.state;
    state.pages = const_cast<std::int32_t*>(source.table);  // never written: no patches are staged
    state.page_stride = source.row_stride;
    state.seq_lens = adopted.seq_lens;
    state.last_token = adopted.last_token;
    state.sampling = adopted.sampling;
  } else {
    requests.emplace(limits.max_requests, limits.max_context, page_shift, limits.kv_pages);
    source = {.table = buffers.state.pages,
              .row_stride = buffers.state.page_stride,
              .requests = limits.max_requests,
              .columns = sizes.page_columns,
              .page_shift = page_shift,
              .page_granular = true,
              .pool_pages = limits.kv_pages};
  }
  named_in.resize(source.requests);

  arena_plan pinned(sizes.gap);
  const auto pinned_fault = pinned.add<fault_record>("fault", 1);
  const auto pinned_fence = pinned.add<std::uint64_t>("read_fence", 1);
  pinned_block = arena(std::move(pinned), pinned_memory(where));
  faults = pinned_block.view(pinned_fault).data();
  mark_canaries(pinned_block);
  *faults = {};
  read_fence = pinned_block.view(pinned_fence).data();
  *read_fence = 0;
  if (options.read_fence) {
    fence_stream.emplace(where);
    fence_forked.emplace(where);
    fence_joined.emplace(where);
  }
  make_ring(sizes);
  carvings = list_carvings(blocks.step);
  clear(layout);
}

std::vector<carving_info> step_executor::state::list_carvings(const arena& step) const {
  std::vector<carving_info> all(step.carvings().begin(), step.carvings().end());
  for (const carving_info& each : blocks.lasting.carvings())
    all.push_back({each.name, step.bytes() + each.offset, each.bytes});
  return all;
}

/// The staging buffers and what comes back, a slot for each round in flight.
void step_executor::state::make_ring(const detail::buffer_sizes& sizes) {
  arena_plan plan(sizes.gap);
  const std::size_t bytes =
      (detail::staging_layout{sizes.rows, sizes.tokens, sizes.trees}.bytes() + 255) / 256 * 256;
  const std::size_t rounds = limits.in_flight;
  const auto ring_staging = plan.add<std::byte>("staging", bytes * rounds);
  const auto ring_results = plan.add<row_result>("results", rounds * sizes.rows);
  const auto ring_tokens = plan.add<std::int32_t>("result_tokens", rounds * sizes.rows * sizes.emitted);
  const bool timed = options.timing != step_timing::off;
  const auto ring_times = plan.add<std::int64_t>("times", timed ? rounds * clock_marks : 0);
  const auto ring_live =
      plan.add<std::int32_t>("live_pages", sizes.poison_requests ? rounds * sizes.requests : 0);
  // aside, and put in place where nothing can throw any more
  arena block(std::move(plan), pinned_memory(where));
  std::vector<std::byte> direct(where.is_host() ? 0 : direct_bytes * rounds);
  std::vector<slot> made;
  made.reserve(rounds);
  for (std::size_t i = 0; i < rounds; ++i) {
    made.push_back({.results = event(where),
                    .extended = event(where),
                    .requests = {},
                    .marks = {},
                    .growth = {},
                    .timed = {}});
    made.back().requests.reserve(limits.max_rows);
    made.back().marks.reserve(limits.max_rows);
    made.back().timed.reserve(3);
    made.back().growth.reserve(limits.max_rows);
  }
  ring_block = std::move(block);
  mark_canaries(ring_block);
  staging_bytes = bytes;
  staging = ring_block.view(ring_staging);
  results = ring_block.view(ring_results);
  result_tokens = ring_block.view(ring_tokens);
  times = ring_block.view(ring_times);
  live_pages = ring_block.view(ring_live);
  direct_staging = std::move(direct);
  slots = std::move(made);
}

/// A round without rows.
void step_executor::state::stage_nothing() {
  stream.fill(buffers.staging, options.poison ? wild : 0, staging_bytes);
  stream.fill(buffers.staging, guard_off("nan-warm-up") ? 1 : 0, sizeof(staged_header));
}

/// Nothing is staged, and no draft has been made. What no step has written yet is loaded, though not used, for dead
/// rows.
void step_executor::state::clear_step() {
  stream.fill(buffers.undefined.data(), options.poison ? wild : 0, buffers.undefined.size());
  stage_nothing();
  mark_canaries(blocks.step);
  if (buffers.state.first_draft)
    stream.fill(buffers.state.first_draft, 0xff, (buffers.state.requests + 1) * sizeof(std::int32_t));
  if (buffers.state.first_ranked)
    stream.fill(buffers.state.first_ranked, 0, (buffers.state.requests + 1) * sizeof(std::uint64_t));
  stream.synchronize();
}

/// Nothing is live yet: no pages, no lengths, and a sink page that holds zeros.
void step_executor::state::clear(const kv_layout& layout) {
  const std::size_t lines = buffers.state.requests;
  const auto fill = [&](void* to, unsigned char value, std::size_t bytes) {
    if (to && bytes > 0) stream.fill(to, value, bytes);
  };
  clear_step();
  mark_canaries(blocks.lasting);
  fill(buffers.fault_taken, 0, sizeof(std::int32_t));
  request_state& state = buffers.state;
  if (!options.requests) {
    fill(state.pages, 0xff, lines * state.page_stride * 4);
    fill(state.seq_lens, 0, lines * 4);
    fill(state.last_token, 0, lines * 4);
    fill(state.sampling, 0, lines * sizeof(sampling_settings));
  }
  fill(state.token_capacity, 0, lines * 4);
  fill(state.finished, 0, lines * 4);
  fill(state.budget, 0x7f, lines * 4);
  fill(buffers.first_hidden, 0, (lines + 1) * limits.hidden_size * sizeof(float));
  if (end_id_count() > 0) stream.copy(buffers.end_ids, options.finish->end_ids.data(), 4ul * end_id_count());
  std::vector<kv_plane> planes;
  const auto plane = [&](const kv_pages_view& layer, const void* data) {
    const auto bytes = [&](std::int64_t elements) {
      return elements * static_cast<std::int64_t>(size_of(layout.type));
    };
    planes.push_back({.data = const_cast<void*>(data),
                      .page_stride = bytes(layer.page_stride),
                      .token_stride = bytes(layer.token_stride),
                      .head_stride = bytes(layer.head_stride)});
  };
  for (const kv_pages_view& layer : buffers.kv.layers) {
    plane(layer, layer.keys);
    plane(layer, layer.values);
  }
  if (buffers.planes) stream.copy(buffers.planes, planes.data(), planes.size() * sizeof(kv_plane));
  const auto clear_cache = [&](const kv_cache_view& cache) {
    for (const kv_pages_view& layer : cache.layers)
      for (const void* half : {layer.keys, layer.values})
        fill(const_cast<void*>(half), options.poison ? wild_kv : 0,
             layer.page_stride * layer.pages * size_of(cache.layout.type));
  };
  if (!options.kv_cache) clear_cache(buffers.kv);
  if (options.draft) clear_cache(buffers.draft_kv);
  stream.synchronize();
}

}  // namespace stepgraph
