// All that is baked into a capture: varied alone it is another graph, or an error that names it: docs/faults.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};

/// An executor over a table of its embedder's: page c of request r is `first + r * columns + c`; its step emits 0.
struct adopting {
  struct shape {
    int columns = 16, stride = 16, first = 1;
  };

  explicit adopting(const shape& wanted)
      : how(wanted), table(at.ref(), entries()), lengths(at.ref(), {20, 37}), last(at.ref(), {3, 3}) {}

  step_limits limits() const {
    return {.max_rows = 2,
            .max_step_tokens = 2,
            .max_requests = 2,
            .max_context = 64,
            .page_size = 4,
            .kv_pages = 200,
            .vocab_size = 10};
  }
  executor_options options() const {
    return {.stream = at.ref(),
            .requests = adopted_requests{.source = {.table = table.data(),
                                                    .row_stride = how.stride,
                                                    .requests = 2,
                                                    .columns = how.columns,
                                                    .page_shift = 2,
                                                    .page_granular = true},
                                         .seq_lens = lengths.data(),
                                         .last_token = last.data()}};
  }
  step_executor make(const executor_options& options, const step_limits& limits) {
    return step_executor(test_device(), limits, layout,
                         {{.kind = step_kind::decode,
                           .body =
                               [this](const step_context& step) {
                                 seen = step;
                                 step.stream.fill(step.next_token, 0, sizeof(std::int32_t) * step.key.rows);
                               }}},
                         options);
  }
  step_executor make() { return make(options(), limits()); }

  /// A decode of both requests reads their pages, and those of nobody else.
  void check_step(step_executor& executor) {
    const std::vector<step_row> rows{{.request = 0}, {.request = 1}};
    const auto results = executor.wait(*executor.replay(step_kind::decode, rows));
    at.synchronize();
    for (int r = 0; r < 2; ++r) {
      CHECK(results[r].status == 0);
      std::vector<std::int32_t> read((results[r].length + 3) / 4), want;
      at.ref().copy(read.data(), seen->page_table + r * seen->page_table_stride, 4ul * read.size());
      at.synchronize();
      for (int c = 0; c < std::ssize(read); ++c) want.push_back(how.first + r * how.columns + c);
      CHECK(read == want);
    }
  }

  std::vector<std::int32_t> entries() const {
    std::vector<std::int32_t> all(2 * how.stride, -7);
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < how.columns; ++c) all[r * how.stride + c] = how.first + r * how.columns + c;
    return all;
  }

  shape how;
  stream at{test_device()};
  device_vector<std::int32_t> table, lengths, last;
  std::optional<step_context> seen{};
};

/// Keys of the steps that were replayed since the last call.
std::set<step_key> replayed(const step_executor& executor, std::vector<std::uint64_t>& before) {
  std::set<step_key> keys;
  const auto& buckets = executor.statistics().buckets;
  before.resize(buckets.size(), 0);
  for (std::size_t i = 0; i < buckets.size(); ++i)
    if (buckets[i].replays != std::exchange(before[i], buckets[i].replays)) keys.insert(buckets[i].key);
  return keys;
}

/// Construction is refused, and the message says why.
template <class Change>
void refused(const char* why, const Change& change) {
  adopting a({});
  executor_options options = a.options();
  step_limits limits = a.limits();
  change(options, limits);
  CHECK_THROWS_WITH_AS(a.make(options, limits), doctest::Contains(why), invalid_argument);
}

/// A pool that fits `refused`'s limits, but for what is changed.
template <class Change>
void cache_refused(const char* why, const Change& change) {
  refused(why, [&](executor_options& options, step_limits&) {
    static std::byte block[1 << 10];  // never touched
    kv_layout own = layout;
    int page_size = 4;
    std::int64_t pages = 200;
    change(own, page_size, pages);
    options.kv_cache = make_kv_cache(own, page_size, pages, {block, kv_cache_bytes(own, page_size, pages)});
  });
}

}  // namespace

