// What a speculative round costs beside model and attention: every node of its bookkeeping by the device's own
// clock, with bodies that only choose tokens, all drafts being accepted. What an argmax costs is also the difference of
// rounds whose bodies are an output head's product with and without it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "bench/fed_tokens.hpp"
#include "bench/graph_chain.hpp"
#include "bench/report.hpp"
#include "bench/round_bodies.hpp"
#include "kernels/sample/target_distribution.hpp"
#include "runtime/choose_tokens.hpp"
#include "runtime/step_executor.hpp"

namespace {

using namespace stepgraph;
using bench::bodies, bench::fixed_logits, bench::name_of;

struct options {
  std::string out = "-";
  std::string commit = "unknown";
  int vocab_size = 49152;
  int draft_length = 4;
  int rounds = 300;
  std::vector<int> batches{1, 8, 32, 64};
};

/// What a round took.
struct round_time {
  double sum = 0;    // of its graphs or nodes
  double clock = 0;  // one reading of the clock, where nodes were timed: taken off them
};

/// Rounds with bodies that choose tokens are timed node by node; those whose bodies are empty, or greedy ones once
/// more, as a whole, so that nodes may overlap as they do in use. Where bodies are empty the tokens are those that
/// the eager warm-up left, all 0.
round_time measure(const options& how, int batch, bodies body, bench::report& report) {
  const bool sampled = body == bodies::sampled, whole = body < bodies::greedy,
             ranks = body == bodies::ranked || body == bodies::ranked_nodes,
             bare = body == bodies::product || body == bodies::product_nodes,
             writes = body == bodies::logits || body == bodies::argmax, multiplies = ranks || bare || writes,
             empty = body == bodies::empty || bare || body == bodies::logits;
  const auto output = ranks  ? bench::head_output::largest
                      : bare ? bench::head_output::nothing
                             : bench::head_output::logits;
  const device where = device::cuda();
  const stream at(where);
  const int width = how.draft_length + 1;
  std::optional<fixed_logits> logits;
  std::optional<bench::round_head> head;
  if (multiplies)
    head.emplace(where, batch * width, how.vocab_size);
  else if (!empty)
    logits.emplace(at, batch * width, how.vocab_size);
  std::vector<step_definition> steps;
  std::optional<step_context> seen;
  std::int32_t* first_drafts = nullptr;
  for (const step_kind kind :
       {step_kind::extend, step_kind::target_verify, step_kind::draft_extend, step_kind::draft_decode})
    steps.push_back({.kind = kind,
                     .variant = 0,
                     .body =
                         [&, kind](const step_context& step) {
                           if (kind == step_kind::target_verify) seen = step;
                           if (head) head->enqueue(step, output);
                           if (!empty) {
                             head_logits from = head ? head->given() : logits->head();
                             from.ranked = from.reads_ranked_feed = ranks;
                             return choose_tokens(step, from);
                           }
                           if (kind == step_kind::draft_extend) first_drafts = step.next_token;
                           if (step.stream.is_capturing()) return;
                           const auto zero = [&](std::int32_t* tokens, int count) {
                             if (tokens) step.stream.fill(tokens, 0, 4ul * count);
                           };
                           zero(step.next_token, step.out_line ? batch + 1 : batch);
                           zero(step.feed_token, batch);
                           zero(step.argmax, step.key.tokens);
                         },
                     .sampled = sampled});
  const kv_layout layout{.type = element_type::bf16, .layers = 1, .kv_heads = 1, .head_size = 64};
  const step_limits limits{.max_rows = batch,
                           .max_step_tokens = batch * width,
                           .max_draft_tokens = how.draft_length,
                           .max_requests = batch,
                           .max_context = 1 << 15,
                           .page_size = 16,
                           .vocab_size = how.vocab_size,
                           .hidden_size = 64};
  step_executor executor(
      where, limits, layout, steps,
      {.stream = at.ref(),
       .row_buckets = bucket_policy::exactly({batch}),
       .token_buckets = bucket_policy::exactly({batch * width}),
       .draft = draft_shape{.layout = layout, .hidden_size = 64, .vocab_size = how.vocab_size},
       .draft_lengths = {how.draft_length},
       .finish = finish_options{{2, 3}},
       .timing = whole ? step_timing::steps : step_timing::nodes});
  executor.capture();
  const std::vector<std::int32_t> prompt{1};
  std::vector<step_row> rows;
  for (int i = 0; i < batch; ++i)
    rows.push_back({.request = executor.open({.sampling = {.temperature = sampled ? 0.8f : 0.0f,
                                                           .top_k = 50,
                                                           .top_p = 0.95f,
                                                           .seed = 1,
                                                           .request = std::uint64_t(i) + 1}}),
                    .tokens = 1,
                    .token_ids = prompt});
  const auto wait = [&](const step_round& round) { return executor.wait(*executor.replay(round)); };
  wait({.kind = step_kind::extend, .rows = rows, .extend_draft = true});
  for (step_row& row : rows) row = {.request = row.request, .tokens = width};
  // a first draft is good for one round: where no body makes it anew, that is done between rounds
  const auto set_first_drafts = [&] {
    if (empty) at.ref().fill(first_drafts, 0, 4ul * batch);
  };
  set_first_drafts();
  std::int64_t emitted = 0;
  for (int i = 0; i < how.rounds; ++i) {
    for (const row_result& each : wait({.kind = step_kind::target_verify,
                                  .rows = rows,
                                  .draft_length = how.draft_length,
                                  .extend_draft = true}))
      emitted += each.count;
    set_first_drafts();
  }
  at.synchronize();
  const step_times& times = executor.statistics().times;
  if (whole) {
    double all = 0;
    const std::string what = name_of(body);
    std::printf("\nbatch %d, K %d, greedy, %s: %.2f tokens a row and round\n", batch, how.draft_length,
                what.c_str(), double(emitted) / (double(how.rounds) * batch));
    for (const step_kind kind :
         {step_kind::draft_decode, step_kind::target_verify, step_kind::draft_extend}) {
      const time_statistics& time = times.by_kind[static_cast<int>(kind)];
      std::printf("  %-14s from begin to end %6.2f us, least %6.2f\n", to_string(kind), time.mean(),
                  time.smallest);
      all += time.mean();
      report.add(std::string("round/") + to_string(kind) + "/" + what,
                 {{"batch", batch}, {"draft_length", how.draft_length}},
                 {.median = time.mean(),
                  .minimum = time.smallest,
                  .maximum = time.largest,
                  .count = static_cast<int>(time.count)});
    }
    std::printf("  the round's: %.2f us, three readings of the clock included\n", all);
    return {.sum = all};
  }
  double clock = 1e9, round = 0;
  for (const auto& nodes : times.nodes)
    if (!nodes.empty() && nodes.front().time.count > 1) clock = std::min(clock, nodes.front().time.mean());
  std::printf(
      "\nbatch %d, K %d, %s: %.2f tokens a row and round; reading the clock takes %.2f us, taken off below\n",
      batch, how.draft_length, name_of(body), double(emitted) / (double(how.rounds) * batch), clock);
  for (const step_kind kind : {step_kind::draft_decode, step_kind::target_verify, step_kind::draft_extend}) {
    const auto& nodes = times.nodes[static_cast<int>(kind)];
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      const time_statistics& time = nodes[i].time;
      const bool chooses = std::string(nodes[i].name) == "body";
      const char* name = chooses ? (multiplies ? "body" : "choose_tokens") : nodes[i].name;
      // logits read once; a sampled draft also writes its probabilities
      const std::int64_t lines = kind == step_kind::target_verify ? batch * width : batch;
      const std::int64_t bytes =
          chooses && !multiplies
              ? 4 * lines * how.vocab_size * (sampled && kind != step_kind::target_verify ? 2 : 1)
              : 0;
      std::printf("  %-14s %-22s mean %6.2f us, least %6.2f, most %6.2f", to_string(kind), name,
                  time.mean() - clock, time.smallest - clock, time.largest - clock);
      if (bytes > 0)
        std::printf(", %.2f MB, %.2f TB/s", 1e-6 * double(bytes),
                    1e-6 * double(bytes) / (time.mean() - clock));
      std::printf("\n");
      round += time.mean() - clock;
      report.add(std::string("round/") + to_string(kind) + "/" + name +
                     (multiplies ? std::string(" ") + name_of(body) : ""),
                 {{"batch", batch}, {"draft_length", how.draft_length}, {"sampled", sampled}, {"node", i}},
                 {.median = time.mean() - clock,
                  .minimum = time.smallest - clock,
                  .maximum = time.largest - clock,
                  .count = static_cast<int>(time.count)},
                 bytes);
    }
  }
  std::printf("  all nodes: %.2f us\n", round);
  if (!sampled) return {round, clock};
  // the accept's passes over the logits, each by itself, on what the last round left
  const auto distribution = bench::time_chain(at, [&](stream_ref s) {
    target_distribution(s, {.logits = logits->head().data,
                            .logits_stride = how.vocab_size,
                            .tokens = seen->key.tokens,
                            .vocab_size = how.vocab_size,
                            .live_tokens = seen->cu_seqlens_q + seen->key.rows,
                            .row_of = seen->row_of,
                            .sampling = seen->sampling,
                            .distributions = seen->distributions});
  });
  const std::int64_t bytes = std::int64_t{4} * batch * width * how.vocab_size;
  std::printf("  target_distribution alone: %.2f us for %.2f MB of logits read once\n", distribution.median,
              1e-6 * double(bytes));
  report.add("round/target_distribution", {{"batch", batch}, {"draft_length", how.draft_length}},
             distribution, bytes);
  return {round, clock};
}

