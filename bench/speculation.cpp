// What drafts bring a small model at batch 1: the same questions by plain decoding, by drafts of the trained head
// at each K, adaptively, and by prompt look-up, one after the other in one run, captured and eager; then what one
// round of each kind takes on the host and on the device.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "bench/report.hpp"
#include "examples/llama/chat_template.hpp"
#include "examples/llama/draft_head.hpp"
#include "examples/llama/gguf.hpp"
#include "examples/llama/llama_model.hpp"
#include "examples/llama/load_weights.hpp"
#include "examples/llama/tokenizer.hpp"
#include "graphs/error.hpp"
#include "runtime/speculative_loop.hpp"

namespace {

using namespace stepgraph;
using clock_type = std::chrono::steady_clock;
using text = std::vector<std::int32_t>;

struct options {
  std::string model, draft, questions;
  std::string where = "auto";
  std::string out = "-";
  std::string commit = "unknown";
  int count = 20;
  int max_tokens = 128;
  int repeats = 2;
  std::vector<int> lengths{2, 3, 4};
  int lookup = 4;
  int rounds = 100;
  int eager_questions = 3;
  bool only_gaps = false;

  int most() const { return std::max(lookup, *std::ranges::max_element(lengths)); }
};

double seconds_between(clock_type::time_point from, clock_type::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// The model, its draft, and the questions as tokens.
struct subject {
  device where;
  std::unique_ptr<llama::llama_model> model;
  std::unique_ptr<llama::draft_model> draft;
  std::int32_t end_of_turn = 0;
  std::vector<text> prompts;
};

subject load(const options& how) {
  const llama::gguf_file file{std::filesystem::path(how.model)};
  const llama::tokenizer words(file);
  const llama::chat_template chat(file, words);
  llama::llama_weights weights = llama::load_llama_weights(file);
  const llama::draft_head_weights head = llama::load_draft_head(std::filesystem::path(how.draft), weights);
  weights.config.taps = head.taps;  // what the head is fed with, which the target then keeps
  const device where = how.where == "host"   ? device::host()
                       : how.where == "cuda" ? device::cuda()
                                             : device::best();
  subject made{.where = where,
               .model = llama::make_llama(where, weights),
               .draft = llama::make_draft_head(where, head),
               .end_of_turn = chat.end_of_turn(),
               .prompts = {}};
  std::ifstream lines(how.questions);
  for (std::string line; std::ssize(made.prompts) < how.count && std::getline(lines, line);)
    made.prompts.push_back(chat.encode({{llama::chat_message{"user", line}}}, true));
  STEPGRAPH_EXPECTS(!made.prompts.empty(), "no questions in ", how.questions);
  return made;
}

step_executor make_executor(const options& how, const subject& s, step_timing timing) {
  const int most = how.most();
  // a bucket for each width of a verify step, so that none pays for tokens it does not have
  std::vector<int> widths;
  for (int k = 1; k <= most; ++k) widths.push_back(k + 1);
  std::vector<step_definition> steps = s.model->steps(llama::step_choice{.verify = true});
  for (step_definition& step : s.draft->steps())
    if (!step.sampled) steps.push_back(std::move(step));
  return {s.where,
          {.max_rows = 1,
           .max_step_tokens = 32,
           .max_draft_tokens = most,
           .max_requests = 1,
           .max_context = 1024,
           .page_size = 16,
           .vocab_size = s.model->config().vocab_size,
           .hidden_size = s.draft->shape().hidden_size},
          s.model->layout(),
          std::move(steps),
          {.token_buckets = bucket_policy::powers_of_two(32).with(widths),
           .draft = s.draft->shape(),
           .finish = finish_options{{s.end_of_turn}},
           .timing = timing}};
}

/// One way to answer.
struct way {
  std::string name;
  speculative_options how;
  nlohmann::json parameters;
};

std::vector<way> all_ways(const options& how) {
  std::vector<way> all{{"plain", {}, {{"captured", true}}}};
  for (const int k : how.lengths)
    all.push_back({"head",
                   {.drafts = draft_source::model(), .draft_length = k},
                   {{"captured", true}, {"draft_length", k}}});
  const int most = *std::ranges::max_element(how.lengths);
  all.push_back({"head, adaptive",
                 {.drafts = draft_source::model(), .draft_length = most, .adaptive = true},
                 {{"captured", true}, {"draft_length", most}}});
  if (how.lookup > 0)
    all.push_back({"look-up",
                   {.drafts = draft_source::prompt_lookup(1), .draft_length = how.lookup},
                   {{"captured", true}, {"draft_length", how.lookup}}});
  if (how.eager_questions > 0) {
    all.push_back({"plain", {.eager = true}, {{"captured", false}}});
    all.push_back({"head",
                   {.drafts = draft_source::model(), .draft_length = most, .eager = true},
                   {{"captured", false}, {"draft_length", most}}});
  }
  return all;
}

/// Texts, and the time from each text's first token to its last.
struct answered {
  std::vector<text> texts;
  double seconds = 0;
  std::size_t tokens = 0;  // that came in that time
  speculation_statistics did;
};

answered answer(step_executor& executor, const subject& s, const options& how, const way& by, int most) {
  speculative_loop loop(executor, by.how);
  const std::size_t count = std::min<std::size_t>(most, s.prompts.size());
  answered all;
  all.texts.resize(count);
  std::vector<clock_type::time_point> begun(count), ended(count);
  for (std::size_t i = 0; i < count; ++i)
    loop.submit({.prompt = s.prompts[i],
                 .max_tokens = how.max_tokens,
                 .on_token = [&all, &begun, &ended, i](std::int32_t token) {
                   ended[i] = clock_type::now();
                   if (all.texts[i].empty()) begun[i] = ended[i];
                   all.texts[i].push_back(token);
                 }});
  loop.run();
  for (std::size_t i = 0; i < count; ++i) {
    all.seconds += seconds_between(begun[i], ended[i]);
    all.tokens += all.texts[i].size() - 1;
  }
  all.did = loop.statistics();
  return all;
}

double tokens_a_round(const speculation_statistics& did) {
  return did.row_rounds > 0 ? double(did.row_rounds + did.accepted) / double(did.row_rounds) : 0.0;
}

/// Tokens a second of every way, in turn, as often as asked for.
void compare_ways(const options& how, const subject& s, bench::report& report) {
  step_executor executor = make_executor(how, s, step_timing::off);
  executor.capture();
  const std::vector<way> ways = all_ways(how);
  std::vector<std::vector<double>> rates(ways.size());
  std::vector<answered> last(ways.size());
  answer(executor, s, how, ways[0], how.count);  // warm
  for (int repeat = 0; repeat < how.repeats; ++repeat)
    for (std::size_t w = 0; w < ways.size(); ++w) {
      if (repeat > 0 && ways[w].how.eager) continue;
      last[w] = answer(executor, s, how, ways[w], ways[w].how.eager ? how.eager_questions : how.count);
      rates[w].push_back(double(last[w].tokens) / last[w].seconds);
    }
  if (const auto fault = executor.fault())
    std::printf("first fault: %s in %s\n", to_string(static_cast<row_status>(fault->status)),
                to_string(static_cast<op_id>(fault->op)));
  double plain = 0;
  std::printf("%-16s %8s %4s %10s %8s %12s %10s\n", "drafts", "captured", "K", "tokens/s", "times",
              "tokens/round", "same text");
  for (std::size_t w = 0; w < ways.size(); ++w) {
    std::ranges::sort(rates[w]);
    const double rate = rates[w][rates[w].size() / 2];
    if (w == 0) plain = rate;
    std::size_t same = 0;
    for (std::size_t i = 0; i < last[w].texts.size(); ++i) same += last[w].texts[i] == last[0].texts[i];
    const double a_round = tokens_a_round(last[w].did);
    std::printf("%-16s %8s %4d %10.1f %8.2f %12.2f %6zu of %zu\n", ways[w].name.c_str(),
                ways[w].how.eager ? "no" : "yes", ways[w].how.draft_length, rate, rate / plain, a_round, same,
                last[w].texts.size());
    report.add("speculation/" + ways[w].name, ways[w].parameters,
               {.median = 1e6 / rate,
                .minimum = 1e6 / rates[w].back(),
                .maximum = 1e6 / rates[w].front(),
                .count = static_cast<int>(rates[w].size())},
               0, w > 0 ? "plain, captured" : "", 1e6 / plain);
    report.note_row("tokens_a_second", rate);
    report.note_row("times_plain_captured", rate / plain);
    report.note_row("tokens_a_round", a_round);
    report.note_row("by_accepted", last[w].did.by_accepted);
    report.note_row("by_draft_length", last[w].did.by_draft_length);
    report.note_row("same_text", same);
    report.note_row("texts", last[w].texts.size());
  }
  std::fflush(stdout);
}

/// One kind of round, again and again: what its launch takes on the host, and each of its steps on the device.
void time_rounds(const options& how, const subject& s, int draft_length, bool eager, bench::report& report) {
  step_executor executor = make_executor(how, s, step_timing::steps);
  if (!eager) executor.capture();
  std::vector<double> host;
  const auto run = [&](const step_round& round) {
    const auto begin = clock_type::now();
    const step_ticket ticket = eager ? executor.run_eager(round) : *executor.replay(round);
    host.push_back(1e6 * seconds_between(begin, clock_type::now()));
    executor.wait(ticket);
  };
  step_row row{.request = executor.open(), .tokens = 0, .token_ids = {}};
  const std::span<const std::int32_t> prompt(s.prompts[0]);
  for (std::size_t fed = 0; fed < prompt.size(); fed += 32) {
    const auto chunk = std::min<std::size_t>(32, prompt.size() - fed);
    row.tokens = static_cast<std::int32_t>(chunk);
    row.token_ids = prompt.subspan(fed, chunk);
    row.following = fed + chunk < prompt.size() ? prompt[fed + chunk] : -1;
    run({.kind = step_kind::extend, .rows = {&row, 1}, .extend_draft = draft_length > 0});
  }
  host.clear();
  const int rounds = std::min(how.rounds, 900 / (draft_length + 1));
  row = {.request = row.request, .tokens = draft_length + 1};
  for (int i = 0; i < rounds; ++i)
    run({.kind = draft_length > 0 ? step_kind::target_verify : step_kind::decode,
         .rows = {&row, 1},
         .draft_length = draft_length,
         .extend_draft = draft_length > 0});
  executor.stream().synchronize();
  std::ranges::sort(host);
  const step_times& times = executor.statistics().times;
  std::printf("%s, K %d: the launch takes the host %.1f us; on the device", eager ? "eager" : "captured",
              draft_length, host[host.size() / 2]);
  report.add("speculation/launch of a round", {{"captured", !eager}, {"draft_length", draft_length}},
             {.median = host[host.size() / 2],
              .minimum = host.front(),
              .maximum = host.back(),
              .count = static_cast<int>(host.size())});
  for (int kind = 0; kind < step_times::kinds; ++kind) {
    const time_statistics& time = times.by_kind[kind];
    if (time.count == 0 || static_cast<step_kind>(kind) == step_kind::extend) continue;
    std::printf(" %s %.1f", to_string(static_cast<step_kind>(kind)), time.mean());
    report.add(std::string("speculation/on the device/") + to_string(static_cast<step_kind>(kind)),
               {{"captured", !eager}, {"draft_length", draft_length}},
               {.median = time.mean(),
                .minimum = time.smallest,
                .maximum = time.largest,
                .count = static_cast<int>(time.count)});
  }
  std::printf(", gaps within rounds %.1f us\n", times.between_steps.mean());
  std::fflush(stdout);
}

/// Gaps of the device between steps while the host runs a round ahead, and what reading the clock around each step
/// adds to a round: the gaps as measured hold one reading's end and another's begin. A gap can be the host's only in a
/// round whose last launch returned after the round before had ended, which is looked up without waiting.
void time_gaps(const options& how, const subject& s, int draft_length, bench::report& report) {
  const way by{.name = "head",
               .how = {.drafts = draft_length > 0 ? draft_source::model() : draft_source::none(),
                       .draft_length = draft_length},
               .parameters = {}};
  double round_us[2];
  for (const step_timing timing : {step_timing::off, step_timing::steps}) {
    step_executor executor = make_executor(how, s, timing);
    executor.capture();
    answer(executor, s, how, by, 2);
    executor.reset_times();  // between two loops the device has nothing to do
    const answered all = answer(executor, s, how, by, how.count);
    round_us[timing == step_timing::steps] = 1e6 * all.seconds / double(all.did.rounds);
    if (timing == step_timing::off) continue;
    const int steps = draft_length > 1 ? 3 : draft_length > 0 ? 2 : 1;
    const double reading = (round_us[1] - round_us[0]) / steps;
    std::printf("gaps, K %d, a round %.1f us, of which reading the clock %.2f a step\n", draft_length,
                round_us[1], reading);
    const auto note = [&](const char* name, const gap_statistics& gaps) {
      if (gaps.count == 0) return;
      const double p99 = gaps.percentile(0.99);
      std::printf(
          "  %-15s %5llu: mean %.2f us, p99 %.2f, most %.2f; over 5 us %llu; with the host late %llu, of "
          "which over 5 us "
          "%llu\n",
          name, static_cast<unsigned long long>(gaps.count), gaps.mean(), p99, gaps.largest,
          static_cast<unsigned long long>(gaps.over_5us), static_cast<unsigned long long>(gaps.host_late),
          static_cast<unsigned long long>(gaps.host_late_over_5us));
      report.add(std::string("speculation/gap ") + name, {{"draft_length", draft_length}},
                 {.median = gaps.mean(),
                  .minimum = gaps.smallest,
                  .maximum = gaps.largest,
                  .count = static_cast<int>(gaps.count)});
      report.note_row("p99", p99);
      report.note_row("over_5us", gaps.over_5us);
      report.note_row("host_late", gaps.host_late);
      report.note_row("host_late_over_5us", gaps.host_late_over_5us);
      report.note_row("reading_the_clock_us", reading);
    };
    const step_times& times = executor.statistics().times;
    note("within rounds", times.between_steps);
    note("between rounds", times.between_rounds);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  options how;
  CLI::App app{"Tokens a second at batch 1 with and without drafts, and what a round takes."};
  app.add_option("--model", how.model, "GGUF file")->required();
  app.add_option("--draft", how.draft, "file of its draft head")->required();
  app.add_option("--questions", how.questions, "a question a line")->required();
  app.add_option("--device", how.where, "where to run")->check(CLI::IsMember({"auto", "host", "cuda"}));
  app.add_option("--out", how.out, "JSON file, - for standard output")->capture_default_str();
  app.add_option("--commit", how.commit, "what was built");
  app.add_option("--count", how.count, "questions, at most")->capture_default_str();
  app.add_option("--max-tokens", how.max_tokens, "tokens of an answer, at most")->capture_default_str();
  app.add_option("--repeats", how.repeats, "times that each way is run")->capture_default_str();
  app.add_option("--lengths", how.lengths, "K of the head")->capture_default_str();
  app.add_option("--lookup", how.lookup, "K of prompt look-up, 0: none")->capture_default_str();
  app.add_option("--rounds", how.rounds, "rounds whose launches are timed")->capture_default_str();
  app.add_option("--eager", how.eager_questions, "questions answered eagerly")->capture_default_str();
  app.add_flag("--only-gaps", how.only_gaps, "measure the gaps on the device alone");
  CLI11_PARSE(app, argc, argv);
  try {
    const subject s = load(how);
    bench::report report(s.where, how.commit);
    report.note("questions", std::filesystem::path(how.questions).filename().string());
    if (!how.only_gaps) compare_ways(how, s, report);
    std::vector<int> lengths{0};
    lengths.insert(lengths.end(), how.lengths.begin(), how.lengths.end());
    for (const bool eager : {false, true})
      for (const int k : lengths)
        if (!how.only_gaps) time_rounds(how, s, k, eager, report);
    for (const int k : lengths) time_gaps(how, s, k, report);
    report.write(how.out);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "bench_speculation: %s\n", failure.what());
    return 1;
  }
  return 0;
}
