#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "graphs/error.hpp"

namespace stepgraph {

/// The pool has fewer free pages than a step needs.
class out_of_pages : public error {
 public:
  out_of_pages(const std::string& what, std::int64_t needed, std::int64_t there)
      : error(what), needed_(needed), there_(there) {}
  std::int64_t pages_needed() const noexcept { return needed_; }
  std::int64_t pages_there() const noexcept { return there_; }

 private:
  std::int64_t needed_;
  std::int64_t there_;
};

/// Hands out the pages of a KV pool. Page 0 is the sink and never handed out. Released pages carry the number
/// of the last step that could read them and come back only once that step is known to be done.
class page_allocator {
 public:
  /// `pages` of the pool, the sink included.
  explicit page_allocator(std::int64_t pages);

  std::int64_t free_pages() const noexcept { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t waiting_pages() const noexcept { return waiting_pages_; }  // released, behind a fence
  std::int64_t pool_pages() const noexcept { return pages_; }

  /// A free page; the caller has checked `free_pages`.
  std::int32_t take();

  /// Gives pages back once step number `fence` is done.
  void release(std::span<const std::int32_t> pages, std::uint64_t fence);

  /// Step `done`, and all before it, are done: what waited for them is free.
  void reclaim(std::uint64_t done);

 private:
  struct waiting {
    std::int32_t page;
    std::uint64_t fence;
  };
  std::int64_t pages_;
  std::vector<std::int32_t> free_;  // handed out from the back
  std::deque<waiting> waiting_;
  std::int64_t waiting_pages_ = 0;
};

}  // namespace stepgraph
