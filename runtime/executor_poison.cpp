#include <algorithm>
#include <cstring>

#include "kernels/step/poison_kv.hpp"
#include "kernels/step/poison_requests.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {
namespace {

void poison_cache(stream_ref at, const kv_cache_view& cache, poison_kv_params params) {
  const kv_pages_view& first = cache.layers.front();
  const std::size_t size = size_of(cache.layout.type);
  const auto bytes = [size](std::int64_t elements) { return elements * static_cast<std::int64_t>(size); };
  params.pool = const_cast<void*>(first.keys);
  params.planes = 2 * cache.layout.layers;
  params.plane_stride = bytes(first.page_stride * first.pages);
  params.page_bytes = bytes(first.page_stride);
  params.token_bytes = bytes(first.token_stride);
  params.pages = static_cast<std::int32_t>(first.pages);
  poison_kv(at, params);
}

}  // namespace

/// Before a round is staged in slot `index`: dead rows of what is copied, and of what comes back.
void step_executor::state::poison_host(int index) {
  if (guard_off("poison")) return;
  std::memset(staging.data() + staging_bytes * index, wild, staging_bytes);
  const std::size_t rows = row_buckets.largest(), tokens = rows * buffers.accepted.stride;
  std::memset(static_cast<void*>(results_of(index)), wild, rows * sizeof(row_result));
  std::memset(result_tokens.data() + tokens * index, wild, tokens * sizeof(std::int32_t));
}

/// Before round `index`: what the contract calls undefined becomes wild.
void step_executor::state::poison(int index) {
  stream.fill(buffers.undefined.data(), wild, buffers.undefined.size());
  const std::size_t lines = buffers.state.requests;
  const bool every = !guard_off("poison");
  const std::int64_t vocab = buffers.probabilities ? options.draft->vocab_size : 0;
  if (every) {
    stream.fill(buffers.staging, wild, staging_bytes);
    // of the draft decodes; a first draft's live by request
    const std::size_t first = (lines + 1) * vocab, all = buffers.probability_lines * std::size_t(vocab);
    if (all > first) stream.fill(buffers.probabilities + first, wild, (all - first) * sizeof(float));
  }
  if (!poisons_requests()) return;
  std::int32_t* const live = live_pages.data() + lines * index;
  for (std::size_t i = 0; i < lines; ++i) {
    const auto line = static_cast<request_id>(i);
    live[i] =
        requests->has_tokens(line) ? static_cast<std::int32_t>(requests->capacity(line) >> page_shift) : 0;
  }
  stream.copy(buffers.live_pages, live, sizeof(std::int32_t) * lines);
  if (poisons_kv()) {
    const poison_kv_params params{.source = source,
                                  .open = buffers.live_pages,
                                  .seq_lens = buffers.state.seq_lens,
                                  .live_tokens = buffers.live_tokens};
    poison_cache(stream, buffers.kv, params);
    if (options.draft) poison_cache(stream, buffers.draft_kv, params);
  }
  if (every)
    poison_requests(stream, {.state = buffers.state,
                             .live_pages = buffers.live_pages,
                             .hidden = buffers.first_hidden,
                             .hidden_size = limits.hidden_size,
                             .probabilities = buffers.probabilities,
                             .vocab_size = vocab});
}

}  // namespace stepgraph
