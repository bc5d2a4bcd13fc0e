#include "runtime/page_allocator.hpp"

#include "graphs/guard_off.hpp"

namespace stepgraph {

page_allocator::page_allocator(std::int64_t pages) : pages_(pages) {
  STEPGRAPH_EXPECTS(pages >= 2 && pages <= INT32_MAX,
                    "page_allocator: a pool needs 2 to 2^31 - 1 pages, got ", pages);
  free_.reserve(static_cast<std::size_t>(pages));
  for (std::int64_t page = pages - 1; page >= 1; --page) free_.push_back(static_cast<std::int32_t>(page));
}

std::int32_t page_allocator::take() {
  const std::int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void page_allocator::release(std::span<const std::int32_t> pages, std::uint64_t fence) {
  for (const std::int32_t page : pages) waiting_.push_back({page, fence});
  waiting_pages_ += static_cast<std::int64_t>(pages.size());
}

void page_allocator::reclaim(std::uint64_t done) {
  while (!waiting_.empty() && (waiting_.front().fence <= done || guard_off("abort-reuse"))) {
    free_.push_back(waiting_.front().page);
    waiting_.pop_front();
    --waiting_pages_;
  }
}

}  // namespace stepgraph
