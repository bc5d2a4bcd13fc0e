// Where a captured step's time goes: sweeps models, steps, guard policies, batches, lengths and widths, and reports
// host and device times of every step apart.
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/replay/case_runner.hpp"
#include "bench/replay/options.hpp"
#include "examples/progress_bar.hpp"
#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

volatile std::sig_atomic_t interrupted = 0;

device choose_device(const std::string& where) {
  if (where == "host") return device::host();
  return where == "cuda" ? device::cuda() : device::best();
}

/// Refuses what this device cannot do, before anything is launched on it.
void check_device(const std::vector<replay_case>& cases, device where) {
  for (const replay_case& each : cases) {
    STEPGRAPH_EXPECTS(!each.policy.other || !where.is_host(), "--policy: ", each.policy.name,
                      " is a CUDA kernel, and this runs on ", where.name());
    const std::int64_t needed =
        bytes_needed(each, where.is_host()) + static_cast<std::int64_t>(sweep_bytes(where));
    const auto there = static_cast<std::int64_t>(where.free_bytes());
    if (needed > there)
      throw out_of_memory(
          message(each.name(), ": ", needed, " bytes needed, ", there, " free on ", where.name()), needed,
          there);
  }
}

/// Refuses a file that cannot be written; leaves one that is there as it is.
void check_output(const std::string& path) {
  if (path.empty() || path == "-") return;
  const bool was_there = std::filesystem::exists(path);
  const bool fits = std::ofstream(path, std::ios::app).good();
  if (fits && !was_there) std::filesystem::remove(path);
  STEPGRAPH_EXPECTS(fits, "--json: cannot write ", path);
}

/// The report's lines are the runner's own.
class quiet_reporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

struct sweep {
  case_runner& runner;
  const std::vector<replay_case>& cases;
  int repetitions;
  progress_bar bar{"cases"};
  int done = 0;     // repetitions of the case in hand
  int started = 0;  // cases
  bool failed = false;
  const replay_case* broken = nullptr;  // the last that failed
};

/// One repetition of one case, timed by its own means. A case that failed or was interrupted has times of zero from
/// there on: Google Benchmark insists that repetitions are alike.
void run_case(benchmark::State& state, sweep& all, const replay_case& wanted) {
  samples times{0.0};
  if (!interrupted && all.broken != &wanted) try {
      if (all.done == 0) {
        all.bar.show(all.started++, static_cast<int>(all.cases.size()));
        all.runner.begin(wanted);
      }
      times = all.runner.repeat();
      if (++all.done == all.repetitions || interrupted) {
        all.bar.finish();
        all.runner.end();
        all.done = 0;
      }
    } catch (const std::exception& failure) {
      all.bar.finish();
      std::fprintf(stderr, "%s: %s\n", wanted.name().c_str(), failure.what());
      all.broken = &wanted;
      all.failed = true;
      all.done = 0;
    }
  for (std::size_t i = 0; state.KeepRunning(); ++i) state.SetIterationTime(1e-6 * times[i % times.size()]);
}

int run(int argc, char** argv) {
  CLI::App app(
      "Times captured steps, and what capture at maximum width costs. Options that begin with --benchmark_ "
      "go to "
      "Google Benchmark (--benchmark_filter=REGEX, --benchmark_out=FILE).");
  replay_options wanted;
  add_options(app, wanted);
  app.allow_extras();
  CLI11_PARSE(app, argc, argv);
  std::vector<std::string> extras = app.remaining();
  for (const std::string& each : extras)
    if (!each.starts_with("--benchmark_")) throw invalid_argument(message("unknown argument ", each));
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const std::vector<replay_case> cases = cases_of(wanted);
  if (wanted.list) {
    for (const replay_case& each : cases) std::printf("%s\n", each.name().c_str());
    return 0;
  }
  const device where = choose_device(wanted.where);
  check_device(cases, where);
  check_output(wanted.json);

  std::vector<char*> arguments{argv[0]};
  for (std::string& each : extras) arguments.push_back(each.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  STEPGRAPH_EXPECTS(count == 1, "unknown argument ", arguments[1]);

  const stream at(where);
  report into(where, wanted.commit);
  std::int64_t width = 0;
  for (const replay_case& each : cases) width = std::max(width, each.width);
  case_runner runner(at, width, {.batches = wanted.batches_timed, .seed = wanted.seed}, into);
  sweep all{.runner = runner, .cases = cases, .repetitions = wanted.repetitions};
  for (const replay_case& each : cases)
    benchmark::RegisterBenchmark(each.name().c_str(),
                                 [&all, &each](benchmark::State& state) { run_case(state, all, each); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(wanted.batches_timed)
        ->Repetitions(wanted.repetitions);
  quiet_reporter quiet;
  benchmark::RunSpecifiedBenchmarks(&quiet);
  if (all.done > 0) runner.end();  // interrupted between two repetitions
  all.bar.finish();
  into.note("interrupted", interrupted != 0);
  if (!wanted.json.empty()) into.write(wanted.json);
  if (interrupted) {
    std::fprintf(stderr, "interrupted; what was measured is kept\n");
    return 130;
  }
  return all.failed ? 1 : 0;
}

}  // namespace
}  // namespace stepgraph::bench

int main(int argc, char** argv) {
  try {
    return stepgraph::bench::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "graph_replay: %s\n", failure.what());
    return 1;
  }
}
