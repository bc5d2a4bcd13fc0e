// A request table that its owner overwrites while the step still runs: docs/faults.md.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "graphs/error.hpp"
#include "runtime/before_metadata.hpp"
#include "runtime/step_executor.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t wild = 0x7f7f7f7f;
constexpr int requests = 2, start[requests] = {20, 37}, most_tokens = 64, hidden_size = 8, vocab_size = 10;
constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

/// A round, and which of its steps reads the table last.
struct fence_case {
  const char* name;
  step_kind kind;
  int page_size;
  int tokens = 1;  // of each row
  bool tree = false;
  bool extend_draft = false;
  int draft_length = 0;  // of the device's drafts
};

constexpr fence_case every_case[]{
    {.name = "decode", .kind = step_kind::decode, .page_size = 4},
    {.name = "extend", .kind = step_kind::extend, .page_size = 4, .tokens = 5},
    {.name = "verify of chains", .kind = step_kind::target_verify, .page_size = 4, .tokens = 3},
    {.name = "verify of chains, pages of a token",
     .kind = step_kind::target_verify,
     .page_size = 1,
     .tokens = 3},
    {.name = "verify of trees", .kind = step_kind::target_verify, .page_size = 4, .tokens = 3, .tree = true},
    // the commit writes the table: it is the last to touch it
    {.name = "verify of trees, pages of a token",
     .kind = step_kind::target_verify,
     .page_size = 1,
     .tokens = 3,
     .tree = true},
    {.name = "draft_extend", .kind = step_kind::decode, .page_size = 4, .extend_draft = true},
    // it makes its own table where a page is a token
    {.name = "draft_extend, pages of a token",
     .kind = step_kind::decode,
     .page_size = 1,
     .extend_draft = true},
    {.name = "draft_decode before",
     .kind = step_kind::target_verify,
     .page_size = 4,
     .tokens = 3,
     .draft_length = 2},
    {.name = "draft_decode before, draft_extend after, pages of a token",
     .kind = step_kind::target_verify,
     .page_size = 1,
     .tokens = 3,
     .extend_draft = true,
     .draft_length = 2},
};

/// An embedder's executor: every body takes long, and chooses token 0.
struct fenced_executor {
  explicit fenced_executor(const fence_case& how)
      : how(how),
        page_shift(how.page_size == 1 ? 0 : 2),
        columns(most_tokens / how.page_size),
        at(test_device()),
        slow(at,
             at.where().is_host() ? 1 << 23
             : test_small()       ? 1 << 10
                                  : 1 << 25,
             0),
        pages(pages_of_all()),
        table(at, pages),
        lengths(at, {start[0], start[1]}),
        last(at, requests, 3),
        executor(test_device(), limits(), layout, steps(), options()) {
    // a long time before the last node that reads the table, and another after it
    detail::before_metadata = [this](stream_ref on) { take_long(on); };
    executor.capture();
  }
  ~fenced_executor() { detail::before_metadata = nullptr; }
  fenced_executor(const fenced_executor&) = delete;
  fenced_executor& operator=(const fenced_executor&) = delete;

  /// On a GPU a long time; on the host, where the table may be overwritten by now, until it is.
  void take_long(stream_ref on) {
    if (on.is_host())
      return enqueue_host(on, "pause", [this] {
        while (watched && !overwritten && executor.table_read(*watched)) std::this_thread::yield();
      });
    for (int i = 0; i < (test_small() ? 1 : 20); ++i) on.fill(slow.data(), 1, slow.size());
  }
  bool drafts() const { return how.extend_draft || how.draft_length > 0; }

