#include "bench/replay/measured_step.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "bench/replay/device_work.hpp"
#include "graphs/error.hpp"
#include "kernels/sparse/index_k_cache.hpp"

namespace stepgraph::bench {
namespace {

constexpr int early_exit_chunk = 256;  // columns of a block of a grid sized by the captured width

template <class T>
buffer upload(stream_ref at, const std::vector<T>& values) {
  buffer made(device_memory(at.where()), std::max<std::size_t>(values.size() * sizeof(T), 16));
  at.copy(made.data(), values.data(), values.size() * sizeof(T));
  at.synchronize();
  return made;
}

/// The pages of every row: its live ones its own, in shuffled order, those beyond them anywhere in the pool.
std::vector<std::int32_t> request_table(const replay_case& c, std::uint64_t seed) {
  const std::int64_t columns = c.width / c.page_size, pool = c.pool_pages() - 1;
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> pages(pool), table;
  for (std::int64_t i = 0; i < pool; ++i) pages[i] = static_cast<std::int32_t>(i + 1);
  std::ranges::shuffle(pages, random);
  const std::int64_t own = (c.row_tokens() + c.page_size - 1) / c.page_size;
  table.reserve(c.batch * columns);
  std::int64_t next = c.batch * own;
  for (int row = 0; row < c.batch; ++row)
    for (std::int64_t p = 0; p < columns; ++p)
      table.push_back(p < own ? pages[row * own + p] : pages[next++ % pool]);
  return table;
}

}  // namespace

measured_step::measured_step(stream_ref at, const replay_case& wanted, const replay_model& model,
                             const replay_model* draft, std::uint64_t seed)
    : at_(at), case_(wanted), model_(model), draft_(draft), seed_(seed), executor_(make_executor()) {
  executor_.capture();
  std::uint32_t salt = static_cast<std::uint32_t>(seed);
  for (const kv_pages_view& layer : executor_.kv_cache().layers)
    for (const void* half : {layer.keys, layer.values})
      fill_device(at_, const_cast<void*>(half), layer.pages * layer.page_stride, ++salt);
  for (int i = 0; i < 2; ++i) replay();  // a round needs the drafts of the one before
  at_.synchronize();
  const auto add = [&](step_kind kind) {
    const auto found = std::ranges::find_if(
        executor_.captures(), [&](const capture_report& each) { return each.key.kind == kind; });
    const bool replaced = case_.policy.other && !is_draft(kind);
    parts_.push_back({to_string(kind),
                      step_graph::capture(
                          at_, [&] { executor_.enqueue_step(found->key); }, replaced),
                      *found});
  };
  if (case_.step == replay_step::round && case_.drafts > 1) add(step_kind::draft_decode);
  if (case_.step != replay_step::draft_extend) add(target_kind());
  if (draft_) add(step_kind::draft_extend);
  at_.synchronize();
}

step_kind measured_step::target_kind() const {
  return verifies() ? step_kind::target_verify : step_kind::decode;
}

std::vector<step_definition> measured_step::definitions() {
  std::vector<step_definition> steps;
  const auto add = [&](step_kind kind, const replay_model& model, bool sampled) {
    steps.push_back({.kind = kind,
                     .variant = 0,
                     .body = [this](const step_context& step) { body(step); },
                     .scratch_bytes =
                         [kind, &model](int rows, int tokens) {
                           return model.scratch_bytes({.kind = kind, .rows = rows, .tokens = tokens});
                         },
                     .sampled = sampled});
  };
  // a sampled verify step accepts in its body, and here the accept is simulated
  add(target_kind(), model_, verifies());
  if (draft_) add(step_kind::draft_extend, *draft_, false);
  if (draft_ && case_.drafts > 1) add(step_kind::draft_decode, *draft_, false);
  return steps;
}

step_executor measured_step::make_executor() {
  const int rows = case_.batch, vocab = model_.vocab_size();
  std::mt19937_64 random(seed_);
  const auto tokens_of = [&](int row) { return verifies() ? case_.verify_tokens(row) : 1; };
  for (int row = 0; row < rows; ++row) tokens_ += tokens_of(row);
  ids_.resize(std::size_t(tokens_) + rows);
  for (std::int32_t& id : ids_) id = static_cast<std::int32_t>(random() % vocab);
  double kept = 0;
  std::size_t used = 0;
  for (int row = 0; row < rows; ++row) {
    // drafts are the host's unless there is a draft model
    const int given = draft_ ? 0 : tokens_of(row) - 1;
    rows_.push_back({.request = row,
                     .tokens = tokens_of(row),
                     .token_ids = {ids_.data() + used, static_cast<std::size_t>(given)},
                     .parents = {}});
    used += given;
    kept += verifies() ? std::min<double>(tokens_of(row), case_.accept.mean() + 1) : 1;
  }
  advance_ = kept / rows;
  bucket_tokens_ = verifies() ? std::max(rows, tokens_) : rows;

  const std::int64_t columns = case_.width / case_.page_size;
  table_ = upload(at_, request_table(case_, seed_));
  seq_lens_ = upload(at_, std::vector<std::int32_t>(rows, 0));
  last_token_ = upload(at_, std::vector<std::int32_t>(ids_.begin(), ids_.begin() + rows));
  full_lengths_ = upload(
      at_, std::vector<std::int32_t>(std::max(rows, bucket_tokens_), static_cast<std::int32_t>(case_.width)));
  // one line of lengths for every number of launches that a measurement may have
  std::vector<std::int32_t> lengths;
  for (int launches = 0; launches <= most_launches; ++launches)
    for (int row = 0; row < rows; ++row) {
      const auto growth = static_cast<std::int64_t>(std::lround(advance_ * launches / 2));
      const std::int64_t most = case_.row_tokens() - std::int64_t{launches + 1} * case_.max_query_count();
      const std::int64_t wanted = case_.live - tokens_of(row) - growth;
      lengths.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(0, std::min(wanted, most))));
    }
  lengths_ = upload(at_, lengths);
  std::vector<float> accept = case_.accept.cumulative();
  accept.resize(case_.drafts + 2, 1.0f);
  accept.back() = 0;  // the count of rounds
  accept_ = upload(at_, accept);

  around_ = {.source = {.table = table_.as<std::int32_t>(),
                        .row_stride = columns,
                        .requests = rows,
                        .columns = columns,
                        .page_shift = std::countr_zero(static_cast<unsigned>(case_.page_size)),
                        .page_granular = true,
                        .pool_pages = case_.pool_pages()},
             .seq_lens = seq_lens_.as<std::int32_t>(),
             .width = case_.width,
             .max_query_count = case_.max_query_count()};
  if (const int topk = case_.model.sparse_topk; topk > 0) {
    std::vector<std::int32_t> kept_tokens;
    for (int i = 0; i < bucket_tokens_ * topk; ++i)
      kept_tokens.push_back(i % topk < case_.live ? static_cast<std::int32_t>(random() % case_.live) : -1);
    topk_ = upload(at_, kept_tokens);
    around_.topk_indices = topk_.as<std::int32_t>();
    const std::int64_t line = index_k_cache::key_bytes + index_k_cache::scale_bytes;
    const std::int64_t cached = case_.model.config.layers * case_.pool_pages() * case_.page_size * line;
    around_.index_capacity = rows * case_.row_tokens();
    index_cache_ = buffer(device_memory(at_.where()), cached);
    index_keys_ = buffer(device_memory(at_.where()), around_.index_capacity * line);
    at_.fill(index_cache_.data(), 1, index_cache_.bytes());
    around_.index_cache = index_cache_.as<std::uint8_t>();
    around_.index_keys = index_keys_.as<std::uint8_t>();
    around_.index_scales = reinterpret_cast<std::uint32_t*>(
        around_.index_keys + around_.index_capacity * index_k_cache::key_bytes);
  }

  sampling_ = upload(at_, std::vector<sampling_settings>(rows));

  const step_limits limits{.max_rows = rows,
                           .max_step_tokens = bucket_tokens_,
                           .max_draft_tokens = verifies() ? case_.drafts : 0,
                           .max_requests = rows,
                           .max_context = case_.width,
                           .page_size = case_.page_size,
                           .kv_pages = case_.pool_pages(),
                           .vocab_size = vocab,
                           .hidden_size = draft_ ? case_.model.config.hidden_size : 0,
                           .in_flight = 8};
  executor_options options{.stream = at_,
                           .requests = adopted_requests{.source = around_.source,
                                                        .seq_lens = seq_lens_.as<std::int32_t>(),
                                                        .last_token = last_token_.as<std::int32_t>(),
                                                        .sampling = sampling_.as<sampling_settings>()},
                           .row_buckets = bucket_policy::exactly({rows}),
                           .token_buckets = bucket_policy::exactly({bucket_tokens_}),
                           .draft_lengths = {case_.drafts}};
  if (draft_)
    options.draft =
        draft_shape{.layout = draft_->layout(), .hidden_size = limits.hidden_size, .vocab_size = vocab};
  else
    options.draft_lengths.clear();
  return step_executor(at_.where(), limits, model_.layout(), definitions(), std::move(options));
}

