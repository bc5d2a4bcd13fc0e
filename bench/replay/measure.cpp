#include "bench/replay/measure.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "bench/replay/device_work.hpp"

namespace stepgraph::bench {
namespace {

using clock_type = std::chrono::steady_clock;

double since(clock_type::time_point start) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - start).count();
}

double mean(const samples& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

/// One measurement of rounds; `measure` below says what is measured when.
class rounds {
 public:
  rounds(stream_ref at, measured_step& step)
      : at_(at), step_(step), start_(at.where(), event::timing::on), stop_(at.where(), event::timing::on) {
    instantiate(clock_marks::none);
    rewind(2);
    launch();  // warm
    const double once = timed(1);
    // long enough for the clocks, few enough for the lengths
    count_ = std::clamp(static_cast<int>(4000.0 / std::max(once, 1.0)), 1, most_launches - 2);
    if (at.is_host()) count_ = std::min(count_, 4);
  }

  int count() const { return count_; }

  /// Microseconds a round, back to back.
  double back_to_back() {
    rewind(count_ + 1);
    launch();
    return timed(count_);
  }

  double replayed() {
    rewind(count_ + 1);
    step_.replay();
    start_.record(at_);
    for (int i = 0; i < count_; ++i) step_.replay();
    stop_.record(at_);
    stop_.synchronize();
    return 1e3 * stop_.milliseconds_since(start_) / count_;
  }

  /// Host microseconds of every launch of a graph, and of every replay, with room in all queues: of the first after
  /// the device was idle and the host's caches have gone cold, and of those that follow it.
  void host_calls(replay_times& into) {
    const auto time_calls = [&](samples& first, samples& next, int room, const auto& call) {
      rewind(room + 1);
      at_.synchronize();
      for (int i = 0; i <= room; ++i)
        call([&](const auto& timed) {
          const auto start = clock_type::now();
          timed();
          (i == 0 ? first : next).push_back(since(start));
        });
      at_.synchronize();
    };
    time_calls(into.first_launch_call, into.launch_call, most_launches - 2, [&](const auto& around) {
      for (const auto& part : step_.parts()) around([&] { part.graph->launch(); });
    });
    constexpr int staging = 6;  // of the executor's buffers
    if (step_.replays_alone())
      time_calls(into.first_replay_call, into.replay_call, staging,
                 [&](const auto& around) { around([&] { step_.replay(); }); });
  }

  void instantiate(clock_marks marks) {
    for (const auto& part : step_.parts()) part.graph->instantiate(marks);
  }

  /// Marks of `count()` rounds back to back, by part; the first round, which the host was late for, left out.
  std::vector<std::vector<std::vector<double>>> marks(bool with_copies) {
    const int count = std::max(count_, 2);  // a gap lies between two
    rewind(count + 1);
    at_.synchronize();
    for (int i = 0; i < count + 1; ++i) {
      if (with_copies) copy_inputs();
      launch();
    }
    return take(1);
  }

  std::vector<std::vector<std::vector<double>>> cold_marks(const buffer& swept) {
    for (int i = 0; i < std::min(count_, 4); ++i) {
      rewind(1);
      for (const auto& part : step_.parts()) {
        at_.fill(swept.data(), static_cast<unsigned char>(i), swept.bytes());
        part.graph->launch();
      }
    }
    return take(0);
  }

 private:
  void rewind(int launches) { step_.rewind(launches); }
  void launch() {
    for (const auto& part : step_.parts()) part.graph->launch();
  }
  double timed(int count) {
    start_.record(at_);
    for (int i = 0; i < count; ++i) launch();
    stop_.record(at_);
    stop_.synchronize();
    return 1e3 * stop_.milliseconds_since(start_) / count;
  }
  std::vector<std::vector<std::vector<double>>> take(int skip) {
    std::vector<std::vector<std::vector<double>>> lines;
    for (const auto& part : step_.parts()) {
      lines.push_back(part.graph->take_marks());
      lines.back().erase(lines.back().begin(), lines.back().begin() + skip);
    }
    return lines;
  }
  void copy_inputs() {
    const std::size_t bytes = step_.staging_bytes();
    if (pinned_.bytes() < bytes) {
      at_.synchronize();
      pinned_ = buffer(pinned_memory(at_.where()), bytes);
      copied_ = buffer(device_memory(at_.where()), bytes);
    }
    at_.copy(copied_.data(), pinned_.data(), bytes);
  }

  stream_ref at_;
  measured_step& step_;
  event start_, stop_;
  buffer pinned_, copied_;
  int count_ = 1;
};

/// Mean length of lines of marks, less a mark's own cost.
double device_time(const std::vector<std::vector<double>>& lines, double mark_cost) {
  samples each;
  for (const auto& line : lines) each.push_back(line.back() - line.front() - mark_cost);
  return mean(each);
}

double gaps(const std::vector<std::vector<double>>& lines) {
  samples each;
  for (std::size_t i = 1; i < lines.size(); ++i) each.push_back(lines[i].front() - lines[i - 1].back());
  return mean(each);
}

}  // namespace

