// An engine that keeps what it has: its stream, its memory, its KV pool and its request table stay its own, and
// stepgraph captures steps over them. docs/embedding.md explains this file.
#include <cstdio>
#include <numeric>
#include <vector>

#include "graphs/memory_resource.hpp"
#include "runtime/step_executor.hpp"

using namespace stepgraph;

constexpr int requests = 8, page_size = 16, columns = 1024, pages = 256;

// The engine's allocator: what the executor needs besides comes from here, once, before any replay.
class engine_memory final : public memory_resource {
 public:
  device where() const noexcept override { return device::host(); }

 private:
  void* do_allocate(std::size_t bytes) override { return device_memory(where()).allocate(bytes); }
  void do_deallocate(void* pointer, std::size_t bytes) noexcept override {
    device_memory(where()).deallocate(pointer, bytes);
  }
};

// A "model" of one line. It may read live rows and nothing else, so it asks how many there are.
void my_model(const step_context& step) {
  enqueue_host(step.stream, "my_model", [step] {
    for (int r = 0; r < *step.live_rows; ++r)
      step.next_token[r] = (step.token_ids[step.last_row[r]] * 7 + 3) % 1000;
  });
}

int main() {
  const stream compute(device::host());  // or stream_ref::adopt_cuda(device::cuda(), the_engines_stream)
  engine_memory memory;

  // the engine's pool, and its request table: a line of pages a request, how long it is, its last token
  const kv_layout layout{.type = element_type::bf16, .layers = 1, .kv_heads = 1, .head_size = 64};
  const buffer pool(memory, kv_cache_bytes(layout, page_size, pages));
  std::vector<std::int32_t> table(std::size_t{requests} * columns, -1), seq_lens(requests, 0),
      last_token(requests, 0);

  const step_limits limits{.max_rows = requests,
                           .max_requests = requests,
                           .max_context = std::int64_t{columns} * page_size,
                           .page_size = page_size,
                           .kv_pages = pages,
                           .vocab_size = 1000};
  step_executor executor(device::host(), limits, layout, {{.kind = step_kind::decode, .body = my_model}},
                         {.stream = compute.ref(),
                          .memory = &memory,
                          .kv_cache = make_kv_cache(layout, page_size, pages, {pool.data(), pool.bytes()}),
                          .requests = adopted_requests{.source = {.table = table.data(),
                                                                  .row_stride = columns,
                                                                  .requests = requests,
                                                                  .columns = columns,
                                                                  .page_shift = 4,
                                                                  .page_granular = true,
                                                                  .pool_pages = pages},
                                                       .seq_lens = seq_lens.data(),
                                                       .last_token = last_token.data()},
                          .read_fence = true});
  executor.capture();

  // the engine's scheduler puts two requests on lines 2 and 5 of its table, with pages for 32 tokens each
  for (const int line : {2, 5}) {
    std::int32_t* const entries = table.data() + std::ptrdiff_t{line} * columns;
    std::iota(entries, entries + 2, 1 + 2 * line);
    last_token[line] = 40 + line;
  }
  const std::vector<step_row> rows{{.request = 2}, {.request = 5}};
  for (int i = 0; i < 5; ++i) {
    const step_ticket ticket = *executor.replay(step_kind::decode, rows);
    while (!executor.table_read(ticket)) {
    }  // from here on the scheduler may rewrite the table, though the step may still run
    for (const row_result& row : executor.wait(ticket)) std::printf("%4d (%d tokens)", row.token, row.length);
    std::printf("\n");
  }
  if (executor.fault()) std::printf("a row was out of bounds: see docs/debugging.md\n");
}
