// What poison mode costs: decode steps of the SmolLM2 shape from graph replays, without poison, with the steps' own
// buffers poisoned (the KV cache is the embedder's), and with the KV cache poisoned too.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <vector>

#include "bench/replay/measure.hpp"
#include "bench/replay/models.hpp"
#include "bench/report.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/kv_cache.hpp"
#include "runtime/step_executor.hpp"

namespace {

using namespace stepgraph;
using clock_type = std::chrono::steady_clock;

struct options {
  std::string out = "-";
  std::string commit = "unknown";
  std::string model = "SmolLM2-135M";
  std::vector<int> batches{1, 8, 64};
  int live = 512, width = 8192;
  int samples = 7;
};

enum class poisoned { nothing, buffers, all };
constexpr const char* names[] = {"nothing", "step buffers", "step buffers and KV cache"};

constexpr int steps_a_sample = 20, page_size = 16;

/// Microseconds a step, the host's part included: replays back to back, by the host's clock.
bench::samples measure(device where, const options& how, const bench::replay_model& model, int batch,
                       poisoned what) {
  const stream at(where);
  const std::int64_t pages = std::int64_t{batch} * how.width / page_size + 1;
  const kv_layout layout = model.layout();
  buffer pool;
  const bench::step_environment around{};
  const auto step = [&](step_kind kind) {
    return step_definition{.kind = kind,
                           .variant = 0,
                           .body = [&](const step_context& context) { model.enqueue(context, around); },
                           .scratch_bytes =
                               [&, kind](int rows, int tokens) {
                                 return model.scratch_bytes({.kind = kind, .rows = rows, .tokens = tokens});
                               }};
  };
  executor_options wanted{.stream = at.ref(),
                          .row_buckets = bucket_policy::exactly({batch}),
                          .token_buckets = bucket_policy::exactly({512}),
                          .poison = what != poisoned::nothing};
  if (what == poisoned::buffers) {
    pool = buffer(device_memory(where), kv_cache_bytes(layout, page_size, pages));
    at.ref().fill(pool.data(), 0, pool.bytes());
    wanted.kv_cache = make_kv_cache(layout, page_size, pages, {pool.data(), pool.bytes()});
  }
  step_executor executor(where,
                         {.max_rows = batch,
                          .max_step_tokens = 512,
                          .max_requests = batch,
                          .max_context = how.width,
                          .page_size = page_size,
                          .kv_pages = pages,
                          .vocab_size = model.vocab_size()},
                         layout, {step(step_kind::decode), step(step_kind::extend)}, wanted);
  executor.capture();
  const std::vector<std::int32_t> prompt(how.live, 7);
  std::vector<step_row> rows;
  for (int row = 0; row < batch; ++row) {
    rows.push_back({.request = executor.open()});
    for (int fed = 0; fed < how.live;) {
      const int now = std::min(512, how.live - fed);
      const step_row chunk{
          .request = rows.back().request, .tokens = now, .token_ids = std::span(prompt).subspan(fed, now)};
      executor.wait(*executor.replay(step_kind::extend, {&chunk, 1}));
      fed += now;
    }
  }
  bench::samples taken;
  for (int i = -1; i < how.samples; ++i) {  // the first one warms up
    const auto start = clock_type::now();
    step_ticket last{};
    for (int k = 0; k < steps_a_sample; ++k) last = *executor.replay(step_kind::decode, rows);
    executor.wait(last);
    const std::chrono::duration<double, std::micro> took = clock_type::now() - start;
    if (i >= 0) taken.push_back(took.count() / steps_a_sample);
  }
  if (executor.fault()) throw error("a step reported a fault");
  return taken;
}

}  // namespace

int main(int argc, char** argv) {
  options how;
  CLI::App app{"Times decode steps with and without poison."};
  app.add_option("--out", how.out, "JSON file, - for standard output")->capture_default_str();
  app.add_option("--commit", how.commit, "what was built");
  app.add_option("--model", how.model, "shape")->capture_default_str();
  app.add_option("--batch", how.batches, "rows")->capture_default_str();
  app.add_option("--live", how.live, "tokens of each row before the first step")->capture_default_str();
  app.add_option("--width", how.width, "captured context, tokens")->capture_default_str();
  app.add_option("--samples", how.samples, "samples of 20 steps")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const device where = device::best();
    bench::report report(where, how.commit);
    const bench::model_shape& shape = bench::model_named(how.model);
    const auto model = bench::make_model(shape, how.width, where, 1);
    for (const int batch : how.batches) {
      double without = 0;
      for (const poisoned what : {poisoned::nothing, poisoned::buffers, poisoned::all}) {
        const bench::timing took = bench::summary(measure(where, how, *model, batch, what));
        if (what == poisoned::nothing) without = took.median;
        std::printf("batch %2d, poisoned: %-26s %8.1f us a step (%.1f to %.1f), %+.1f\n", batch,
                    names[int(what)], took.median, took.minimum, took.maximum, took.median - without);
        std::fflush(stdout);
        report.add(std::string("poison/") + names[int(what)],
                   {{"model", how.model}, {"batch", batch}, {"live", how.live}, {"width", how.width}}, took);
      }
    }
    report.write(how.out);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "poison_cost: %s\n", failure.what());
    return 1;
  }
  return 0;
}
