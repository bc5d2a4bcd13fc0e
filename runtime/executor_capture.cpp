#include <algorithm>
#include <chrono>

#include "graphs/nvtx.hpp"
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
    if (tokens >= most && guard_off("coverage")) break;
    sizes.push_back(tokens);
    if (tokens >= most) break;
  }
  if (sizes.empty()) sizes.push_back(rows);
  return sizes;
}

/// Draft decodes in one graph that a step is captured for.
std::vector<int> step_executor::state::step_counts(step_kind kind) const {
  if (kind != step_kind::draft_decode) return {1};
  std::vector<int> counts;
  for (int length = guard_off("draft-length") ? limits.max_draft_tokens : 2;
       length <= limits.max_draft_tokens; ++length)
    if (options.draft_lengths.empty() || std::ranges::count(options.draft_lengths, length) > 0)
      counts.push_back(length - 1);
  return counts;
}

step_key step_executor::state::key_for(step_kind kind, int rows, int tokens, int variant) const {
  if (guard_off("key")) variant = 0;
  const int bucket = row_buckets.bucket_for(std::max(rows, 1));
  const int wanted = std::max(tokens, bucket);
  if (!is_ragged(kind) || wanted > token_buckets.largest())
    return {.kind = kind, .rows = bucket, .tokens = bucket, .variant = variant};
  return {.kind = kind, .rows = bucket, .tokens = token_buckets.bucket_for(wanted), .variant = variant};
}

/// What the driver took for the executables so far counts against the budget as the carvings do.
std::size_t step_executor::state::held_bytes() const {
  std::size_t held = blocks.step.bytes() + blocks.lasting.bytes();
  for (const capture_report& each : reports) held += each.device_bytes;
  return held;
}

void step_executor::state::require_executables_fit() const {
  const std::size_t needed = held_bytes();
  if (needed > options.memory_budget)
    throw out_of_memory(message(needed, " bytes needed with the executables captured so far, ",
                                options.memory_budget, " there"),
                        needed, options.memory_budget);
}

/// Forgets what was captured as number `first` of the reports and later.
void step_executor::state::drop_captures(std::size_t first) noexcept {
  std::erase_if(captures, [first](const auto& each) { return each.second.statistics >= first; });
  reports.erase(reports.begin() + static_cast<std::ptrdiff_t>(first), reports.end());
  auto& buckets = statistics.buckets;
  if (buckets.size() > first)
    buckets.erase(buckets.begin() + static_cast<std::ptrdiff_t>(first), buckets.end());
}

void step_executor::state::capture_one(const step_key& key, const step_definition& step) {
  const nvtx_range range("stepgraph capture");
  detail::refuse_in_capture("another capture");
  try {
    // once eagerly, with nothing live: libraries load and handles are made outside the capture
    stage_nothing();
    // note: what follows a target step takes its rows, and there may have been none yet
    stream.fill(buffers.live_rows, 0, sizeof(std::int32_t));
    enqueue(key, step);
    stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    const graph made = stepgraph::capture(stream, [&](stream_ref) { enqueue(key, step); });
    graph_exec exec = made.instantiate();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    reports.push_back({.key = key,
                       .milliseconds = took.count(),
                       .nodes = exec.node_count(),
                       .device_bytes = exec.device_bytes(),
                       .programmatic_edges = made.programmatic_edges()});
    require_executables_fit();
    captures.emplace(key, captured{std::move(exec), statistics.buckets.size()});
    statistics.buckets.push_back({.key = key});
  } catch (const device_lost&) {
    throw;
  } catch (const out_of_memory& cause) {
    throw out_of_memory(message("capture of ", to_string(key), ": ", cause.what()), cause.bytes_needed(),
                        cause.bytes_there());
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
  STEPGRAPH_EXPECTS(!is_ragged(kind) || tokens <= s.token_buckets.largest(), "step_executor::dot: ", tokens,
                    " tokens are over the largest bucket, ", s.token_buckets.largest());
  step_key key = s.key_for(kind, rows, tokens, variant);
  key.steps = s.step_counts(kind).empty() ? 1 : s.step_counts(kind).back();
  stepgraph::capture(s.stream, [&](stream_ref) { s.enqueue(key, step); }).dot(out);
}

void step_executor::enqueue_step(const step_key& key) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  const step_definition& step = s.definition(key.kind, key.variant);
  // buffers are sized for the buckets: another shape's nodes would write past their ends
  const auto among = [](std::span<const int> sizes, int wanted) {
    return std::ranges::find(sizes, wanted) != sizes.end();
  };
  STEPGRAPH_EXPECTS(among(s.row_buckets.sizes(), key.rows), "step_executor::enqueue_step: ", key.rows,
                    " rows are no bucket, the largest is ", s.row_buckets.largest());
  const std::vector<int> tokens = s.token_sizes(key.kind, key.rows), steps = s.step_counts(key.kind);
  STEPGRAPH_EXPECTS(among(tokens, key.tokens), "step_executor::enqueue_step: ", key.tokens,
                    " tokens are no bucket of ", to_string(key.kind), " with ", key.rows,
                    " rows, the largest is ", tokens.back());
  STEPGRAPH_EXPECTS(among(steps, key.steps), "step_executor::enqueue_step: ", key.steps, " steps of ",
                    to_string(key.kind), " are none that this executor captures");
  s.enqueue(key, step);
}

std::span<const capture_report> step_executor::capture(const std::function<void(int, int)>& progress) {
  const one_thread guard(state_->busy);
  state& s = *state_;
  std::vector<std::pair<step_key, const step_definition*>> wanted;
  for (const step_definition& step : s.steps)
    for (const int rows : s.row_buckets.sizes())
      for (const int tokens : s.token_sizes(step.kind, rows))
        for (const int steps : s.step_counts(step.kind))
          wanted.emplace_back(step_key{step.kind, rows, tokens, step.variant, steps}, &step);
  // largest first: the driver's memory pools then fit all that follow
  std::ranges::stable_sort(wanted, std::greater{}, [](const auto& each) {
    return std::int64_t{each.first.tokens} * each.first.rows;
  });
  s.stream.synchronize();
  int done = 0;
  const std::size_t before = s.reports.size();
  try {
    for (const auto& [key, step] : wanted) {
      if (progress) progress(done++, static_cast<int>(wanted.size()));
      if (s.captures.contains(key)) continue;
      s.capture_one(key, *step);
    }
    if (progress) progress(done, static_cast<int>(wanted.size()));
  } catch (...) {
    if (!guard_off("memory-budget")) s.drop_captures(before);
    throw;
  }
  return s.reports;
}

}  // namespace stepgraph
