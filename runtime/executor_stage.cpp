#include <algorithm>

#include "runtime/executor_state.hpp"

namespace stepgraph {
namespace {

constexpr std::int32_t device_knows = -1;

/// The row's tokens and parents, packed behind those of the rows before it; -1 where the device knows a token:
/// the one sampled last, and a draft model's drafts.
void stage_tokens(const step_row& row, bool drafts, std::int32_t* tokens, std::int32_t* parents) {
  const auto known = static_cast<int>(row.token_ids.size());
  const int unknown = drafts ? std::min(row.tokens, 1) : row.tokens - known;
  for (int j = 0; j < row.tokens; ++j)
    tokens[j] = j >= unknown && j - unknown < known ? row.token_ids[j - unknown] : device_knows;
  if (!parents) return;
  for (int j = 0; j < row.tokens; ++j) parents[j] = row.parents.empty() ? j - 1 : row.parents[j];
}

}  // namespace

/// Writes the round into its staging buffer and enqueues the copy.
void step_executor::state::stage(const plan& wanted, const step_round& round, int index) {
  const step_key& key = wanted.target;
  const bool verify = key.kind == step_kind::target_verify;
  const bool tree = verify && definition(key.kind, key.variant).tree;
  const detail::staging_layout layout{key.rows, key.tokens, tree};
  if (options.poison) poison_host(index);
  std::byte* const block = staging.data() + staging_bytes * index;
  const auto at = [&](std::size_t offset) { return reinterpret_cast<std::int32_t*>(block + offset); };
  slot& used = slots[index];
  used.growth.clear();
  // joins are written where they will lie, patches behind as many joins as there may be
  auto* const joins = reinterpret_cast<request_join*>(block + layout.joins());
  const std::size_t patch_offset = layout.joins() + sizeof(request_join) * key.rows;
  auto* const patches = reinterpret_cast<page_patch*>(block + patch_offset);
  int join_count = 0, patch_count = 0, token = 0;
  for (std::size_t r = 0; r < round.rows.size(); ++r) {
    const step_row& row = round.rows[r];
    at(layout.requests())[r] = row.request;
    at(layout.query_counts())[r] = row.tokens;
    at(layout.token_starts())[r] = token;
    at(layout.following())[r] = row.following;
    stage_tokens(row, verify, at(layout.token_ids()) + token, tree ? at(layout.parents()) + token : nullptr);
    token += row.tokens;
    at(layout.joins_of())[r] = -1;
    at(layout.capacities())[r] = INT32_MAX;
    if (!requests) continue;
    if (requests->fresh(row.request)) {
      const request_settings& settings = requests->settings(row.request);
      joins[join_count] = {.sampling = settings.sampling, .budget = settings.budget, .reserved = 0};
      at(layout.joins_of())[r] = join_count++;
    }
    used.growth.push_back(requests->state_of(row.request));
    patch_count += requests->grow(row.request, row.tokens, patches + patch_count);
    at(layout.capacities())[r] = guard_off("kv-lookahead")
                                     ? INT32_MAX
                                     : static_cast<std::int32_t>(std::min<std::int64_t>(
                                           requests->capacity(row.request), limits.max_context));
  }
  *reinterpret_cast<staged_header*>(block) = {
      .live_rows = static_cast<std::int32_t>(round.rows.size()),
      .patches = patch_count,
      .joins = join_count,
      .result_slot = index,
      .patch_offset = static_cast<std::int32_t>(patch_offset),
      .join_offset = static_cast<std::int32_t>(layout.joins()),
      .accepts = verify ? 1 : 0,
      .draft_steps = wanted.before ? wanted.before->steps : 0,
      .last_reader = static_cast<std::int32_t>(wanted.after ? wanted.after->kind : key.kind),
      .reserved = 0,
      .sequence = slots[index].sequence};
  if (options.poison) poison(index);
  const std::size_t end = patch_count > 0  ? patch_offset + sizeof(page_patch) * patch_count
                          : join_count > 0 ? layout.joins() + sizeof(request_join) * join_count
                                           : layout.joins();
  // note: from pageable memory the driver takes what is this small into its own queue at once, and the device is
  // spared a transfer by the copy engine between two rounds; what is larger might make the host wait
  if (!where.is_host() && end <= direct_bytes) {
    std::byte* const direct = direct_staging.data() + direct_bytes * index;
    std::copy_n(block, end, direct);
    return stream.copy(buffers.staging, direct, end);
  }
  stream.copy(buffers.staging, block, end);
}

void step_executor::state::count(const plan& wanted, std::span<const step_row> rows) {
  for (const auto& key : {wanted.before, std::optional(wanted.target), wanted.after}) {
    if (!key) continue;
    bucket_statistics& counted = statistics.buckets[captures.at(*key).statistics];
    ++counted.replays;
    counted.live_rows += rows.size();
    counted.captured_pages += static_cast<std::uint64_t>(key->rows) * buffers.page_columns;
    for (const step_row& row : rows) {
      counted.live_tokens += key->kind == step_kind::draft_decode ? key->steps : row.tokens;
      if (requests) counted.live_pages += pages_of(requests->length_bound(row.request), page_shift);
    }
  }
}

/// What the device's clock said of the round that used a slot last; the round is done.
void step_executor::state::read_times(slot& used) {
  step_times& all = statistics.times;
  bool first = true;
  for (const step_key& key : used.timed) {
    const std::int64_t* const clock =
        times.data() + (&used - slots.data()) * clock_marks + part_marks * part_of(key.kind);
    const std::int64_t begin = clock[0], end = clock[part_marks - 1];
    all.by_kind[static_cast<int>(key.kind)].add(1e-3 * double(end - begin));
    if (all.last_end > 0)
      (first ? all.between_rounds : all.between_steps).add(1e-3 * double(begin - all.last_end), used.late);
    all.last_end = end;
    first = false;
    // of draft decodes there may have been fewer than the most
    std::vector<node_time>& nodes = all.nodes[static_cast<int>(key.kind)];
    const int fewer = key.kind == step_kind::draft_decode ? step_counts(key.kind).back() - key.steps : 0;
    for (int node = 0; node < static_cast<int>(nodes.size()) - fewer; ++node)
      nodes[node].time.add(1e-3 * double(clock[node + 1] - clock[node]));
  }
  used.timed.clear();
}

}  // namespace stepgraph
