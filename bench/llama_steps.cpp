// Times the example model's CUDA steps at a model's shape with random weights: decode steps from graph replays with
// the executor around them, a prompt's way to its first token, and the products of a layer as nodes of a chain.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/attention_kernels.hpp"
#include "bench/report.hpp"
#include "examples/llama/llama_layers.hpp"
#include "examples/llama/llama_model.hpp"
#include "examples/llama/skinny_matmul.hpp"
#include "kernels/sample/greedy_sample.hpp"
#include "runtime/step_executor.hpp"
#include "tests/device_vector.hpp"

using namespace stepgraph;

namespace {

llama::llama_config shape_of(const std::string& name) {
  if (name == "llama-3.1-8b")
    return {.layers = 32,
            .hidden_size = 4096,
            .heads = 32,
            .kv_heads = 8,
            .head_size = 128,
            .ffn_size = 14336,
            .vocab_size = 128256,
            .max_context = 4096,
            .rope_base = 500000.0f};
  return {.layers = 30,
          .hidden_size = 576,
          .heads = 9,
          .kv_heads = 3,
          .head_size = 64,
          .ffn_size = 1536,
          .vocab_size = 49152,
          .max_context = 2048};
}

class random_weights {
 public:
  random_weights(device where, const llama::llama_config& c, bool tied) : loading_(where) {
    const std::int64_t hidden = c.hidden_size, attention = c.heads * c.head_size;
    view.token_embedding = matrix(c.vocab_size * hidden);
    view.output = tied ? view.token_embedding : matrix(c.vocab_size * hidden);
    view.output_norm = ones(hidden);
    for (int l = 0; l < c.layers; ++l)
      view.layers.push_back({.attention_norm = ones(hidden),
                             .qkv = matrix((attention + 2 * c.kv_heads * c.head_size) * hidden),
                             .attention_output = matrix(hidden * attention),
                             .ffn_norm = ones(hidden),
                             .gate_up = matrix(2 * c.ffn_size * hidden),
                             .down = matrix(hidden * c.ffn_size)});
    loading_.synchronize();
  }
  llama::device_weights view;

 private:
  const void* matrix(std::int64_t count) {
    blocks_.emplace_back(device_memory(loading_.ref().where()), count * 2);
    bench::fill_random(loading_.ref(), blocks_.back().data(), count,
                       static_cast<std::uint32_t>(blocks_.size()));
    return blocks_.back().data();
  }
  const float* ones(std::int64_t count) {
    const std::vector<float> values(count, 1.0f);
    blocks_.emplace_back(device_memory(loading_.ref().where()), count * 4);
    loading_.ref().copy(blocks_.back().data(), values.data(), count * 4);
    loading_.synchronize();
    return blocks_.back().as<const float>();
  }
  stream loading_;
  std::vector<buffer> blocks_;
};

struct subject {
  device where;
  llama::llama_config config;
  random_weights weights;
  llama::llama_layers layers;

  subject(device where, const llama::llama_config& c, bool tied)
      : where(where),
        config(c),
        weights(where, c, tied),
        layers(where, c, element_type::bf16, weights.view) {}

  step_definition step(step_kind kind) const {
    return {.kind = kind,
            .variant = 0,
            .body =
                [this](const step_context& step) {
                  layers.forward(step);
                  if (getenv("STEP_SKIP_SAMPLE")) return;
                  greedy_sample(step.stream, {.logits = llama::llama_model::logits(step),
                                              .logits_stride = config.vocab_size,
                                              .rows = step.key.rows,
                                              .vocab_size = config.vocab_size,
                                              .live_rows = step.live_rows,
                                              .query_counts = step.query_counts,
                                              .next_token = step.next_token,
                                              .faults = step.faults});
                },
            .scratch_bytes =
                [this, kind](int rows, int tokens) {
                  return layers.scratch_bytes({.kind = kind, .rows = rows, .tokens = tokens});
                }};
  }

