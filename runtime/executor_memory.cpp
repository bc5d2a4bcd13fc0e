#include <algorithm>

#include "runtime/executor_state.hpp"

namespace stepgraph {
namespace {

constexpr unsigned char wild = 0x7f;     // as an index far outside every table, as a float 3.4e38
constexpr unsigned char wild_kv = 0xff;  // NaN in every element type

}  // namespace

void step_executor::state::allocate(const kv_layout& layout) {
  const bool trees = std::ranges::any_of(steps, &step_definition::tree);
  const auto sampled = [&](bool of_draft) {
    return std::ranges::any_of(
        steps, [&](const step_definition& step) { return step.sampled && is_draft(step.kind) == of_draft; });
  };
  const draft_shape* const draft = options.draft ? &*options.draft : nullptr;
  detail::buffer_sizes sizes{
      .rows = row_buckets.largest(),
      .tokens = std::max(row_buckets.largest(), token_buckets.largest()),
      .emitted = limits.max_draft_tokens + 1,
      .requests = options.requests ? options.requests->source.requests : limits.max_requests,
      .page_columns = pages_of(limits.max_context, page_shift),
      .kv_pages = limits.kv_pages,
      .scratch_bytes = 0,
      .own_requests = !options.requests,
      .own_kv = !options.kv_cache,
      .trees = trees,
      .sampled = sampled(false) || sampled(true),
      .hidden_size = draft ? draft->hidden_size : 0,
      .draft_vocab = draft && sampled(true) ? draft->vocab_size : 0,
      .finishes = options.finish.has_value(),
      .end_ids = end_id_count()};
  if (sizes.kv_pages == 0) sizes.kv_pages = limits.max_requests * sizes.page_columns + 1;
  // a slot is an int32
  STEPGRAPH_EXPECTS(sizes.kv_pages <= INT32_MAX >> page_shift, "step_limits: ", sizes.kv_pages, " pages of ",
                    limits.page_size, " tokens are more than 2^31 slots; set kv_pages");
  for (const step_definition& step : steps)
    if (step.scratch_bytes)
      for (const int rows : row_buckets.sizes())
        for (const int tokens : token_sizes(step.kind, rows))
          sizes.scratch_bytes = std::max(sizes.scratch_bytes, step.scratch_bytes(rows, tokens));

  memory_resource& memory = options.memory ? *options.memory : device_memory(where);
  device_block = detail::carve(layout, draft ? &draft->layout : nullptr, limits.page_size, sizes, memory,
                               options.memory_budget, buffers);
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

  arena_plan pinned;
  staging_bytes = (detail::staging_layout{sizes.rows, sizes.tokens, trees}.bytes() + 255) / 256 * 256;
  const auto pinned_staging = pinned.add<std::byte>("staging", staging_bytes * limits.in_flight);
  const auto pinned_results = pinned.add<row_result>("results", std::size_t(limits.in_flight) * sizes.rows);
  const auto pinned_tokens =
      pinned.add<std::int32_t>("result_tokens", std::size_t(limits.in_flight) * sizes.rows * sizes.emitted);
  const auto pinned_times =
      pinned.add<std::int64_t>("times", options.timing != step_timing::off ? std::size_t(limits.in_flight) * clock_marks : 0);
  const auto pinned_fault = pinned.add<fault_record>("fault", 1);
  pinned_block = arena(std::move(pinned), pinned_memory(where));
  staging = pinned_block.view(pinned_staging);
  results = pinned_block.view(pinned_results);
  result_tokens = pinned_block.view(pinned_tokens);
  if (options.timing != step_timing::off) times = pinned_block.view(pinned_times);
  faults = pinned_block.view(pinned_fault).data();
  *faults = {};
  for (int i = 0; i < limits.in_flight; ++i) {
    slots.push_back({.results = event(where),
                     .done = event(where),
                     .requests = {},
                     .marks = {},
                     .growth = {},
                     .timed = {}});
    slots.back().requests.reserve(limits.max_rows);
    slots.back().marks.reserve(limits.max_rows);
    slots.back().timed.reserve(3);
    slots.back().growth.reserve(limits.max_rows);
  }

  clear(layout, trees);
}

/// Nothing is live yet: no pages, no lengths, and a sink page that holds zeros.
void step_executor::state::clear(const kv_layout& layout, bool trees) {
  const std::size_t lines = buffers.state.requests;
  const auto fill = [&](void* to, unsigned char value, std::size_t bytes) {
    if (to && bytes > 0) stream.fill(to, value, bytes);
  };
  fill(buffers.staging, 0, staging_bytes);
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
  fill(state.first_draft, 0xff, (lines + 1) * 4);
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
  if (trees) stream.copy(buffers.planes, planes.data(), planes.size() * sizeof(kv_plane));
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

void step_executor::state::poison() {
  stream.fill(buffers.undefined.data(), wild, buffers.undefined.size());
}

}  // namespace stepgraph
