// The smallest embedding of stepgraph: a "model" of one line, its decode step captured once for every bucket,
// and a text written by replays. README.md shows this file.
#include <cstdio>
#include <vector>

#include "runtime/step_executor.hpp"

using namespace stepgraph;

// Yours: enqueue on step.stream what turns token ids, positions and the paged KV cache into next_token. On a
// GPU these are kernels and cuBLAS calls; this one multiplies on the host.
void my_model(const step_context& step) {
  enqueue_host(step.stream, "my_model", [step] {
    for (int r = 0; r < *step.live_rows; ++r)
      step.next_token[r] = (step.token_ids[step.last_row[r]] * 7 + 3) % 1000;
  });
}

int main() {
  const step_limits limits{.max_rows = 4,
                           .max_requests = 4,
                           .max_context = 1 << 20,
                           .page_size = 16,
                           .kv_pages = 1024,
                           .vocab_size = 1000};
  const kv_layout layout{.type = element_type::bf16, .layers = 1, .kv_heads = 1, .head_size = 64};
  step_executor executor(device::host(), limits, layout, {{.kind = step_kind::decode, .body = my_model}});
  executor.capture();  // 1, 2 and 4 rows, each at a context of a million tokens

  const request_id request = executor.open();
  const std::vector<std::int32_t> prompt{42};
  std::vector<step_row> rows{{.request = request, .tokens = 1, .token_ids = prompt}};
  for (int i = 0; i < 10; ++i) {
    const step_ticket ticket = *executor.replay(step_kind::decode, rows);  // returns at once
    std::printf("%d ", executor.wait(ticket)[0].token);
    rows[0].token_ids = {};  // from now on the device knows the last token
  }
  executor.close(request);
  std::printf("\n%zu captures\n", executor.captures().size());
}