  step_limits limits() const {
    return {.max_rows = requests,
            .max_step_tokens = requests * how.tokens,
            .max_draft_tokens = std::max(how.tokens - 1, drafts() ? 1 : 0),
            .max_requests = requests,
            .max_context = most_tokens,
            .page_size = how.page_size,
            .kv_pages = requests * columns + 1,
            .vocab_size = vocab_size,
            .hidden_size = drafts() ? hidden_size : 0};
  }
  executor_options options() const {
    executor_options made{.stream = at.ref(),
                          .requests = adopted_requests{.source = {.table = table.data(),
                                                                  .row_stride = columns,
                                                                  .requests = requests,
                                                                  .columns = columns,
                                                                  .page_shift = page_shift,
                                                                  .page_granular = true,
                                                                  .pool_pages = 0},
                                                       .seq_lens = lengths.data(),
                                                       .last_token = last.data()},
                          .row_buckets = bucket_policy::exactly({requests}),
                          .token_buckets = bucket_policy::exactly({requests * how.tokens}),
                          .read_fence = true};
    if (drafts())
      made.draft = draft_shape{.layout = layout, .hidden_size = hidden_size, .vocab_size = vocab_size};
    return made;
  }
  std::vector<step_definition> steps() {
    std::vector<step_definition> all{{.kind = how.kind, .tree = how.tree}};
    if (how.extend_draft) all.push_back({.kind = step_kind::draft_extend});
    if (how.draft_length > 1) all.push_back({.kind = step_kind::draft_decode});
    for (step_definition& step : all)
      step.body = [this](const step_context& context) {
        seen.insert_or_assign(context.key.kind, context);
        take_long(context.stream);
        if (fails && context.key.kind == *fails && context.stream.is_capturing())
          throw std::runtime_error("the body failed");
        const auto zero = [&](std::int32_t* tokens, int count) {
          if (tokens) context.stream.fill(tokens, 0, sizeof(std::int32_t) * count);
        };
        zero(context.next_token, context.key.rows);
        zero(context.feed_token, context.key.rows);
        if (context.key.kind == step_kind::target_verify) zero(context.argmax, context.key.tokens);
      };
    return all;
  }

  /// A round of all requests. The drafts are right, in a tree those of its second path.
  step_ticket replay() {
    static constexpr std::int32_t zeros[8]{}, second_right[]{1, 0}, parents[]{-1, 0, 0};
    std::vector<step_row> rows;
    for (int r = 0; r < requests; ++r) {
      step_row row{.request = r, .tokens = how.tokens};
      if (how.kind == step_kind::extend) row.token_ids = std::span(zeros).first(how.tokens);
      if (how.kind == step_kind::target_verify && how.draft_length == 0)
        row.token_ids = how.tree ? std::span(second_right) : std::span(zeros).first(how.tokens - 1);
      if (how.tree) row.parents = parents;
      rows.push_back(row);
    }
    return *executor.replay(
        {.kind = how.kind, .rows = rows, .draft_length = how.draft_length, .extend_draft = how.extend_draft});
  }

  std::vector<std::int32_t> read(const std::int32_t* from, std::size_t count) const {
    std::vector<std::int32_t> values(count);
    at.ref().copy(values.data(), from, sizeof(std::int32_t) * count);
    at.synchronize();
    return values;
  }
  std::int32_t slot_of(int request, int position) const {
    return (pages[request * columns + (position >> page_shift)] << page_shift) + position % how.page_size;
  }

  std::vector<std::int32_t> pages_of_all() const {
    std::vector<std::int32_t> all(requests * columns);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i) + 1;
    return all;
  }

  fence_case how;
  int page_shift, columns;
  stream at;
  device_vector<unsigned char> slow;
  std::vector<std::int32_t> pages;
  device_vector<std::int32_t> table, lengths, last;
  std::map<step_kind, step_context> seen;
  std::optional<step_kind> fails;
  std::optional<step_ticket> watched;  // the round whose table is about to be overwritten
  std::atomic<bool> overwritten = false;
  step_executor executor;
};

/// What a step read of the table: the slots of its tokens, and the pages of its rows.
void check_read(const fenced_executor& with, step_kind kind, const std::vector<std::int32_t>& before) {
  const step_context& step = with.seen.at(kind);
  const auto cached = with.read(step.cache_seqlens, requests),
             from = with.read(step.cu_seqlens_q, requests + 1);
  const auto slots = with.read(step.out_cache_loc, step.key.tokens);
  for (int r = 0; r < requests; ++r) {
    // the tokens of a tree lie one behind the other, until they are committed
    for (int token = from[r]; token < from[r + 1]; ++token)
      CHECK(slots[token] == with.slot_of(r, before[r] + token - from[r]));
    const std::size_t whole = cached[r] >> with.page_shift;  // pages, all of them live
    CHECK(whole > 0);
    const auto first = with.pages.begin() + r * with.columns;
    CHECK(with.read(step.page_table + r * step.page_table_stride, whole) ==
          std::vector(first, first + static_cast<std::ptrdiff_t>(whole)));
  }
}

}  // namespace

