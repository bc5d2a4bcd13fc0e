// Trees on a request table that is the embedder's: kept tokens move within the step's own slots.
#include <doctest/doctest.h>

#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

using text = std::vector<std::int32_t>;

}  // namespace

TEST_CASE(
    "shared-prefix, commit-race: a tree's commit leaves shared pages alone, and goes where the step was told "
    "though "
    "the table's row is overwritten meanwhile") {
  const tiny t;
  step_executor plain = t.executor(1);
  plain.capture();
  reference::random_integers random(test_seed());
  const int page_size = 4, columns = 64, shared_pages = 2;
  // two requests of a page-granular table share their first pages
  text lines(2 * columns, -1);
  for (int p = 0; p < columns; ++p) {
    lines[p] = 1 + p;
    lines[columns + p] = p < shared_pages ? 1 + p : 100 + p;
  }
  const text prefix = random_prompt(random, page_size * shared_pages, 509);
  text prompts[2] = {prefix, prefix};
  for (int r = 0; r < 2; ++r)
    for (const std::int32_t token : random_prompt(random, 3 + r, 509)) prompts[r].push_back(token);
  const int length = 12;
  const text want[2] = {text_of(plain, prompts[0], length), text_of(plain, prompts[1], length)};

  const stream mine(test_device());
  device_vector<std::int32_t> table(mine, lines), seq_lens(mine, {0, page_size * shared_pages}),
      last_token(mine, {0, 0});
  std::vector<step_definition> steps = t.model->steps(llama::step_choice{.verify = true, .trees = true});
  for (step_definition& step : steps)
    if (step.tree)
      step.body = [&, body = step.body](const step_context& context) {
        body(context);
        // the scheduler has given the line to another: page 90 everywhere
        context.stream.fill(table.data(), 90, columns * sizeof(std::int32_t));
      };
  step_limits limits = t.limits(2, 7);
  limits.page_size = page_size;
  limits.kv_pages = 200;
  limits.max_step_tokens = 32;
  step_executor executor(
      test_device(), limits, t.model->layout(), steps,
      few_buckets(limits, {.stream = mine.ref(),
                           .requests = adopted_requests{.source = {.table = table.data(),
                                                                   .row_stride = columns,
                                                                   .requests = 2,
                                                                   .columns = columns,
                                                                   .page_shift = 2,
                                                                   .page_granular = true},
                                                        .seq_lens = seq_lens.data(),
                                                        .last_token = last_token.data()}}));
  executor.capture();
  table.set(lines);
  const auto shared = [&] {
    std::vector<std::byte> bytes;
    for (const kv_pages_view& layer : executor.kv_cache().layers)
      for (const void* half : {layer.keys, layer.values}) {
        std::vector<std::byte> part(layer.page_stride * shared_pages * sizeof(float));
        mine.ref().copy(part.data(), static_cast<const float*>(half) + layer.page_stride, part.size());
        mine.synchronize();
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
    return bytes;
  };
  // the first fills the shared pages, the second begins after them
  const text rest(prompts[1].begin() + page_size * shared_pages, prompts[1].end());
  const std::vector<step_row> first{
      {.request = 0, .tokens = static_cast<std::int32_t>(prompts[0].size()), .token_ids = prompts[0]}};
  const std::vector<step_row> second{
      {.request = 1, .tokens = static_cast<std::int32_t>(rest.size()), .token_ids = rest}};
  text got[2];
  got[0].push_back(executor.wait(*executor.replay(step_kind::extend, first))[0].token);
  got[1].push_back(executor.wait(*executor.replay(step_kind::extend, second))[0].token);
  const auto before = shared();
  while (std::ssize(got[0]) < length) {
    // wrong branches lie between the tokens of the right one, so that what is kept must move
    const std::size_t done = got[0].size();
    const auto right = [&](std::size_t i) { return done + i < want[0].size() ? want[0][done + i] : 1; };
    const auto wrong = [&](std::size_t i) { return (right(i) + 1) % 509; };
    const text tree{wrong(0), right(0), wrong(1), wrong(1), right(1), wrong(2), right(2)};
    const text parents{-1, 0, 0, 1, 2, 2, 5, 5};
    const std::vector<step_row> row{{.request = 0, .tokens = 8, .token_ids = tree, .parents = parents}};
    const step_ticket ticket = *executor.replay(step_kind::target_verify, row, 2);
    const auto emitted = executor.emitted(ticket, 0);
    CHECK(emitted.size() == 4);
    got[0].insert(got[0].end(), emitted.begin(), emitted.end());
    table.set(lines);
  }
  CHECK(text(got[0].begin(), got[0].begin() + length) == want[0]);
  CHECK(shared() == before);
  const std::vector<step_row> other{{.request = 1}};
  while (std::ssize(got[1]) < length)
    got[1].push_back(executor.wait(*executor.replay(step_kind::decode, other))[0].token);
  CHECK(got[1] == want[1]);
  CHECK_FALSE(executor.fault());
}