  step_executor executor(int rows, int step_tokens, std::int64_t context) const {
    executor_options options;
    options.row_buckets = bucket_policy::exactly({rows});
    options.token_buckets = bucket_policy::exactly({step_tokens});
    return step_executor(where,
                         {.max_rows = rows,
                          .max_step_tokens = step_tokens,
                          .max_requests = rows,
                          .max_context = context,
                          .vocab_size = config.vocab_size},
                         {.type = element_type::bf16,
                          .layers = config.layers,
                          .kv_heads = config.kv_heads,
                          .head_size = config.head_size},
                         {step(step_kind::decode), step(step_kind::extend)}, std::move(options));
  }
};

using clock_type = std::chrono::steady_clock;

double microseconds_since(clock_type::time_point start) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - start).count();
}

/// Feeds `length` tokens of each request in chunks.
void feed(step_executor& executor, const std::vector<request_id>& requests, int length) {
  const int chunk = executor.limits().max_step_tokens;
  const std::vector<std::int32_t> ids(chunk, 7);
  for (const request_id request : requests)
    for (int fed = 0; fed < length; fed += chunk) {
      const int now = std::min(chunk, length - fed);
      const step_row row{.request = request, .tokens = now, .token_ids = std::span(ids).first(now)};
      executor.wait(*executor.replay(step_kind::extend, {&row, 1}));
    }
}

/// Medians of `count` blocks of 20 decode steps in a row around `context`.
void time_decode(const subject& s, int rows, int context, int count) {
  step_executor executor = s.executor(rows, 256, 2 * context);
  executor.capture();
  std::vector<request_id> requests(rows);
  for (request_id& request : requests) request = executor.open();
  feed(executor, requests, context - count * 10);
  std::vector<step_row> step;
  for (const request_id request : requests) step.push_back({.request = request, .tokens = 1});
  std::vector<double> each;
  for (int i = 0; i < count; ++i) {
    executor.stream().synchronize();
    const auto start = clock_type::now();
    step_ticket last{};
    for (int k = 0; k < 20; ++k) last = *executor.replay(step_kind::decode, step);
    executor.wait(last);
    each.push_back(microseconds_since(start) / 20);
  }
  std::sort(each.begin(), each.end());
  std::printf("decode rows %3d context %d: %.1f us a step (%.1f to %.1f), %.0f tokens/s\n", rows, context,
              each[count / 2], each.front(), each.back(), rows * 1e6 / each[count / 2]);
  std::fflush(stdout);
}

void time_prompt(const subject& s, int length, int chunk) {
  step_executor executor = s.executor(1, chunk, length + 64);
  executor.capture();
  std::vector<double> each;
  for (int i = 0; i < 11; ++i) {
    const std::vector<request_id> request{executor.open()};
    executor.stream().synchronize();
    const auto start = clock_type::now();
    feed(executor, request, length);
    each.push_back(microseconds_since(start));
    executor.close(request[0]);
  }
  std::sort(each.begin(), each.end());
  std::printf("prompt of %d in chunks of %d: first token after %.0f us (%.0f to %.0f)\n", length, chunk,
              each[5], each.front(), each.back());
  std::fflush(stdout);
}