void measured_step::body(const step_context& step) const {
  step_context seen = step;
  seen.sampled = false;  // every token's argmax is enough: which drafts stay is not the target's to say
  if (is_draft(step.key.kind)) return draft_->enqueue(seen, around_);
#if STEPGRAPH_CUDA
  if (case_.policy.other) {
    decode_by(*case_.policy.other, step.stream,
              {.lengths = around_.lengths(step),
               .requests = step.requests,
               .source = around_.source,
               .cache_seqlens = const_cast<std::int32_t*>(step.cache_seqlens),
               .cu_seqlens_k = const_cast<std::int32_t*>(step.cu_seqlens_k),
               .page_table = const_cast<std::int32_t*>(step.page_table),
               .page_table_stride = step.page_table_stride,
               .page_columns = step.page_columns});
    if (*case_.policy.other == guard_policy::full_width)  // what a mask would drop is read all the same
      seen.cache_seqlens = seen.causal_length = full_lengths_.as<std::int32_t>();
  }
#endif
  model_.enqueue(seen, around_);
  if (case_.policy.other == guard_policy::early_exit)
    for (int layer = 0; layer < case_.model.config.layers; ++layer)
      dead_blocks(step.stream, {.cache_seqlens = step.cache_seqlens,
                                .rows = step.key.rows,
                                .heads = case_.model.config.kv_heads,
                                .width = case_.width,
                                .chunk = early_exit_chunk});
  if (verifies())
    simulated_accept(step.stream,
                     {.verify = {.live_rows = step.live_rows,
                                 .rows = step.key.rows,
                                 .max_query_count = static_cast<std::int32_t>(step.accepted.stride),
                                 .cu_seqlens_q = step.cu_seqlens_q,
                                 .token_ids = step.token_ids},
                      .cumulative = accept_.as<float>(),
                      .seed = seed_,
                      .rounds = accept_.as<std::uint32_t>() + case_.drafts + 1,
                      .result = step.accepted});
}

