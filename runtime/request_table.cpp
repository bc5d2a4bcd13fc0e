#include "runtime/request_table.hpp"

#include <algorithm>

#include "graphs/guard_off.hpp"

namespace stepgraph {

request_table::request_table(int requests, std::int64_t max_context, int page_shift, std::int64_t kv_pages)
    : max_context_(max_context), page_shift_(page_shift), lines_(requests), pages_(kv_pages) {
  // room for the longest request now, so that growing in a replay allocates nothing
  for (line& each : lines_) each.pages.reserve(static_cast<std::size_t>(pages_of(max_context, page_shift)));
}

request_id request_table::open(const request_settings& settings) {
  // the line after the one opened last comes first, so that a stale id does not name a new owner at once
  const auto start = lines_.begin() + next_;
  auto free = std::find_if(start, lines_.end(), [](const line& each) { return !each.open; });
  if (free == lines_.end()) free = std::ranges::find(lines_, false, &line::open);
  STEPGRAPH_EXPECTS(free != lines_.end(), "request_table: all ", lines_.size(),
                    " requests are taken; close one, or raise max_requests");
  free->open = true;
  free->fresh = true;
  free->length_bound = 0;
  free->granted = 0;
  free->owner = ++owners_;
  free->settings = settings;
  ++open_;
  const auto opened = static_cast<request_id>(free - lines_.begin());
  next_ = (opened + 1) % static_cast<request_id>(lines_.size());
  return opened;
}

void request_table::close(request_id request, std::uint64_t fence) {
  expect_open(request);
  line& closed = lines_[request];
  pages_.release(closed.pages, fence);
  closed.pages.clear();
  closed.open = false;
  --open_;
}

void request_table::expect_open(request_id request) const {
  STEPGRAPH_EXPECTS(request >= 0 && request < static_cast<request_id>(lines_.size()), "request ", request,
                    " is outside the table of ", lines_.size());
  STEPGRAPH_EXPECTS(lines_[request].open, "request ", request, " is not open");
}

std::int64_t request_table::pages_needed(request_id request, std::int64_t tokens) const {
  const line& grown = lines_[request];
  return pages_of(std::min(grown.length_bound + tokens, max_context_), page_shift_) -
         static_cast<std::int64_t>(grown.pages.size());
}

int request_table::grow(request_id request, std::int64_t tokens, page_patch* patches) {
  line& grown = lines_[request];
  const auto count = static_cast<int>(
      std::max<std::int64_t>(0, pages_needed(request, guard_off("kv-lookahead") ? 1 : tokens)));
  for (int i = 0; i < count; ++i) {
    const std::int32_t page = pages_.take();
    patches[i] = {request, static_cast<std::int32_t>(grown.pages.size()), page};
    grown.pages.push_back(page);
  }
  grown.length_bound = std::min(grown.length_bound + tokens, max_context_);
  grown.granted += tokens;
  return count;
}

void request_table::shrink(const line_growth& before, std::uint64_t fence) {
  line& shrunk = lines_[before.request];
  pages_.release(std::span(shrunk.pages).subspan(before.pages), fence);
  shrunk.pages.resize(before.pages);
  shrunk.length_bound = before.length_bound;
  shrunk.granted = before.granted;
}

void request_table::settle(request_id request, const line_mark& mark, std::int64_t length) {
  line& settled = lines_[request];
  if (!settled.open || settled.owner != mark.owner) return;
  settled.length_bound =
      std::min(settled.length_bound, std::min(length + settled.granted - mark.granted, max_context_));
}

}  // namespace stepgraph