TEST_CASE("key: what is baked into a capture is another capture or an error, never a silent wrong replay") {
  constexpr kv_layout layout{.type = element_type::f32, .layers = 1, .kv_heads = 1, .head_size = 64};
  const auto emitting = [](int token, int variant) {
    return step_definition{.kind = step_kind::decode,
                           .variant = variant,
                           .body =
                               [token](const step_context& step) {
                                 step.stream.fill(step.next_token, static_cast<unsigned char>(token),
                                                  sizeof(std::int32_t) * step.key.rows);
                               },
                           .scratch_bytes = {}};
  };
  const step_limits limits{.max_rows = 4,
                           .max_step_tokens = 8,
                           .max_requests = 4,
                           .max_context = 64,
                           .page_size = 4,
                           .vocab_size = 100};
  step_executor executor(test_device(), limits, layout, {emitting(0, 0), emitting(1, 1)});
  executor.capture();
  const request_id request = executor.open();
  const std::vector<std::int32_t> token{3};
  const std::vector<step_row> rows{{.request = request, .tokens = 1, .token_ids = token}};
  CHECK(executor.wait(*executor.replay(step_kind::decode, rows, 0))[0].token == 0);
  CHECK(executor.wait(*executor.replay(step_kind::decode, rows, 1))[0].token == 0x01010101);
  CHECK_THROWS_WITH_AS(executor.replay(step_kind::decode, rows, 2), doctest::Contains("variant 2"),
                       invalid_argument);
  CHECK_THROWS_WITH_AS(executor.replay(step_kind::extend, rows), doctest::Contains("extend"),
                       invalid_argument);
}

TEST_CASE("key: dtype, heads and layers of an adopted cache are the layout's, or refused by name") {
  cache_refused("1 layers of 1 x 64 bfloat16, not 1 of 1 x 64 float32",
                [](kv_layout& own, int&, std::int64_t&) { own.type = element_type::bf16; });
  cache_refused("1 layers of 2 x 64 float32", [](kv_layout& own, int&, std::int64_t&) { own.kv_heads = 2; });
  cache_refused("1 layers of 1 x 128 float32",
                [](kv_layout& own, int&, std::int64_t&) { own.head_size = 128; });
  cache_refused("2 layers of 1 x 64 float32", [](kv_layout& own, int&, std::int64_t&) { own.layers = 2; });
}

TEST_CASE("key: a table's stride is baked in, and one that cannot be is refused by name") {
  for (const int stride : {16, 24, 64}) {
    adopting a({.stride = stride});
    step_executor executor = a.make();
    executor.capture();
    a.check_step(executor);
  }
  refused("rows of 16 columns 15 apart",
          [](executor_options& options, step_limits&) { options.requests->source.row_stride = 15; });
  refused("0 requests",
          [](executor_options& options, step_limits&) { options.requests->source.requests = 0; });
}

TEST_CASE("key: a table's width is baked in, and one too narrow for the context is refused by name") {
  for (const int columns : {16, 17, 32}) {
    adopting a({.columns = columns, .stride = columns});
    step_executor executor = a.make();
    executor.capture();
    a.check_step(executor);
    step_limits wider = executor.limits();
    wider.max_context = 128;
    CHECK_THROWS_WITH_AS(executor.recapture(wider), doctest::Contains("max_context is 64"), invalid_argument);
    a.check_step(executor);
  }
  refused("names 60 tokens a request, max_context is 64",
          [](executor_options& options, step_limits&) { options.requests->source.columns = 15; });
  refused("the largest row bucket must hold max_rows 2",
          [](executor_options& options, step_limits&) { options.row_buckets = bucket_policy::exactly({1}); });
  refused(
      "the largest token bucket must hold max_step_tokens 2",
      [](executor_options& options, step_limits&) { options.token_buckets = bucket_policy::exactly({1}); });
}

TEST_CASE("key: the page size of an adopted cache and table is the limits', or refused by name") {
  cache_refused("pages of 8 tokens, not of 4",
                [](kv_layout&, int& page_size, std::int64_t&) { page_size = 8; });
  cache_refused("got 100 pages in a layer, 100 in the first, kv_pages 200",
                [](kv_layout&, int&, std::int64_t& pages) { pages = 100; });
  refused("pages of 2^3 tokens, not of 4",
          [](executor_options& options, step_limits&) { options.requests->source.page_shift = 3; });
  adopting a({});
  step_executor executor = a.make();
  executor.capture();
  step_limits other = executor.limits();
  other.page_size = 8;
  CHECK_THROWS_WITH_AS(executor.recapture(other), doctest::Contains("page_size is 4"), invalid_argument);
  a.check_step(executor);
}