void measured_step::rewind(int launches) {
  const std::ptrdiff_t line = std::min(launches, most_launches);
  at_.copy(seq_lens_.data(), lengths_.as<std::int32_t>() + line * case_.batch,
           case_.batch * sizeof(std::int32_t));
}

void measured_step::replay() {
  last_ = *executor_.replay(step_round{.kind = target_kind(),
                                       .rows = rows_,
                                       .draft_length = draft_ ? case_.drafts : 0,
                                       .extend_draft = draft_ != nullptr});
}

double measured_step::kept() {
  double sum = 0;
  for (const row_result& row : executor_.wait(last_)) sum += row.count - 1;
  return sum / case_.batch;
}

std::size_t measured_step::staging_bytes() const {
  return sizeof(staged_header) + (6ul * case_.batch + bucket_tokens_) * sizeof(std::int32_t);
}

std::int64_t measured_step::step_bytes() const {
  const std::int64_t read = case_.policy.other == guard_policy::full_width ? case_.width : case_.live;
  const auto kept = static_cast<int>(case_.batch * advance_);
  std::int64_t bytes =
      case_.step == replay_step::draft_extend ? 0 : model_.step_bytes(case_.batch, tokens_, read);
  if (draft_) bytes += draft_->step_bytes(case_.batch, kept, read);
  if (case_.step == replay_step::round)
    bytes += (case_.drafts - 1) * draft_->step_bytes(case_.batch, case_.batch, read);
  return bytes;
}

void measured_step::expect_no_fault() const {
  if (const auto fault = executor_.fault())
    throw error(message(
        case_.name(), ": the device reported ", to_string(static_cast<row_status>(fault->status)), " in ",
        to_string(static_cast<op_id>(fault->op)), ", row ", fault->row, ", value ", fault->value));
}

}  // namespace stepgraph::bench