TEST_CASE("read-fence: the table is overwritten as soon as the step has read it, while the step still runs") {
  for (const fence_case& how : every_case) {
    CAPTURE(std::string(how.name));
    fenced_executor with(how);
    step_executor& executor = with.executor;
    const stream side(test_device());
    const std::vector<std::int32_t> all_wild(with.pages.size(), wild);
    // the first only names the executor: of those after it the ticket is known before they are launched
    step_ticket next = with.replay();
    executor.wait(next);
    with.at.synchronize();
    with.table.set(with.pages);
    for (int i = 1; i <= (test_small() ? 1 : 3); ++i) {
      const std::vector<std::int32_t> before = with.lengths.get();
      ++next.sequence;
      with.overwritten = false;
      with.watched = next;
      // another thread, for on the host a step is done when its launch returns
      std::thread scheduler([&, next] {
        while (!executor.table_read(next)) std::this_thread::yield();
        side.ref().copy(with.table.data(), all_wild.data(), all_wild.size() * sizeof(std::int32_t));
        side.synchronize();
        with.overwritten = true;
      });
      const step_ticket ticket = with.replay();
      scheduler.join();
      with.watched.reset();
      REQUIRE(ticket.sequence == next.sequence);
      for (const row_result& row : executor.wait(ticket)) CHECK(row.status == 0);
      with.at.synchronize();
      check_read(with, how.kind, before);
      if (how.extend_draft) check_read(with, step_kind::draft_extend, before);
      // from then on the step writes nothing there
      CHECK(with.table.get() == all_wild);
      with.table.set(with.pages);
      const std::vector<std::int32_t> after = with.lengths.get();
      for (int r = 0; r < requests; ++r)
        CHECK(after[r] == before[r] + (how.tree                                    ? 2
                                       : how.draft_length > 0 && !how.extend_draft ? 1
                                                                                   : how.tokens));
    }
    CHECK_FALSE(executor.fault());
    if (&how != every_case) continue;
    // warm-ups are no steps: what has read its table once has read it for good
    executor.recapture(executor.limits(), bucket_policy::exactly({requests}),
                       bucket_policy::exactly({requests * how.tokens}));
    CHECK(executor.table_read(next));
  }
}

TEST_CASE(
    "read-fence, lost-launch: a body that throws behind the fence's fork: the capture is discarded by name") {
  constexpr fence_case how{.name = "all",
                           .kind = step_kind::target_verify,
                           .page_size = 1,
                           .tokens = 3,
                           .extend_draft = true,
                           .draft_length = 2};
  fenced_executor with(how);
  step_executor& executor = with.executor;
  const step_ticket before = with.replay();
  executor.wait(before);
  executor.stream().synchronize();
  CHECK(executor.table_read(before));
  const auto recapture = [&] {
    return executor.recapture(executor.limits(), bucket_policy::exactly({requests}),
                              bucket_policy::exactly({requests * how.tokens}));
  };
  for (const step_kind kind : {step_kind::target_verify, step_kind::draft_extend, step_kind::draft_decode}) {
    with.fails = kind;
    const std::string named = std::string("capture of ") + to_string(kind) + ", 2 rows";
    try {
      recapture();
      FAIL("captured without its body");
    } catch (const capture_error& why) {
      CHECK(std::string(why.what()).find(named) != std::string::npos);
      CHECK(std::string(why.what()).find("the body failed") != std::string::npos);
    }
    CHECK(executor.captures().empty());
    CHECK_FALSE(executor.stream().is_capturing());
    CHECK(executor.table_read(before));
    with.fails.reset();
    CHECK(executor.capture().size() == 3);
    const step_ticket after = with.replay();
    for (const row_result& row : executor.wait(after)) CHECK(row.status == 0);
    executor.stream().synchronize();
    CHECK(executor.table_read(after));
    CHECK_FALSE(executor.table_read({.executor = after.executor, .sequence = after.sequence + 1}));
  }
}

TEST_CASE("read-fence: an executor without one says so") {
  const step_executor without(test_device(), {.max_context = 64, .vocab_size = 10}, layout,
                              {{.kind = step_kind::decode, .body = [](const step_context&) {}}});
  CHECK_THROWS_WITH_AS(static_cast<void>(without.table_read({})), doctest::Contains("read_fence"),
                       invalid_argument);
}
