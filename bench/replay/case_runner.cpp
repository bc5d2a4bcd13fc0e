#include "bench/replay/case_runner.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

constexpr double noise_limit = 0.03;  // between the medians of repetitions ...
constexpr double noise_from_us = 20;  // ... of this or more

}  // namespace

struct case_runner::running {
  replay_case wanted;
  std::unique_ptr<measured_step> step;
  std::unique_ptr<measured_step> other;  // at the live width; of a round, the plain decode step
  replay_times times, other_times;
  int repetitions = 0;
  nlohmann::json parameters;
};

double rate_for(double kept, int drafts) {
  if (kept > drafts) return 2;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double rate = (low + high) / 2;
    (accept_rule::rate(rate, drafts).mean() < kept ? low : high) = rate;
  }
  return high;
}

case_runner::case_runner(stream_ref at, std::int64_t width, const runner_options& options, report& into)
    : at_(at),
      width_(width),
      options_(options),
      report_(into),
      bandwidth_(measure_bandwidths(at)),
      place_(at.where().name() + (at.is_host() ? ", no GPU" : "")),
      swept_(device_memory(at.where()), sweep_bytes(at.where())) {
  report_.note("backend", at.is_host() ? "host" : "cuda");
  report_.note("read_bytes_per_us", bandwidth_.read);
  report_.note("copy_bytes_per_us", bandwidth_.copy);
  std::printf("[%s] reads %.1f GB/s, copies %.1f GB/s (read and written)\n", place_.c_str(),
              1e-3 * bandwidth_.read, 1e-3 * bandwidth_.copy);
  std::fflush(stdout);
}

case_runner::~case_runner() = default;

void case_runner::begin(const replay_case& next) {
  now_.reset();
  const bool round = next.step == replay_step::round;
  if (model_name_ != next.model.name) {
    model_.reset();
    draft_.reset();
    model_ = make_model(next.model, width_, at_.where(), options_.seed);
    model_name_ = next.model.name;
  }
  // a draft-extend step is the draft's
  const bool drafts = round || next.step == replay_step::draft_extend;
  if (drafts && !draft_) draft_ = make_model(draft_of(next.model), width_, at_.where(), options_.seed + 1);
  auto made = std::make_unique<running>();
  made->wanted = next;
  const replay_model* const draft = drafts ? draft_.get() : nullptr;
  made->step = std::make_unique<measured_step>(at_, next, *model_, draft, options_.seed);
  replay_case beside = next;
  if (round)
    beside.step = replay_step::decode;
  else {
    const std::int64_t room = next.row_tokens() + next.max_query_count();
    beside.width = std::min(next.width, (room + next.page_size - 1) / next.page_size * next.page_size);
  }
  if (round || beside.width < next.width)
    made->other =
        std::make_unique<measured_step>(at_, beside, *model_, round ? nullptr : draft, options_.seed);
  made->parameters = {{"model", next.model.name},   {"step", to_string(next.step)},
                      {"policy", next.policy.name}, {"batch", next.batch},
                      {"live", next.live},          {"width", next.width},
                      {"page", next.page_size},     {"on", place_}};
  if (next.step != replay_step::decode) {
    made->parameters["drafts"] = next.drafts;
    made->parameters["accept"] = next.accept.text;
    made->parameters["ragged"] = next.ragged;
  }
  if (next.model.is_sparse()) made->parameters["attention"] = "stand-in";
  now_ = std::move(made);
}

samples case_runner::repeat() {
  replay_times once;
  measure(at_, *now_->step, swept_, {.batches = options_.batches}, once);
  if (now_->other)
    measure(at_, *now_->other, swept_, {.batches = options_.batches, .detail = false}, now_->other_times);
  const auto append = [](samples& to, const samples& from) { to.insert(to.end(), from.begin(), from.end()); };
  replay_times& all = now_->times;
  append(all.step, once.step);
  append(all.replayed, once.replayed);
  append(all.launch_call, once.launch_call);
  append(all.replay_call, once.replay_call);
  append(all.first_launch_call, once.first_launch_call);
  append(all.first_replay_call, once.first_replay_call);
  append(all.gap, once.gap);
  append(all.gap_with_copy, once.gap_with_copy);
  append(all.device_hot, once.device_hot);
  append(all.device_cold, once.device_cold);
  for (const auto& [group, values] : once.groups) append(all.groups[group], values);
  all.parts.resize(once.parts.size());
  for (std::size_t p = 0; p < once.parts.size(); ++p) append(all.parts[p], once.parts[p]);
  ++now_->repetitions;
  return once.step;
}

void case_runner::print(const char* what, const timing& t, const std::string& note) const {
  std::printf("[%s]   %-28s %10.2f us  (%.2f to %.2f, %d samples) %s\n", place_.c_str(), what, t.median,
              t.minimum, t.maximum, t.count, note.c_str());
}

/// By how much the medians of a figure's repetitions differ, where that is worth a word; else 0.
double case_runner::noise(const samples& values) const {
  const std::size_t parts = now_->repetitions, each = parts > 1 ? values.size() / parts : 0;
  if (each == 0) return 0;
  samples medians;
  for (std::size_t i = 0; i < parts; ++i)
    medians.push_back(median({values.begin() + i * each, values.begin() + (i + 1) * each}));
  const auto [least, most] = std::ranges::minmax(medians);
  return most >= noise_from_us && most > least * (1 + noise_limit) ? most / least - 1 : 0;
}