TEST_CASE("key: two tables are two captures, and a recapture's buffers other addresses in another graph") {
  adopting one({.first = 1}), other({.first = 60});
  step_executor first = one.make(), second = other.make();
  first.capture();
  second.capture();
  for (int i = 0; i < 3; ++i) {
    one.check_step(first);
    other.check_step(second);
  }
  // the old block lives until the new one is there, so that the new one lies elsewhere
  const std::int32_t* const before = one.seen->page_table;
  first.recapture(first.limits());
  CHECK(one.seen->page_table != before);
  one.check_step(first);
  other.check_step(second);
  refused(
      "options.requests.source.table is null, options.requests.seq_lens is null, "
      "options.requests.last_token is null",
      [](executor_options& options, step_limits&) {
        options.requests = adopted_requests{.source = {.row_stride = 16, .requests = 2, .columns = 16}};
      });
  refused("must have keys, values", [](executor_options& options, step_limits&) {
    options.kv_cache = kv_cache_view{.layout = layout, .page_size = 4, .layers = {{.pages = 200}}};
  });
}

TEST_CASE("key: rows, tokens of a row and draft steps each choose a graph of their own, or none is there") {
  const tiny_with_draft t;
  step_executor executor = t.executor({.rows = 4,
                                       .most = 3,
                                       .options = {.row_buckets = bucket_policy::exactly({2, 4}),
                                                   .token_buckets = bucket_policy::exactly({4, 8, 16}),
                                                   .draft_lengths = {2}}});
  executor.capture();
  std::vector<step_row> rows;
  const std::vector<std::int32_t> prompt{1}, drafts{3, 4, 5, 6};
  for (int r = 0; r < 4; ++r) rows.push_back({.request = executor.open(), .tokens = 1, .token_ids = prompt});
  executor.wait(*executor.replay({.kind = step_kind::extend, .rows = rows, .extend_draft = true}));
  std::vector<std::uint64_t> before;
  replayed(executor, before);
  // W = drafts + 1 of each row
  const auto verify = [&](int count, int w) {
    std::vector<step_row> wanted;
    for (int r = 0; r < count; ++r)
      wanted.push_back(
          {.request = rows[r].request, .tokens = w, .token_ids = std::span(drafts).first(w - 1)});
    executor.wait(*executor.replay(step_kind::target_verify, wanted));
    return replayed(executor, before);
  };
  const auto key = [](step_kind kind, int count, int tokens, int steps = 1) {
    return step_key{.kind = kind, .rows = count, .tokens = tokens, .steps = steps};
  };
  using keys = std::set<step_key>;
  CHECK(verify(2, 2) == keys{key(step_kind::target_verify, 2, 4)});
  CHECK(verify(2, 3) == keys{key(step_kind::target_verify, 2, 8)});
  CHECK(verify(3, 2) == keys{key(step_kind::target_verify, 4, 8)});
  CHECK(verify(4, 4) == keys{key(step_kind::target_verify, 4, 16)});
  CHECK_THROWS_WITH_AS(verify(1, 5), doctest::Contains("has 4 drafts, max_draft_tokens is 3"),
                       invalid_argument);
  const auto round = [&](int k) {
    const std::vector<step_row> wanted{{.request = rows[0].request, .tokens = k + 1}};
    executor.wait(*executor.replay({.kind = step_kind::target_verify, .rows = wanted, .draft_length = k}));
    return replayed(executor, before);
  };
  CHECK(round(1) == keys{key(step_kind::target_verify, 2, 4)});
  CHECK(round(2) == keys{key(step_kind::draft_decode, 2, 2, 1), key(step_kind::target_verify, 2, 4)});
  CHECK_THROWS_WITH_AS(round(3),
                       doctest::Contains("no capture for draft_decode, 2 rows, 2 tokens, variant 0, 2 steps"),
                       invalid_argument);
}

TEST_CASE("key: a stream and memory of another device are refused by name") {
  if (test_device().is_host() && device::cuda_count() == 0) return;  // there is no other
  const device other = test_device().is_host() ? device::cuda() : device::host();
  const stream theirs(other);
  refused("the adopted stream is on ",
          [&](executor_options& options, step_limits&) { options.stream = theirs.ref(); });
  refused("the adopted memory is on ",
          [&](executor_options& options, step_limits&) { options.memory = &device_memory(other); });
}
