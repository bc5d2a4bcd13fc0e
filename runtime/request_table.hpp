#pragma once

#include <cstdint>
#include <vector>

#include "kernels/step/step_prologue.hpp"
#include "runtime/page_allocator.hpp"

namespace stepgraph {

/// A line of the request table, from `open` to `close`.
using request_id = std::int32_t;

/// What the host knows of the requests: which lines are taken, their pages, and an upper bound of their
/// lengths. The true lengths live on the device. Changes reach the device as patches that the next step
/// carries.
class request_table {
 public:
  request_table(int requests, std::int64_t max_context, int page_shift, std::int64_t kv_pages);

  /// Takes a line. Throws `invalid_argument` if all are taken.
  request_id open();

  /// Gives the line and its pages back, the pages once step `fence` is done.
  void close(request_id request, std::uint64_t fence);

  /// Throws `invalid_argument` unless `request` is an open line.
  void expect_open(request_id request) const;

  /// Tokens the request may have in the cache after the steps launched so far, at most.
  std::int64_t length_bound(request_id request) const { return lines_[request].length_bound; }

  /// Pages that `tokens` more tokens would take from the pool.
  std::int64_t pages_needed(request_id request, std::int64_t tokens) const;

  /// Takes pages for `tokens` more tokens and writes a patch for each to `patches`; returns how many. The
  /// caller has checked the context limit and the free pages.
  int grow(request_id request, std::int64_t tokens, page_patch* patches);

  /// True until the request's first step: the device does not know its length yet.
  bool fresh(request_id request) const { return lines_[request].fresh; }

  int open_requests() const noexcept { return open_; }
  std::int64_t max_context() const noexcept { return max_context_; }
  page_allocator& pages() noexcept { return pages_; }
  const page_allocator& pages() const noexcept { return pages_; }

 private:
  struct line {
    bool open = false;
    bool fresh = true;
    std::int64_t length_bound = 0;
    std::vector<std::int32_t> pages;
  };
  std::int64_t max_context_;
  int page_shift_;
  std::vector<line> lines_;
  page_allocator pages_;
  int open_ = 0;
};

}  // namespace stepgraph