void case_runner::add(const char* name, const samples& values, std::int64_t bytes, const std::string& peer,
                      double peer_us) {
  if (values.empty()) return;
  const timing t = summary(values);
  std::string note;
  if (bytes > 0)
    note = message(1e-6 * double(bytes), " MB, ",
                   std::lround(1000 * double(bytes) / t.median / bandwidth_.read) / 10.0,
                   " % of the measured bandwidth; ");
  if (!peer.empty()) note += message(peer, ' ', std::lround(100 * peer_us) / 100.0, " us; ");
  const double differ = noise(values);
  if (differ > 0)
    note += message("too noisy: repetitions differ by ", std::lround(1000 * differ) / 10.0, " %");
  print(name, t, note);
  report_.add(name, now_->parameters, t, bytes, peer, peer_us);
  nlohmann::json kept = nlohmann::json::array();
  for (const double each : values) kept.push_back(std::round(1000 * each) / 1000);
  report_.note_row("samples", std::move(kept));
  report_.note_row("noisy", differ > 0);
}

void case_runner::end() {
  const replay_case& c = now_->wanted;
  const replay_times& t = now_->times;
  if (t.step.empty()) return;
  const bool round = c.step == replay_step::round;
  std::printf("[%s] %s\n", place_.c_str(), c.name().c_str());
  now_->parameters["noisy"] = noise(t.step) > 0;
  const std::int64_t bytes = now_->step->step_bytes();
  const double other = median(now_->other_times.step);
  const char* const beside = round ? "plain decode step" : "captured at the live width";
  add(round ? "round" : "step", t.step, bytes, now_->other ? beside : "", other);
  add(round ? "replayed round" : "replayed step", t.replayed, bytes);
  add("launch call, host", t.launch_call);
  add("replay call, host", t.replay_call);
  add("launch call after a pause, host", t.first_launch_call);
  add("replay call after a pause, host", t.first_replay_call);
  add("device gap, graph to graph", t.gap);
  add("device gap, with input copy", t.gap_with_copy);
  add("first node to last, hot", t.device_hot);
  add("first node to last, cold", t.device_cold);
  if (round)
    for (std::size_t p = 0; p < t.parts.size(); ++p)
      add(message("part: ", now_->step->parts()[p].name).c_str(), t.parts[p]);
  add_accounting();
  add_capture();
  if (round) add_break_even();
  std::fflush(stdout);
}

/// Groups, the time between replays, and what neither explains.
void case_runner::add_accounting() {
  const replay_times& t = now_->times;
  const double whole = median(t.step);
  double explained = 0;
  for (const node_group group : all_groups)
    if (const auto found = t.groups.find(group); found != t.groups.end()) {
      add(message("group: ", to_string(group)).c_str(), found->second);
      explained += median(found->second);
    }
  // of a round, what its steps leave between them
  const double gap = t.gap.empty() ? whole - median(t.device_hot) : median(t.gap);
  if (t.gap.empty())
    add("group: between replays", {gap});
  else
    add("group: between replays", t.gap);
  const double rest = whole - explained - gap;
  add("group: not explained", {rest});
  print(std::abs(rest) <= 0.05 * whole ? "groups explain the step" : "groups DO NOT explain the step",
        summary({explained + gap}),
        message(std::lround(1000 * (explained + gap) / whole) / 10.0, " % of it"));
}

void case_runner::add_capture() {
  for (const auto& part : now_->step->parts()) {
    const capture_report& capture = part.capture;
    add("capture and instantiation", {1e3 * capture.milliseconds});
    report_.note_row("nodes", capture.nodes);
    const double bytes = part.graph->executable_bytes();
    report_.note_row("device_bytes", std::round(bytes));
    report_.note_row("part", part.name);
    std::printf("[%s]     %zu nodes, %.0f bytes taken by the driver for each executable\n", place_.c_str(),
                capture.nodes, bytes);
  }
}

/// A round emits 1 + a tokens a row where a plain step emits one: it pays from a = round / step - 1 on.
void case_runner::add_break_even() {
  const replay_case& c = now_->wanted;
  const double round = median(now_->times.step), plain = median(now_->other_times.step);
  double kept = 0;
  for (int row = 0; row < c.batch; ++row)
    for (std::size_t a = 0; a < c.accept.probability.size(); ++a)
      kept += c.accept.probability[a] * std::min<double>(double(a), c.verify_tokens(row) - 1) / c.batch;
  const double even = std::max(0.0, round / plain - 1), rate = rate_for(even, c.drafts);
  const nlohmann::json figures = {
      {"accepted", kept},
      {"kept_last", now_->step->kept()},
      {"tokens_per_second", 1e6 * c.batch * (1 + kept) / round},
      {"plain_tokens_per_second", 1e6 * c.batch / plain},
      {"break_even_accepted", even},
      {"break_even_rate", rate > 1 ? nlohmann::json(nullptr) : nlohmann::json(rate)}};
  report_.add("speculation", now_->parameters, summary({round}));
  report_.note_row("speculation", figures);
  std::printf("[%s]   %.2f drafts kept a row: %.0f tokens/s, plain %.0f; breaks even at %.2f kept",
              place_.c_str(), kept, figures["tokens_per_second"].get<double>(),
              figures["plain_tokens_per_second"].get<double>(), even);
  if (rate > 1)
    std::printf(", more than the %d drafts there are\n", c.drafts);
  else
    std::printf(", a rate of %.2f\n", rate);
}

}  // namespace stepgraph::bench