/// Microseconds that the draft's further steps take longer for reading ranked numbers where they are fed tokens: all
/// but the first of them.
double reading_fed_tokens(const options& how, int batch, bench::report& report) {
  const stream at(device::cuda());
  const bench::fed_tokens fed(device::cuda(), batch, how.vocab_size);
  const auto time = [&](bool ranked, const char* name) {
    const bench::timing took = bench::time_chain(at, [&](stream_ref s) { fed.enqueue(s, ranked); });
    report.add(std::string("round/draft_decode/fuse_inputs, fed ") + name,
               {{"batch", batch}, {"draft_length", how.draft_length}}, took);
    std::printf("\nbatch %d: the draft head's first kernel, fed %s: %.2f us\n", batch, name, took.median);
    return took.median;
  };
  const double plain = time(false, "plain tokens");
  return (how.draft_length - 2) * (time(true, "ranked numbers") - plain);
}

}  // namespace

int main(int argc, char** argv) {
  options how;
  CLI::App app{"Times the bookkeeping of speculative rounds, node by node."};
  app.add_option("--out", how.out, "JSON file, - for standard output")->capture_default_str();
  app.add_option("--commit", how.commit, "what was built");
  app.add_option("--vocab", how.vocab_size, "tokens of the vocabulary")->capture_default_str();
  app.add_option("--draft-length", how.draft_length, "K")->capture_default_str();
  app.add_option("--rounds", how.rounds, "rounds to measure")->capture_default_str();
  app.add_option("--batch", how.batches, "rows")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    bench::report report(device::cuda(), how.commit);
    for (const int batch : how.batches) {
      const double clock = measure(how, batch, bodies::greedy, report).clock;
      const double empty = measure(how, batch, bodies::empty, report).sum;
      const double reading = reading_fed_tokens(how, batch, report);
      const auto add = [&](const char* name, bodies with, bodies without) {
        const double sum = empty + measure(how, batch, with, report).sum -
                           measure(how, batch, without, report).sum - 3 * clock +
                           (with == bodies::ranked ? reading : 0);
        std::printf("\nbatch %d: bookkeeping, argmax %s, without the readings of the clock: %.2f us\n", batch,
                    name, sum);
        report.add(std::string("round/bookkeeping, argmax ") + name,
                   {{"batch", batch}, {"draft_length", how.draft_length}},
                   {.median = sum, .minimum = sum, .maximum = sum, .count = how.rounds});
      };
      add("in the head's product", bodies::ranked, bodies::product);
      add("over the head's logits", bodies::argmax, bodies::logits);
      for (const bodies body :
           {bodies::greedy_whole, bodies::ranked_nodes, bodies::product_nodes, bodies::sampled})
        measure(how, batch, body, report);
    }
    report.write(how.out);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "bench_round: %s\n", failure.what());
    return 1;
  }
  return 0;
}
