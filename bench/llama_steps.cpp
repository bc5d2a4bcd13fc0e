// Times the example model's CUDA steps at a model's shape with random weights: decode steps from graph
// replays with the executor around them, a prompt's way to its first token, and the products of a layer as
// nodes of a chain.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/device_weights.hpp"
#include "bench/report.hpp"
#include "examples/llama/llama_model.hpp"
#include "examples/llama/skinny_matmul.hpp"
#include "runtime/choose_tokens.hpp"
#include "runtime/step_executor.hpp"
#include "tests/device_vector.hpp"

using namespace stepgraph;

namespace {

struct subject {
  device where;
  std::string name;
  bench::report& into;
  llama::llama_config config;
  bench::synthetic_weights weights;
  llama::llama_layers layers;

  subject(device where, const bench::model_shape& shape, bench::report& into)
      : where(where),
        name(shape.name),
        into(into),
        config(shape.config),
        weights(where, shape, 1),
        layers(where, config, element_type::bf16, weights.view()) {}

  step_definition step(step_kind kind) const {
    return {.kind = kind,
            .variant = 0,
            .body =
                [this](const step_context& step) {
                  layers.forward(step);
                  choose_tokens(step, {.data = llama::llama_model::logits(step),
                                       .stride = config.vocab_size,
                                       .vocab_size = config.vocab_size,
                                       .ranked = layers.ranks(step)});
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

constexpr int prompt_tokens = 1024;

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

/// Medians of `count` blocks of 20 steps in a row of `tokens` tokens a row around `context`.
void time_steps(const subject& s, int rows, int tokens, int context, int count) {
  step_executor executor = s.executor(rows, tokens > 1 ? rows * tokens : 256, 2 * context);
  executor.capture();
  std::vector<request_id> requests(rows);
  for (request_id& request : requests) request = executor.open();
  feed(executor, requests, context - count * 10 * tokens);
  const std::vector<std::int32_t> ids(tokens, 7);
  std::vector<step_row> step;
  for (const request_id request : requests)
    step.push_back({.request = request,
                    .tokens = tokens,
                    .token_ids = tokens > 1 ? std::span(ids) : std::span<const std::int32_t>()});
  const step_kind kind = tokens > 1 ? step_kind::extend : step_kind::decode;
  std::vector<double> each;
  for (int i = 0; i < count; ++i) {
    executor.stream().synchronize();
    const auto start = clock_type::now();
    step_ticket last{};
    for (int k = 0; k < 20; ++k) last = *executor.replay(kind, step);
    executor.wait(last);
    each.push_back(microseconds_since(start) / 20);
  }
  std::sort(each.begin(), each.end());
  const double median = each[count / 2];
  s.into.add(tokens > 1 ? "extend step" : "decode step",
             {{"model", s.name}, {"rows", rows}, {"tokens", tokens}, {"context", context}},
             {.median = median, .minimum = each.front(), .maximum = each.back(), .count = count});
  s.into.note_row("tokens_per_second", rows * tokens * 1e6 / median);
  std::printf("rows %3d, %2d tokens each, context %d: %.1f us a step (%.1f to %.1f), %.0f tokens/s\n", rows,
              tokens, context, median, each.front(), each.back(), rows * tokens * 1e6 / median);
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
  s.into.add("prompt to first token", {{"model", s.name}, {"tokens", length}, {"chunk", chunk}},
             {.median = each[5], .minimum = each.front(), .maximum = each.back(), .count = 11});
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
  const auto add = [&](const char* what, bench::timing t, int nodes) {
    for (double* const each : {&t.median, &t.minimum, &t.maximum}) *each /= nodes;
    s.into.add(std::string("product: ") + what, {{"model", s.name}, {"tokens", tokens}}, t);
    std::printf(" %s %.2f", what, t.median);
  };
  const auto all = [&](const char* what, auto&& one) {
    add(what,
        bench::time_chain(at.ref(),
                          [&](stream_ref to) {
                            for (const auto& w : s.weights.view().layers) one(to, w);
                          },
                          {.nodes = 1, .replays = 10, .count = 9}),
        c.layers);
  };
  std::printf("products of %2d tokens, us:", tokens);
  all("qkv", [&](stream_ref to, const auto& w) { qkv_of(to, w); });
  all("o", [&](stream_ref to, const auto& w) { residual_of(to, w, w.attention_output, attention); });
  all("gated", [&](stream_ref to, const auto& w) { gated_of(to, w); });
  all("down", [&](stream_ref to, const auto& w) { residual_of(to, w, w.down, c.ffn_size); });
  all("the four of a layer", [&](stream_ref to, const auto& w) {
    qkv_of(to, w);
    residual_of(to, w, w.attention_output, attention);
    gated_of(to, w);
    residual_of(to, w, w.down, c.ffn_size);
  });
  add("head",
      bench::time_chain(at.ref(),
                        [&](stream_ref to) {
                          skinny_matmul(to, llama::plain_product{.in = input(s.weights.view().output,
                                                                             c.vocab_size, hidden, true),
                                                                 .out = logits.data()});
                        },
                        {.nodes = 10, .replays = 2, .count = 9}),
      1);
  std::printf("\n");
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  CLI::App app("Times the example model's CUDA steps at a model's shape with random weights.");
  std::string shape = "SmolLM2-135M", json, commit;
  int context = 512;
  std::vector<int> rows{1, 8, 32, 64}, tokens, products, prompt_chunks;
  app.add_option("--shape", shape, "SmolLM2-135M, Llama-3.1-8B or tiny")
      ->check(
          CLI::IsMember(std::vector<std::string>{"SmolLM2-135M", "Llama-3.1-8B", "tiny"}, CLI::ignore_case))
      ->capture_default_str();
  app.add_option("--context", context, "tokens in each row's cache")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  app.add_option("--rows", rows, "decode batches; 0: none")->check(CLI::Range(0, 1024));
  app.add_option("--tokens", tokens, "tokens of one row in one step, as a verify step has")
      ->check(CLI::Range(2, 64));
  app.add_option("--products", products, "token counts whose products are timed alone")
      ->check(CLI::Range(1, llama::skinny_tokens));
  app.add_option("--prompt-chunks", prompt_chunks, "chunk sizes that a prompt of 1,024 tokens is fed in")
      ->check(CLI::Range(1, prompt_tokens));
  app.add_option("--json", json, "file to write, or - for standard output");
  app.add_option("--commit", commit, "commit that was built");
  CLI11_PARSE(app, argc, argv);
  bench::model_shape model = bench::model_named(shape);
  model.config.max_context = std::max(2 * context, prompt_tokens + 64);
  bench::report into(device::cuda(), commit);
  const subject s(device::cuda(), model, into);
  for (const int each : products) time_products(s, each);
  for (const int each : rows)
    if (each > 0) time_steps(s, each, 1, context, 11);
  for (const int each : tokens) time_steps(s, 1, each, context, std::min(11, context / (30 * each) | 1));
  for (const int chunk : prompt_chunks) time_prompt(s, prompt_tokens, chunk);
  if (!json.empty()) into.write(json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "llama_steps: %s\n", failure.what());
    return 1;
  }
}
