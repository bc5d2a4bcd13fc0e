#include <algorithm>

#include "runtime/executor_state.hpp"

namespace stepgraph {
namespace {

constexpr unsigned char wild = 0x7f;     // as an index far outside every table, as a float 3.4e38
constexpr unsigned char wild_kv = 0xff;  // NaN in every element type

}  // namespace

void step_executor::state::allocate(const kv_layout& layout) {
  detail::buffer_sizes sizes{.rows = guard_off("pad-capacity") ? limits.max_rows : row_buckets.largest(),
                             .tokens = std::max(row_buckets.largest(), token_buckets.largest()),
                             .emitted = limits.max_draft_tokens + (guard_off("sizing") ? 0 : 1),
                             .page_columns = pages_of(limits.max_context, page_shift),
                             .kv_pages = limits.kv_pages,
                             .scratch_bytes = 0,
                             .own_requests = !options.requests,
                             .own_kv = !options.kv_cache};
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

  memory_resource& memory = options.memory ? *options.memory : device_memory(where);
  device_block = detail::carve(limits, layout, sizes, memory, options.memory_budget, buffers);
  if (options.kv_cache) buffers.kv = *options.kv_cache;
  limits.kv_pages = buffers.kv.layers.front().pages;
  if (options.requests) {
    const adopted_requests& adopted = *options.requests;
    source = adopted.source;
    if (source.pool_pages == 0) source.pool_pages = limits.kv_pages;
    STEPGRAPH_EXPECTS(source.pool_pages <= limits.kv_pages, "step_executor: the adopted request table names ",
                      source.pool_pages, " pages, the KV cache has ", limits.kv_pages);
    buffers.state = {
        .pages = const_cast<std::int32_t*>(source.table),  // never written: no patches are staged
        .page_stride = source.row_stride,
        .page_columns = 0,
        .requests = source.requests,
        .seq_lens = adopted.seq_lens,
        .last_token = adopted.last_token};
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
  staging_bytes = (detail::staging_layout{sizes.rows, sizes.tokens}.bytes() + 255) / 256 * 256;
  const auto pinned_staging = pinned.add<std::byte>("staging", staging_bytes * limits.in_flight);
  const auto pinned_results = pinned.add<row_result>("results", std::size_t(limits.in_flight) * sizes.rows);
  const auto pinned_tokens =
      pinned.add<std::int32_t>("result_tokens", std::size_t(limits.in_flight) * sizes.rows * sizes.emitted);
  const auto pinned_fault = pinned.add<fault_record>("fault", 1);
  pinned_block = arena(std::move(pinned), pinned_memory(where));
  staging = pinned_block.view(pinned_staging);
  results = pinned_block.view(pinned_results);
  result_tokens = pinned_block.view(pinned_tokens);
  faults = pinned_block.view(pinned_fault).data();
  *faults = {};
  for (int i = 0; i < limits.in_flight; ++i) {
    slots.push_back({.done = event(where), .requests = {}, .growth = {}});
    slots.back().requests.reserve(limits.max_rows);
    slots.back().growth.reserve(limits.max_rows);
  }

  // nothing is live yet: no pages, no lengths, and a sink page that holds zeros
  stream.fill(buffers.staging, 0, detail::staging_layout{sizes.rows, sizes.tokens}.bytes());
  stream.fill(buffers.fault_taken, 0, sizeof(std::int32_t));
  if (!options.requests) {
    stream.fill(buffers.state.pages, 0xff, std::size_t(limits.max_requests) * buffers.state.page_stride * 4);
    stream.fill(buffers.state.seq_lens, 0, std::size_t(limits.max_requests) * 4);
    stream.fill(buffers.state.last_token, 0, std::size_t(limits.max_requests) * 4);
  }
  if (!options.kv_cache)
    for (const kv_pages_view& layer : buffers.kv.layers)
      for (const void* half : {layer.keys, layer.values})
        stream.fill(const_cast<void*>(half), options.poison ? wild_kv : 0,
                    layer.page_stride * layer.pages * size_of(layout.type));
  stream.synchronize();
}

void step_executor::state::poison() {
  stream.fill(buffers.undefined.data(), wild, buffers.undefined.size());
}

}  // namespace stepgraph
