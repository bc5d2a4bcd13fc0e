#include "runtime/step_executor.hpp"

#include <algorithm>
#include <bit>

#include "graphs/nvtx.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {
namespace {

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
  STEPGRAPH_EXPECTS(limits.in_flight > 0, "step_limits: in_flight must be positive, got ", limits.in_flight);
  constexpr int most = 1 << 16;
  const auto fits = [](int number) { return number > 0 && number <= most; };
  STEPGRAPH_EXPECTS(fits(layout.layers) && fits(layout.kv_heads) && fits(layout.head_size),
                    "kv_layout: layers, kv_heads and head_size must be in [1, ", most, "], got ",
                    layout.layers, ", ", layout.kv_heads, " and ", layout.head_size);
}

/// Refuses what is adopted unless it fits the limits.
void check(device where, const step_limits& limits, const kv_layout& layout,
           const executor_options& options) {
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
  if (options.requests) {
    const page_source& source = options.requests->source;
    STEPGRAPH_EXPECTS(source.requests > 0 && source.row_stride >= source.columns,
                      "step_executor: the adopted request table has ", source.requests,
                      " requests and rows of ", source.columns, " columns ", source.row_stride, " apart");
    STEPGRAPH_EXPECTS(source.table && options.requests->seq_lens && options.requests->last_token,
                      "step_executor: the adopted request table has a null pointer");
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

}  // namespace

step_executor::step_executor(device where, const step_limits& limits, const kv_layout& layout,
                             std::vector<step_definition> steps, executor_options options) {
  check(limits, layout);
  STEPGRAPH_EXPECTS(!steps.empty(), "step_executor: no steps were defined");
  for (const step_definition& step : steps) {
    STEPGRAPH_EXPECTS(step.body, "step_executor: the ", to_string(step.kind), " step, variant ", step.variant,
                      ", has no body");
    STEPGRAPH_EXPECTS(std::ranges::count_if(steps,
                                            [&](const step_definition& other) {
                                              return other.kind == step.kind && other.variant == step.variant;
                                            }) == 1,
                      "step_executor: two steps of kind ", to_string(step.kind), ", variant ", step.variant);
  }
  check(where, limits, layout, options);
  state_ = std::make_unique<state>(where, limits, std::move(steps), std::move(options));
  state_->allocate(layout);
}

step_executor::~step_executor() = default;
step_executor::step_executor(step_executor&&) noexcept = default;
step_executor& step_executor::operator=(step_executor&&) noexcept = default;

std::span<const capture_report> step_executor::captures() const {
  return state_->reports;
}

request_id step_executor::open() {
  const one_thread guard(state_->busy);
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::open: the request table is the embedder's");
  return state_->requests->open();
}

void step_executor::close(request_id request) {
  const one_thread guard(state_->busy);
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::close: the request table is the embedder's");
  state_->requests->close(request, state_->sequence);
}

std::optional<step_ticket> step_executor::replay(step_kind kind, std::span<const step_row> rows, int variant,
                                                 when_full full) {
  const one_thread guard(state_->busy);
  const nvtx_range range("stepgraph replay");
  state& s = *state_;
  if (guard_off("alternate")) s.stream.synchronize();
  const state::plan wanted = s.check_rows(kind, rows, variant);
  const auto found = s.captures.find(wanted.key);
  STEPGRAPH_EXPECTS(
      found != s.captures.end(), "step_executor: no capture for ", to_string(wanted.key),
      s.captures.empty() ? "; call capture() first" : "; is its kind and variant among the steps?");
  const std::optional<int> slot = s.admit(wanted, full);
  if (!slot) {
    ++s.statistics.would_block;
    return std::nullopt;
  }
  const step_ticket ticket = s.run(wanted.key, rows, *slot, [&] { found->second.exec.launch(s.stream); });
  s.count(s.statistics.buckets[found->second.statistics], wanted.key, rows);
  return ticket;
}

step_ticket step_executor::run_eager(step_kind kind, std::span<const step_row> rows, int variant) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  const step_definition& step = s.definition(kind, variant);
  const state::plan wanted = s.check_rows(kind, rows, variant);
  const int slot = *s.admit(wanted, when_full::wait);
  const step_ticket ticket = s.run(wanted.key, rows, slot, [&] { s.enqueue(wanted.key, step); });
  ++s.statistics.eager_steps;
  return ticket;
}

bool step_executor::ready(step_ticket ticket) const {
  const state& s = *state_;
  return ticket.sequence <= s.completed || s.slots[s.slot_of(ticket)].done.query();
}

std::span<const row_result> step_executor::wait(step_ticket ticket) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  const int index = s.slot_of(ticket);
  state::slot& slot = s.slots[index];
  if (ticket.sequence > s.completed) {
    if (!slot.done.query()) slot.done.synchronize();
    s.completed = ticket.sequence;
  }
  const std::span<const row_result> results(s.results_of(index), static_cast<std::size_t>(slot.rows));
  if (s.requests)
    for (std::size_t row = 0; row < results.size(); ++row)
      s.requests->settle(slot.requests[row], ticket.sequence, results[row].length);
  return results;
}

std::span<const std::int32_t> step_executor::emitted(step_ticket ticket, int row) {
  const std::span<const row_result> results = wait(ticket);
  STEPGRAPH_EXPECTS(row >= 0 && row < std::ssize(results), "step_executor::emitted: row ", row, " of ",
                    results.size());
  const state& s = *state_;
  const auto line = static_cast<std::size_t>(&results[row] - s.results.data());
  const auto count = static_cast<std::size_t>(results[row].count);
  return s.result_tokens.subspan(line * s.buffers.accepted.stride, count);
}

std::optional<fault_record> step_executor::fault() const {
  if (__atomic_load_n(&state_->faults->status, __ATOMIC_ACQUIRE) == 0) return std::nullopt;
  return *state_->faults;
}

void step_executor::reset_fault() {
  const one_thread guard(state_->busy);
  state_->stream.synchronize();
  *state_->faults = {};
  state_->stream.fill(state_->buffers.fault_taken, 0, sizeof(std::int32_t));
}

device step_executor::where() const {
  return state_->where;
}
stream_ref step_executor::stream() const {
  return state_->stream;
}
const step_limits& step_executor::limits() const {
  return state_->limits;
}
const kv_cache_view& step_executor::kv_cache() const {
  return state_->buffers.kv;
}
const executor_statistics& step_executor::statistics() const {
  return state_->statistics;
}
std::span<const carving_info> step_executor::carvings() const {
  return state_->device_block.carvings();
}
std::int64_t step_executor::free_pages() const {
  return state_->requests ? state_->requests->pages().free_pages() : 0;
}

std::int64_t step_executor::length_bound(request_id request) const {
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::length_bound: the request table is the embedder's");
  state_->requests->expect_open(request);
  return state_->requests->length_bound(request);
}

}  // namespace stepgraph