/// The products of all layers in a row, and the output head, as nodes of a chain.
void time_products(const subject& s, int tokens) {
  const llama::llama_config& c = s.config;
  const stream at(s.where);
  const int hidden = c.hidden_size, attention = c.heads * c.head_size,
            qkv = attention + 2 * c.kv_heads * c.head_size;
  const auto floats = [&](std::int64_t n, float value) { return device_vector<float>(at.ref(), n, value); };
  const device_vector<float> residual = floats(std::int64_t{tokens} * hidden, 0.5f),
                             squares = floats(std::int64_t{tokens} * hidden / 8, 8.0f),
                             rope = floats(c.max_context * c.head_size, 0.5f),
                             logits = floats(std::int64_t{tokens} * c.vocab_size, 0.0f);
  const std::int64_t widest = std::max(std::max(c.ffn_size, qkv), hidden);
  const device_vector<std::uint16_t> x(at.ref(), tokens * widest, 0x3f80), y(at.ref(), tokens * widest, 0);
  const device_vector<std::uint16_t> pages(at.ref(), 2 * c.max_context * c.kv_heads * c.head_size, 0);
  std::vector<std::int32_t> counts(tokens);
  std::iota(counts.begin(), counts.end(), 1);
  const device_vector<std::int32_t> positions(at.ref(), counts);
  const auto bf = [](const auto& v) { return reinterpret_cast<bf16*>(v.data()); };
  const kv_pages_view cache{.keys = pages.data(),
                            .values = pages.data() + c.max_context * c.kv_heads * c.head_size,
                            .page_stride = 16 * c.kv_heads * c.head_size,
                            .token_stride = c.kv_heads * c.head_size,
                            .head_stride = c.head_size};
  const auto input = [&](const void* weight, int rows, int columns, bool norm) {
    return llama::skinny_input{.weight = static_cast<const bf16*>(weight),
                               .rows = rows,
                               .columns = columns,
                               .x = bf(x),
                               .tokens = tokens,
                               .squares = norm ? squares.data() : nullptr,
                               .epsilon = 1e-5f};
  };
  const auto qkv_of = [&](stream_ref to, const llama::device_layer_weights& w) {
    skinny_matmul(to, llama::qkv_product{.in = input(w.qkv, qkv, hidden, true),
                                         .query = bf(y),
                                         .cache = cache,
                                         .rope = rope.data(),
                                         .positions = positions.data(),
                                         .causal_length = positions.data(),
                                         .out_cache_loc = positions.data(),
                                         .page_shift = 4,
                                         .heads = c.heads,
                                         .kv_heads = c.kv_heads,
                                         .head_size = c.head_size});
  };
  const auto residual_of = [&](stream_ref to, const llama::device_layer_weights& w, const void* weight,
                               int columns) {
    skinny_matmul(to, llama::residual_product{.in = input(weight, hidden, columns, false),
                                              .residual = residual.data(),
                                              .gain = w.ffn_norm,
                                              .x = bf(y),
                                              .squares = squares.data()});
  };
  const auto gated_of = [&](stream_ref to, const llama::device_layer_weights& w) {
    skinny_matmul(to,
                  llama::gated_product{.in = input(w.gate_up, 2 * c.ffn_size, hidden, true), .out = bf(y)});
  };
  const auto all = [&](auto&& one) {
    return bench::time_chain(at.ref(),
                             [&](stream_ref to) {
                               for (const auto& w : s.weights.view.layers) one(to, w);
                             },
                             {.nodes = 1, .replays = 10, .count = 9})
               .median /
           c.layers;
  };
  const double q = all([&](stream_ref to, const auto& w) { qkv_of(to, w); });
  const double o =
      all([&](stream_ref to, const auto& w) { residual_of(to, w, w.attention_output, attention); });
  const double g = all([&](stream_ref to, const auto& w) { gated_of(to, w); });
  const double d = all([&](stream_ref to, const auto& w) { residual_of(to, w, w.down, c.ffn_size); });
  const double layer = all([&](stream_ref to, const auto& w) {
    qkv_of(to, w);
    residual_of(to, w, w.attention_output, attention);
    gated_of(to, w);
    residual_of(to, w, w.down, c.ffn_size);
  });
  const double head =
      bench::time_chain(at.ref(),
                        [&](stream_ref to) {
                          skinny_matmul(to, llama::plain_product{.in = input(s.weights.view.output,
                                                                             c.vocab_size, hidden, true),
                                                                 .out = logits.data()});
                        },
                        {.nodes = 10, .replays = 2, .count = 9})
          .median;
  std::printf(
      "products of %2d tokens, us: qkv %.2f o %.2f gated %.2f down %.2f, the four together %.2f, head %.2f\n",
      tokens, q, o, g, d, layer, head);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the example model's CUDA steps at a model's shape with random weights.");
  std::string shape = "smollm2-135m";
  int context = 512;
  std::vector<int> rows{1, 8, 32, 64}, products, prompt_chunks;
  app.add_option("--shape", shape, "smollm2-135m or llama-3.1-8b");
  app.add_option("--context", context, "tokens in each row's cache");
  app.add_option("--rows", rows, "decode batches");
  app.add_option("--products", products, "token counts whose products are timed alone");
  app.add_option("--prompt-chunks", prompt_chunks, "chunk sizes that a prompt of 1,024 tokens is fed in");
  CLI11_PARSE(app, argc, argv);
  const llama::llama_config config = shape_of(shape);
  const subject s(device::cuda(), config, config.vocab_size == 49152);
  for (const int tokens : products) time_products(s, tokens);
  for (const int each : rows)
    if (each > 0) time_decode(s, each, context, 11);
  for (const int chunk : prompt_chunks) time_prompt(s, 1024, chunk);
}
