#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/executor_checks.hpp"
#include "runtime/executor_state.hpp"

namespace stepgraph {
namespace {

/// Refuses a change of what lives as long as the executor.
void check_lasting(const step_limits& now, const step_limits& wanted) {
  const auto same = [](const char* name, std::int64_t is, std::int64_t asked) {
    STEPGRAPH_EXPECTS(is == asked, "step_executor::recapture: ", name, " is ", is,
                      " for as long as the executor lives, not ", asked);
  };
  same("max_requests", now.max_requests, wanted.max_requests);
  same("max_context", now.max_context, wanted.max_context);
  same("page_size", now.page_size, wanted.page_size);
  same("kv_pages", now.kv_pages, wanted.kv_pages == 0 ? now.kv_pages : wanted.kv_pages);
  same("vocab_size", now.vocab_size, wanted.vocab_size);
  same("hidden_size", now.hidden_size, wanted.hidden_size);
}

}  // namespace

std::span<const capture_report> step_executor::recapture(const step_limits& wanted,
                                                         std::optional<bucket_policy> row_buckets,
                                                         std::optional<bucket_policy> token_buckets,
                                                         const std::function<void(int, int)>& progress) {
  {
    const one_thread guard(state_->busy);
    state& s = *state_;
    detail::refuse_in_capture("a recapture");
    check_lasting(s.limits, wanted);
    // what the host is still to learn of the rounds in flight, it learns now: their slots go
    s.stream.synchronize();
    s.completed = s.sequence;
    s.settle_all();

    auto before = std::tuple(s.limits, s.options, s.row_buckets, s.token_buckets, s.buffers);
    try {
      s.limits = wanted;
      s.limits.kv_pages = std::get<0>(before).kv_pages;
      s.options.row_buckets = std::move(row_buckets);
      s.options.token_buckets = std::move(token_buckets);
      detail::check_executor(s.where, s.limits, s.buffers.kv.layout, s.steps, s.options);
      s.row_buckets = s.options.row_buckets.value_or(bucket_policy::powers_of_two(wanted.max_rows));
      s.token_buckets =
          s.options.token_buckets.value_or(bucket_policy::powers_of_two(wanted.max_step_tokens));
      const detail::buffer_sizes sizes = s.sizes();
      // the old block and the old executables are held until the new block is there
      const std::size_t held = s.held_bytes(), budget = s.options.memory_budget;
      arena step = detail::carve_step(sizes, s.memory(), budget > held ? budget - held : 0, s.buffers);
      std::vector<carving_info> carvings = s.list_carvings(step);
      s.make_ring(sizes);  // the last that may throw, and changes nothing if it does
      s.blocks.step = std::move(step);
      s.carvings = std::move(carvings);
    } catch (...) {  // as it was, captures included; moved, for memory may be what is missing
      std::tie(s.limits, s.options, s.row_buckets, s.token_buckets, s.buffers) = std::move(before);
      throw;
    }
    s.captures.clear();
    s.reports.clear();
    s.statistics.buckets.clear();
    s.clear_step();
    if (guard_off("recapture-live")) s.clear(s.buffers.kv.layout);
  }
  return capture(progress);
}

/// Every result that is there and has not been waited for.
void step_executor::state::settle_all() {
  if (!requests) return;
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(slots.size()); ++i)
    if (slots[i].sequence > 0) order.push_back(i);
  std::ranges::sort(order, {}, [&](int i) { return slots[i].sequence; });
  for (const int i : order)
    for (int row = 0; row < slots[i].rows; ++row)
      requests->settle(slots[i].requests[row], slots[i].marks[row], results_of(i)[row].length);
}

}  // namespace stepgraph