timing summary(samples values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {.median = values[values.size() / 2],
          .minimum = values.front(),
          .maximum = values.back(),
          .count = static_cast<int>(values.size())};
}

double median(samples values) {
  return summary(std::move(values)).median;
}

void measure(stream_ref at, measured_step& step, const buffer& swept, const measure_options& how,
             replay_times& into) {
  const auto& parts = step.parts();
  rounds run(at, step);
  (void)run.back_to_back();
  for (int i = 0; i < how.batches; ++i) into.step.push_back(run.back_to_back());
  if (!how.detail) return;
  for (int i = 0; i < how.batches && step.replays_alone(); ++i) into.replayed.push_back(run.replayed());
  for (int i = 0; i < how.batches; ++i) run.host_calls(into);

  // what a mark costs, by place
  run.instantiate(clock_marks::groups_doubled);
  const auto doubled = run.marks(false);
  std::vector<std::vector<double>> cost;
  for (const auto& lines : doubled) {
    cost.emplace_back(lines.front().size() / 2, 0.0);
    for (const auto& line : lines)
      for (std::size_t p = 0; p < cost.back().size(); ++p)
        cost.back()[p] += (line[2 * p + 1] - line[2 * p]) / double(lines.size());
  }

  run.instantiate(clock_marks::groups);
  for (int i = 0; i < how.batches; ++i) {
    const auto lines = run.marks(false);
    std::map<node_group, double> sums;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const auto& runs = parts[p].graph->runs();
      for (const auto& line : lines[p])
        for (std::size_t r = 0; r < runs.size(); ++r)
          sums[runs[r].group] += (line[r + 1] - line[r] - cost[p][r + 1]) / double(lines[p].size());
    }
    for (const auto& [group, sum] : sums) into.groups[group].push_back(sum);
  }

  run.instantiate(clock_marks::ends);
  into.parts.resize(parts.size());
  for (int i = 0; i < how.batches; ++i) {
    const auto hot = run.marks(false), copied = run.marks(true), cold = run.cold_marks(swept);
    double sum_hot = 0, sum_cold = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      into.parts[p].push_back(device_time(hot[p], cost[p].back()));
      sum_hot += into.parts[p].back();
      sum_cold += device_time(cold[p], cost[p].back());
    }
    into.device_hot.push_back(sum_hot);
    into.device_cold.push_back(sum_cold);
    if (parts.size() == 1 && hot[0].size() > 1) {
      into.gap.push_back(gaps(hot[0]));
      into.gap_with_copy.push_back(gaps(copied[0]));
    }
  }
  step.expect_no_fault();
}

std::size_t sweep_bytes(device where) {
  return where.is_host() ? 64ul << 20 : 256ul << 20;
}

bandwidths measure_bandwidths(stream_ref at) {
  const std::size_t bytes = at.is_host() ? 64ul << 20 : 1ul << 30;
  const buffer from(device_memory(at.where()), bytes), to(device_memory(at.where()), bytes),
      sink(device_memory(at.where()), 16);
  at.fill(from.data(), 1, bytes);
  at.fill(to.data(), 2, bytes);
  fill_device(at, from.data(), static_cast<std::int64_t>(bytes / 2), 7);
  const chain_options how{.nodes = 1, .replays = at.is_host() ? 1 : 4, .count = 7};
  const auto size = static_cast<std::int64_t>(bytes);
  const timing read = time_chain(
      at, [&](stream_ref s) { read_bytes(s, from.data(), size, sink.as<std::uint32_t>()); }, how);
  const timing copy = time_chain(
      at, [&](stream_ref s) { copy_bytes(s, to.data(), from.data(), size); }, how);
  return {.read = double(bytes) / read.median, .copy = 2.0 * double(bytes) / copy.median};
}

}  // namespace stepgraph::bench
