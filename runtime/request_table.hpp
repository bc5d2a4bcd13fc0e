#pragma once

#include <cstdint>
#include <vector>

#include "kernels/step/request_state.hpp"
#include "runtime/page_allocator.hpp"

namespace stepgraph {

/// A line of the request table, from `open` to `close`.
using request_id = std::int32_t;

/// What a request brings along when it is opened.
struct request_settings {
  std::int32_t budget = INT32_MAX;  // tokens it may emit, where the executor finishes requests
  sampling_settings sampling{};     // for sampled steps
};

/// Pages and length bound of a line before a step.
struct line_growth {
  request_id request;
  std::size_t pages;
  std::int64_t length_bound;
  std::int64_t granted;
};

/// Which growth of which owner of a line a step's result speaks of.
struct line_mark {
  std::uint64_t owner;
  std::int64_t granted;
};

/// What the host knows of the requests: which lines are taken, their pages, and an upper bound of their
/// lengths. The true lengths live on the device. Changes reach the device as patches that the next step
/// carries.
class request_table {
 public:
  request_table(int requests, std::int64_t max_context, int page_shift, std::int64_t kv_pages);

  /// Takes a line. Throws `invalid_argument` if all are taken.
  request_id open(const request_settings& settings = {});

  /// Gives the line and its pages back, the pages once step `fence` is done.
  void close(request_id request, std::uint64_t fence);

  /// Throws `invalid_argument` unless `request` is an open line.
  void expect_open(request_id request) const;

  /// Tokens the request may have in the cache after the steps launched so far, at most.
  std::int64_t length_bound(request_id request) const { return lines_[request].length_bound; }

  /// Pages that `tokens` more tokens would take from the pool; none past the context.
  std::int64_t pages_needed(request_id request, std::int64_t tokens) const;

  /// Takes pages for `tokens` more tokens, as far as the context goes, and writes a patch for each to
  /// `patches`; returns how many. The caller has checked the free pages.
  int grow(request_id request, std::int64_t tokens, page_patch* patches);

  /// What `request` has now, to come back to.
  line_growth state_of(request_id request) const {
    const line& now = lines_[request];
    return {request, now.pages.size(), now.length_bound, now.granted};
  }

  /// Tokens that its pages can hold.
  std::int64_t capacity(request_id request) const {
    return static_cast<std::int64_t>(lines_[request].pages.size()) << page_shift_;
  }

  const request_settings& settings(request_id request) const { return lines_[request].settings; }

  /// Takes growth since `before` back: the step was not launched. Its pages wait for step `fence`.
  void shrink(const line_growth& before, std::uint64_t fence);

  /// The request takes part in a step with `tokens` tokens. Says what the step's result will speak of.
  line_mark note_step(request_id request, std::int64_t tokens) {
    if (tokens > 0) lines_[request].fresh = false;
    return {lines_[request].owner, lines_[request].granted};
  }

  /// The step of `mark` is done and left the request with `length` tokens: of the bound only what later steps
  /// may add stays uncertain. Nothing, if the line is another request's by now.
  void settle(request_id request, const line_mark& mark, std::int64_t length);

  /// True if the line is taken and the device knows a length of it.
  bool has_tokens(request_id request) const { return lines_[request].open && !lines_[request].fresh; }

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
    std::int64_t granted = 0;  // tokens that all its steps so far might have added
    std::uint64_t owner = 0;   // number of the request that has the line
    request_settings settings{};
    std::vector<std::int32_t> pages;
  };
  std::int64_t max_context_;
  int page_shift_;
  std::vector<line> lines_;
  page_allocator pages_;
  int open_ = 0;
  std::uint64_t owners_ = 0;
  request_id next_ = 0;  // where `open` begins to look
};

}  // namespace stepgraph
