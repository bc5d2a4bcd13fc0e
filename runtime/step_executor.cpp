#include "runtime/step_executor.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "graphs/nvtx.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/step/step_prologue.hpp"
#include "runtime/step_buffers.hpp"

namespace stepgraph {
namespace {

constexpr unsigned char wild = 0x7f;      // as an index far outside every table, as a float 3.4e38
constexpr unsigned char wild_kv = 0xff;   // NaN in every element type

void check(const step_limits& limits, const kv_layout& layout) {
  STEPGRAPH_EXPECTS(limits.max_rows > 0, "step_limits: max_rows must be positive, got ", limits.max_rows);
  STEPGRAPH_EXPECTS(limits.max_step_tokens > 0, "step_limits: max_step_tokens must be positive, got ",
                    limits.max_step_tokens);
  STEPGRAPH_EXPECTS(limits.max_requests > 0, "step_limits: max_requests must be positive, got ", limits.max_requests);
  STEPGRAPH_EXPECTS(limits.max_context > 0 && limits.max_context <= INT32_MAX,
                    "step_limits: max_context must be in [1, 2^31), got ", limits.max_context);
  STEPGRAPH_EXPECTS(std::has_single_bit(static_cast<unsigned>(limits.page_size)) && limits.page_size <= 1024,
                    "step_limits: page_size must be a power of two from 1 to 1024, got ", limits.page_size);
  STEPGRAPH_EXPECTS(limits.vocab_size > 0, "step_limits: vocab_size must be positive, got ", limits.vocab_size);
  STEPGRAPH_EXPECTS(limits.in_flight > 0, "step_limits: in_flight must be positive, got ", limits.in_flight);
  STEPGRAPH_EXPECTS(layout.layers > 0 && layout.kv_heads > 0 && layout.head_size > 0,
                    "kv_layout: layers, kv_heads and head_size must be positive, got ", layout.layers, ", ",
                    layout.kv_heads, " and ", layout.head_size);
}

/// Refuses a second thread while the first is inside.
class one_thread {
 public:
  explicit one_thread(std::atomic<bool>& busy) : busy_(busy) {
    STEPGRAPH_EXPECTS(!busy_.exchange(true, std::memory_order_acquire),
                      "step_executor: called from a second thread while the first is inside");
  }
  ~one_thread() { busy_.store(false, std::memory_order_release); }
  one_thread(const one_thread&) = delete;
  one_thread& operator=(const one_thread&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

struct step_executor::state {
  struct captured {
    graph_exec exec;
    bucket_statistics* statistics;
  };
  /// One staging buffer and its slot of the result ring.
  struct slot {
    event done;
    std::uint64_t sequence = 0;  // of the step that used it last, 0: none
  };

  device where;
  step_limits limits;
  std::vector<step_definition> steps;
  executor_options options;
  bucket_policy row_buckets, token_buckets;
  std::optional<stepgraph::stream> own_stream;
  stream_ref stream;
  int page_shift;
  std::optional<request_table> requests;  // none if adopted
  page_source source;
  detail::step_buffers buffers{};
  arena device_block;
  arena pinned_block;
  std::span<std::byte> staging;        // [in_flight][staging_bytes], pinned
  std::size_t staging_bytes = 0;
  std::span<row_result> results;       // [in_flight][rows], pinned
  fault_record* faults = nullptr;      // pinned
  std::vector<slot> slots;
  std::uint64_t sequence = 0;          // of the step launched last
  std::uint64_t completed = 0;         // all steps up to this one are known to be done
  std::vector<std::uint64_t> named_in;  // [requests] number of the check that saw the request last
  std::uint64_t checks = 0;
  std::map<step_key, captured> captures;
  std::vector<capture_report> reports;
  executor_statistics statistics;
  std::atomic<bool> busy = false;

  state(device where, const step_limits& limits, std::vector<step_definition> steps, executor_options options)
      : where(where),
        limits(limits),
        steps(std::move(steps)),
        options(std::move(options)),
        row_buckets(this->options.row_buckets.value_or(bucket_policy::powers_of_two(limits.max_rows))),
        token_buckets(this->options.token_buckets.value_or(bucket_policy::powers_of_two(limits.max_step_tokens))),
        stream(make_stream()) {}

  stream_ref make_stream() {
    if (options.stream) return *options.stream;
    own_stream.emplace(where);
    return own_stream->ref();
  }

  fault_sink sink() { return {.record = faults, .taken = buffers.fault_taken, .row_status = buffers.row_status}; }

  row_result* results_of(int slot) { return results.data() + std::size_t(slot) * row_buckets.largest(); }

  void allocate(const kv_layout& layout);
  const step_definition& definition(step_kind kind, int variant) const;
  step_key key_for(step_kind kind, int rows, int tokens, int variant) const;
  void enqueue(const step_key& key, const step_definition& step);
  step_context context(const step_key& key);
  bucket_statistics& statistics_of(const step_key& key);
  void poison();

  std::int64_t check_rows(step_kind kind, std::span<const step_row> rows);
  bool reclaim(std::int64_t pages_needed);
  std::optional<int> take_slot(when_full full);
  std::optional<int> admit(step_kind kind, std::span<const step_row> rows, when_full full);
  void stage(const step_key& key, std::span<const step_row> rows, int slot);
  step_ticket finish(const step_key& key, std::span<const step_row> rows, int slot, bool eager);
  void count(bucket_statistics& counted, const step_key& key, std::span<const step_row> rows);
};

void step_executor::state::allocate(const kv_layout& layout) {
  detail::buffer_sizes sizes{.rows = row_buckets.largest(),
                             .tokens = std::max(row_buckets.largest(), token_buckets.largest()),
                             .page_columns = pages_of(limits.max_context, page_shift),
                             .kv_pages = limits.kv_pages,
                             .scratch_bytes = 0,
                             .own_requests = !options.requests,
                             .own_kv = !options.kv_cache};
  if (sizes.kv_pages == 0) sizes.kv_pages = limits.max_requests * sizes.page_columns + 1;
  for (const step_definition& step : steps)
    if (step.scratch_bytes)
      for (const int rows : row_buckets.sizes())
        for (const int tokens : token_buckets.sizes())
          sizes.scratch_bytes = std::max(sizes.scratch_bytes,
                                         step.scratch_bytes(rows, is_ragged(step.kind) ? tokens : rows));

  memory_resource& memory = options.memory ? *options.memory : device_memory(where);
  device_block = detail::carve(limits, layout, sizes, memory, options.memory_budget, buffers);
  if (options.kv_cache) buffers.kv = *options.kv_cache;
  limits.kv_pages = buffers.kv.layers.front().pages;
  if (options.requests) {
    const adopted_requests& adopted = *options.requests;
    source = adopted.source;
    buffers.state = {.pages = const_cast<std::int32_t*>(source.table),  // never written: no patches are staged
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
  const auto pinned_fault = pinned.add<fault_record>("fault", 1);
  pinned_block = arena(std::move(pinned), pinned_memory(where));
  staging = pinned_block.view(pinned_staging);
  results = pinned_block.view(pinned_results);
  faults = pinned_block.view(pinned_fault).data();
  *faults = {};
  for (int i = 0; i < limits.in_flight; ++i) slots.push_back({.done = event(where)});

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

const step_definition& step_executor::state::definition(step_kind kind, int variant) const {
  const auto found = std::ranges::find_if(
      steps, [&](const step_definition& step) { return step.kind == kind && step.variant == variant; });
  STEPGRAPH_EXPECTS(found != steps.end(), "step_executor: no step was defined for kind ", to_string(kind),
                    ", variant ", variant);
  return *found;
}

step_key step_executor::state::key_for(step_kind kind, int rows, int tokens, int variant) const {
  const int bucket = row_buckets.bucket_for(std::max(rows, 1));
  return {kind, bucket, is_ragged(kind) ? token_buckets.bucket_for(std::max(tokens, 1)) : bucket, variant};
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
          .next_token = buffers.next_token,
          .scratch = buffers.scratch,
          .faults = sink()};
}

/// One whole step: prologue, metadata, the embedder's body, epilogue. Captured or eager, the same calls.
void step_executor::state::enqueue(const step_key& key, const step_definition& step) {
  const detail::staging_layout layout{key.rows, key.tokens};
  const auto staged = [&](std::size_t offset) { return reinterpret_cast<const std::int32_t*>(buffers.staging + offset); };
  const auto* const header = reinterpret_cast<const staged_header*>(buffers.staging);
  // len = tokens before the step + E
  const row_lengths lengths{.live_rows = buffers.live_rows,
                            .rows = key.rows,
                            .seq_lens = buffers.seq_lens,
                            .delta_by_row = buffers.query_counts,
                            .cap = limits.max_context};
  step_prologue(stream, {.header = header,
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
                                    .max_query_count = is_ragged(key.kind) ? key.tokens : 1,
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
                         .state = buffers.state,
                         .results = results.data(),
                         .result_slots = limits.in_flight,
                         .ring_rows = row_buckets.largest()});
}

bucket_statistics& step_executor::state::statistics_of(const step_key& key) {
  const auto found = std::ranges::find(statistics.buckets, key, &bucket_statistics::key);
  if (found != statistics.buckets.end()) return *found;
  return statistics.buckets.emplace_back(bucket_statistics{.key = key});
}

void step_executor::state::poison() {
  stream.fill(buffers.undefined.data(), wild, buffers.undefined.size());
}

/// Refuses rows that cannot be, and says how many pages the others need. Changes nothing.
std::int64_t step_executor::state::check_rows(step_kind kind, std::span<const step_row> rows) {
  STEPGRAPH_EXPECTS(static_cast<int>(rows.size()) <= limits.max_rows, "step_executor: ", rows.size(),
                    " rows are over max_rows ", limits.max_rows);
  std::int64_t pages = 0, tokens = 0;
  ++checks;
  for (const step_row& row : rows) {
    if (requests) requests->expect_open(row.request);
    STEPGRAPH_EXPECTS(source.has_request(row.request), "step_executor: request ", row.request,
                      " is outside the table of ", source.requests);
    STEPGRAPH_EXPECTS(std::exchange(named_in[row.request], checks) != checks, "step_executor: request ", row.request,
                      " is named by two rows of one step");
    STEPGRAPH_EXPECTS(row.tokens >= 0 && (is_ragged(kind) || row.tokens <= 1), "step_executor: a row of ", row.tokens,
                      " tokens in a ", to_string(kind), " step");
    STEPGRAPH_EXPECTS(row.token_ids.empty() ? row.tokens <= 1
                                            : static_cast<int>(row.token_ids.size()) == row.tokens,
                      "step_executor: request ", row.request, " has ", row.tokens, " tokens but ",
                      row.token_ids.size(), " token ids");
    for (const std::int32_t id : row.token_ids)
      STEPGRAPH_EXPECTS(id >= 0 && id < limits.vocab_size, "step_executor: token id ", id, " of request ",
                        row.request, " is outside the vocabulary of ", limits.vocab_size);
    tokens += row.tokens;
    if (!requests) continue;
    STEPGRAPH_EXPECTS(!row.token_ids.empty() || row.tokens == 0 || !requests->fresh(row.request),
                      "step_executor: request ", row.request, " has no token yet; its first step must bring one");
    STEPGRAPH_EXPECTS(requests->length_bound(row.request) + row.tokens <= limits.max_context,
                      "step_executor: request ", row.request, " with ", requests->length_bound(row.request),
                      " tokens and ", row.tokens, " more is over max_context ", limits.max_context);
    pages += std::max<std::int64_t>(0, requests->pages_needed(row.request, row.tokens));
  }
  if (is_ragged(kind))
    STEPGRAPH_EXPECTS(tokens <= token_buckets.largest(), "step_executor: ", tokens, " tokens are over max_step_tokens ",
                      token_buckets.largest());
  return pages;
}

/// True if `needed` pages are free, taking back what steps known to be done have released.
bool step_executor::state::reclaim(std::int64_t needed) {
  page_allocator& pages = requests->pages();
  if (pages.waiting_pages() > 0) {
    for (const slot& each : slots)
      if (each.sequence > completed && each.done.query()) completed = each.sequence;
    pages.reclaim(completed);
  }
  return pages.free_pages() >= needed;
}

std::optional<int> step_executor::state::take_slot(when_full full) {
  const int index = static_cast<int>((sequence + 1) % slots.size());
  slot& next = slots[index];
  if (next.sequence == 0 || next.sequence <= completed) return index;
  if (!next.done.query()) {
    if (full == when_full::would_block) return std::nullopt;
    next.done.synchronize();
  }
  completed = next.sequence;
  return index;
}

/// The staging slot for a step that may run now; nothing if it would block.
std::optional<int> step_executor::state::admit(step_kind kind, std::span<const step_row> rows, when_full full) {
  const std::int64_t pages = check_rows(kind, rows);
  if (requests && !reclaim(pages)) {
    page_allocator& pool = requests->pages();
    if (pool.free_pages() + pool.waiting_pages() < pages)
      throw out_of_pages(message("step_executor: the step needs ", pages, " pages, ",
                                 pool.free_pages() + pool.waiting_pages(), " of ", pool.pool_pages(),
                                 " are free; close a request, or raise kv_pages"),
                         pages, pool.free_pages() + pool.waiting_pages());
    if (full == when_full::would_block) return std::nullopt;
    stream.synchronize();
    completed = sequence;
    pool.reclaim(completed);
  }
  return take_slot(full);
}

/// Writes the step into its staging buffer and enqueues the copy.
void step_executor::state::stage(const step_key& key, std::span<const step_row> rows, int slot) {
  const detail::staging_layout layout{key.rows, key.tokens};
  std::byte* const block = staging.data() + staging_bytes * slot;
  const auto at = [&](std::size_t offset) { return reinterpret_cast<std::int32_t*>(block + offset); };
  std::int32_t* token = at(layout.token_ids());
  auto* const patches = reinterpret_cast<page_patch*>(block + layout.patches());
  int patch_count = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const step_row& row = rows[r];
    at(layout.requests())[r] = row.request;
    at(layout.query_counts())[r] = row.tokens;
    // a request's first step tells the device that its line starts empty
    at(layout.lengths())[r] = requests && requests->fresh(row.request) ? 0 : -1;
    for (int j = 0; j < row.tokens; ++j) *token++ = row.token_ids.empty() ? -1 : row.token_ids[j];
    if (requests) patch_count += requests->grow(row.request, row.tokens, patches + patch_count);
  }
  *reinterpret_cast<staged_header*>(block) = {
      .live_rows = static_cast<std::int32_t>(rows.size()), .patches = patch_count, .result_slot = slot, .reserved = 0};
  if (options.poison) poison();
  stream.copy(buffers.staging, block, layout.patches() + sizeof(page_patch) * patch_count);
}

void step_executor::state::count(bucket_statistics& counted, const step_key& key, std::span<const step_row> rows) {
  ++counted.replays;
  counted.live_rows += rows.size();
  counted.captured_pages += static_cast<std::uint64_t>(key.rows) * buffers.page_columns;
  for (const step_row& row : rows) {
    counted.live_tokens += row.tokens;
    if (requests) counted.live_pages += pages_of(requests->length_bound(row.request), page_shift);
  }
}

step_ticket step_executor::state::finish(const step_key& key, std::span<const step_row> rows, int slot, bool eager) {
  slots[slot].done.record(stream);
  slots[slot].sequence = ++sequence;
  if (eager) {
    ++statistics.eager_steps;
  } else {
    count(*captures.at(key).statistics, key, rows);
  }
  return {.sequence = sequence, .rows = static_cast<int>(rows.size())};
}

step_executor::step_executor(device where, const step_limits& limits, const kv_layout& layout,
                             std::vector<step_definition> steps, executor_options options) {
  check(limits, layout);
  STEPGRAPH_EXPECTS(!steps.empty(), "step_executor: no steps were defined");
  for (const step_definition& step : steps)
    STEPGRAPH_EXPECTS(step.body, "step_executor: the ", to_string(step.kind), " step, variant ", step.variant,
                      ", has no body");
  if (options.stream)
    STEPGRAPH_EXPECTS(options.stream->where() == where, "step_executor: the adopted stream is on ",
                      options.stream->where().name(), ", not on ", where.name());
  if (options.memory)
    STEPGRAPH_EXPECTS(options.memory->where() == where, "step_executor: the adopted memory is on ",
                      options.memory->where().name(), ", not on ", where.name());
  const int page_shift = std::countr_zero(static_cast<unsigned>(limits.page_size));
  if (options.kv_cache) {
    const kv_cache_view& kv = *options.kv_cache;
    STEPGRAPH_EXPECTS(kv.page_size == limits.page_size, "step_executor: the adopted KV cache has pages of ",
                      kv.page_size, " tokens, not of ", limits.page_size);
    STEPGRAPH_EXPECTS(static_cast<int>(kv.layers.size()) == layout.layers && kv.layout.type == layout.type &&
                          kv.layout.kv_heads == layout.kv_heads && kv.layout.head_size == layout.head_size,
                      "step_executor: the adopted KV cache has ", kv.layers.size(), " layers of ", kv.layout.kv_heads,
                      " x ", kv.layout.head_size, " ", to_string(kv.layout.type), ", not ", layout.layers, " of ",
                      layout.kv_heads, " x ", layout.head_size, " ", to_string(layout.type));
  }
  if (options.requests) {
    const page_source& source = options.requests->source;
    STEPGRAPH_EXPECTS(source.table && options.requests->seq_lens && options.requests->last_token,
                      "step_executor: the adopted request table has a null pointer");
    STEPGRAPH_EXPECTS(source.page_shift == page_shift, "step_executor: the adopted request table has pages of 2^",
                      source.page_shift, " tokens, not of ", limits.page_size);
    STEPGRAPH_EXPECTS(source.token_columns() >= limits.max_context, "step_executor: the adopted request table names ",
                      source.token_columns(), " tokens a request, max_context is ", limits.max_context);
  }
  STEPGRAPH_EXPECTS(!options.row_buckets || options.row_buckets->largest() >= limits.max_rows,
                    "step_executor: the largest row bucket must hold max_rows ", limits.max_rows);
  STEPGRAPH_EXPECTS(!options.token_buckets || options.token_buckets->largest() >= limits.max_step_tokens,
                    "step_executor: the largest token bucket must hold max_step_tokens ", limits.max_step_tokens);
  state_ = std::make_unique<state>(where, limits, std::move(steps), std::move(options));
  state_->page_shift = page_shift;
  state_->allocate(layout);
}

step_executor::step_executor(step_executor&&) noexcept = default;
step_executor& step_executor::operator=(step_executor&&) noexcept = default;

step_executor::~step_executor() {
  if (!state_ || state_->sequence == 0) return;
  try {
    state_->stream.synchronize();  // steps in flight use what is about to be freed
  } catch (...) {                  // a destructor never throws; after a lost device nothing is in flight
  }
}

std::span<const capture_report> step_executor::capture(const std::function<void(int, int)>& progress) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  std::vector<std::pair<step_key, const step_definition*>> wanted;
  for (const step_definition& step : s.steps)
    for (const int rows : s.row_buckets.sizes()) {
      if (!is_ragged(step.kind)) {
        wanted.emplace_back(step_key{step.kind, rows, rows, step.variant}, &step);
        continue;
      }
      for (const int tokens : s.token_buckets.sizes())
        wanted.emplace_back(step_key{step.kind, rows, tokens, step.variant}, &step);
    }
  // largest first: the driver's memory pools then fit all that follow
  std::ranges::stable_sort(wanted, std::greater{}, [](const auto& each) {
    return std::int64_t{each.first.tokens} * each.first.rows;
  });
  s.stream.synchronize();
  s.statistics.buckets.reserve(wanted.size());
  int done = 0;
  for (const auto& [key, step] : wanted) {
    if (progress) progress(done++, static_cast<int>(wanted.size()));
    if (s.captures.contains(key)) continue;
    const nvtx_range range("stepgraph capture");
    try {
      // once eagerly, with nothing live: libraries load and handles are made outside the capture
      s.stream.fill(s.buffers.staging, 0, detail::staging_layout{key.rows, key.tokens}.bytes());
      s.enqueue(key, *step);
      s.stream.synchronize();
      const auto start = std::chrono::steady_clock::now();
      const graph made = stepgraph::capture(s.stream, [&](stream_ref) { s.enqueue(key, *step); });
      graph_exec exec = made.instantiate();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      s.reports.push_back({.key = key,
                           .milliseconds = took.count(),
                           .nodes = exec.node_count(),
                           .device_bytes = exec.device_bytes()});
      s.captures.emplace(key, state::captured{std::move(exec), &s.statistics_of(key)});
    } catch (const device_lost&) {
      throw;
    } catch (const std::exception& cause) {
      throw capture_error(message("capture of ", to_string(key), ": ", cause.what()));
    }
  }
  if (progress) progress(done, static_cast<int>(wanted.size()));
  return s.reports;
}

std::span<const capture_report> step_executor::captures() const { return state_->reports; }

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
  int tokens = 0;
  for (const step_row& row : rows) tokens += row.tokens;
  const std::optional<int> slot = s.admit(kind, rows, full);
  if (!slot) {
    ++s.statistics.would_block;
    return std::nullopt;
  }
  const step_key key = s.key_for(kind, static_cast<int>(rows.size()), tokens, variant);
  const auto found = s.captures.find(key);
  STEPGRAPH_EXPECTS(found != s.captures.end(), "step_executor: no capture for ", to_string(key),
                    s.captures.empty() ? "; call capture() first" : "; is its kind and variant among the steps?");
  s.stage(key, rows, *slot);
  found->second.exec.launch(s.stream);
  return s.finish(key, rows, *slot, false);
}

step_ticket step_executor::run_eager(step_kind kind, std::span<const step_row> rows, int variant) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  int tokens = 0;
  for (const step_row& row : rows) tokens += row.tokens;
  const step_definition& step = s.definition(kind, variant);
  const int slot = *s.admit(kind, rows, when_full::wait);
  const step_key key = s.key_for(kind, static_cast<int>(rows.size()), tokens, variant);
  s.stage(key, rows, slot);
  s.enqueue(key, step);
  return s.finish(key, rows, slot, true);
}

bool step_executor::ready(step_ticket ticket) const {
  const state& s = *state_;
  return ticket.sequence <= s.completed || s.slots[ticket.sequence % s.slots.size()].done.query();
}

std::span<const row_result> step_executor::wait(step_ticket ticket) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  const int index = static_cast<int>(ticket.sequence % s.slots.size());
  state::slot& slot = s.slots[index];
  STEPGRAPH_EXPECTS(ticket.sequence > 0 && slot.sequence == ticket.sequence, "step_executor::wait: step ",
                    ticket.sequence, " has been overwritten by step ", slot.sequence, "; wait within ",
                    s.slots.size(), " steps");
  if (ticket.sequence > s.completed) {
    if (!slot.done.query()) slot.done.synchronize();
    s.completed = ticket.sequence;
  }
  return {s.results_of(index), static_cast<std::size_t>(ticket.rows)};
}

std::optional<fault_record> step_executor::fault() const {
  const fault_record& record = *state_->faults;
  if (*const_cast<const volatile std::int32_t*>(&record.status) == 0) return std::nullopt;
  return record;
}

void step_executor::reset_fault() {
  const one_thread guard(state_->busy);
  state_->stream.synchronize();
  *state_->faults = {};
  state_->stream.fill(state_->buffers.fault_taken, 0, sizeof(std::int32_t));
}

device step_executor::where() const { return state_->where; }
stream_ref step_executor::stream() const { return state_->stream; }
const step_limits& step_executor::limits() const { return state_->limits; }
const kv_cache_view& step_executor::kv_cache() const { return state_->buffers.kv; }
const executor_statistics& step_executor::statistics() const { return state_->statistics; }
std::span<const carving_info> step_executor::carvings() const { return state_->device_block.carvings(); }
std::int64_t step_executor::free_pages() const { return state_->requests ? state_->requests->pages().free_pages() : 0; }

std::int64_t step_executor::length_bound(request_id request) const {
  STEPGRAPH_EXPECTS(state_->requests, "step_executor::length_bound: the request table is the embedder's");
  state_->requests->expect_open(request);
  return state_->requests->length_bound(request);
}

}  // namespace stepgraph
