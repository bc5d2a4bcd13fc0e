// Times attention over a paged cache as graph replays, beside a plain kernel that reads the same bytes, and
// writes them in the project's one JSON form. Page tables rotate over a pool far larger than the L2 cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/attention_kernels.hpp"
#include "bench/attention_unguarded.hpp"
#include "bench/report.hpp"
#include "graphs/graph.hpp"
#include "kernels/attention/split_attention.hpp"
#include "tests/device_vector.hpp"

using namespace stepgraph;

namespace {

constexpr int head_size = 128, heads = 32, kv_heads = 8;
constexpr std::int64_t pool_tokens = 64 * 8192 + 4096, token_elements = kv_heads * head_size;

struct row {
  int tokens;
  int length;
};

struct variant {
  std::string name = "split";
  int page_size = 16;
  std::int64_t width = 0;  // captured context; 0: the longest row
  bool tree = false;
  bool batch_invariant = false;
  int nodes = 1;        // of a graph
  bool paired = false;  // beside the same with its guard compiled out, in turn
  detail::split_options options{};
};

/// Median and spread of measurements in microseconds.
bench::timing timing_of(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  return {.median = us[us.size() / 2],
          .minimum = us.front(),
          .maximum = us.back(),
          .count = static_cast<int>(us.size())};
}

class attention_bench {
 public:
  attention_bench(stream_ref at, bench::report& to)
      : at_(at),
        report_(to),
        keys_(device_memory(at.where()), pool_tokens * token_elements * 2),
        values_(device_memory(at.where()), pool_tokens * token_elements * 2),
        sink_(at, 1, 0),
        device_(detail::split_device::of(at.where())) {
    bench::fill_random(at, keys_.data(), pool_tokens * token_elements, 1);
    bench::fill_random(at, values_.data(), pool_tokens * token_elements, 2);
  }

  /// Times `variants` of one case; each replay works on other pages than the one before where the pool holds
  /// several sets.
  void run(const std::string& name, const std::vector<row>& rows, const std::vector<variant>& variants) {
    std::int64_t tokens = 0, live = 0, longest = 0;
    for (const row& each : rows) {
      tokens += each.tokens;
      live += each.length;
      longest = std::max<std::int64_t>(longest, each.length);
    }
    const double bytes = static_cast<double>(live) * token_elements * 2 * 2;
    bench::timing read;
    for (const variant& v : variants) {
      const std::int64_t columns = (std::max<std::int64_t>(longest, v.width) + v.page_size - 1) / v.page_size;
      std::int64_t pages_a_set = 0;
      for (const row& each : rows) pages_a_set += (each.length + v.page_size - 1) / v.page_size;
      const int sets =
          static_cast<int>(std::clamp<std::int64_t>(pool_tokens / v.page_size / pages_a_set, 1, 8));
      const int table_sets = v.width > 0 ? 1 : sets;
      std::vector<std::int32_t> pages(pool_tokens / v.page_size), cu(1, 0), lengths, row_of, causal;
      std::iota(pages.begin(), pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
      std::vector<std::int32_t> table(table_sets * rows.size() * columns, 0);
      std::size_t next = 0;
      for (int set = 0; set < table_sets; ++set)
        for (std::size_t r = 0; r < rows.size(); ++r)
          for (int page = 0; page < (rows[r].length + v.page_size - 1) / v.page_size; ++page)
            table[(set * rows.size() + r) * columns + page] = pages[next++];
      std::vector<std::uint64_t> mask;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        lengths.push_back(rows[r].length);
        cu.push_back(cu.back() + rows[r].tokens);
        for (int j = 0; j < rows[r].tokens; ++j) {
          row_of.push_back(static_cast<int>(r));
          causal.push_back(rows[r].length - rows[r].tokens + j + 1);
          mask.push_back((j > 0 ? mask[mask.size() - (j + 1) / 2] : 0) | std::uint64_t{1} << j % 64);
        }
      }
      const device_vector<std::int32_t> d_table(at_, table), d_cu(at_, cu), d_lengths(at_, lengths),
          d_row_of(at_, row_of), d_causal(at_, causal);
      const device_vector<std::uint64_t> d_mask(at_, mask);
      const device_vector<std::uint16_t> query(at_, tokens * heads * head_size, 0),
          output(at_, query.size(), 0);
      bench::fill_random(at_, query.data(), query.size(), 3);
      paged_attention_params p{.type = element_type::bf16,
                               .query = query.data(),
                               .output = output.data(),
                               .cache = {keys_.data(), values_.data(), v.page_size * token_elements,
                                         token_elements, head_size, pool_tokens / v.page_size},
                               .page_table = d_table.data(),
                               .page_table_stride = columns,
                               .page_columns = columns,
                               .row_of = d_row_of.data(),
                               .causal_length = d_causal.data(),
                               .tokens = static_cast<int>(tokens),
                               .rows = static_cast<int>(rows.size()),
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_size = head_size,
                               .page_shift = std::countr_zero(static_cast<unsigned>(v.page_size)),
                               .scale = 0.08838834764f,
                               .cu_seqlens_q = d_cu.data(),
                               .cache_seqlens = d_lengths.data(),
                               .tree_mask = v.tree ? d_mask.data() : nullptr,
                               .batch_invariant = v.batch_invariant};
      const auto plan = detail::plan_split(device_, p, v.options);
      const device_vector<std::uint8_t> workspace(at_, plan.workspace_bytes, 0);
      p.workspace = workspace.data();
      p.workspace_bytes = plan.workspace_bytes;
      if (read.count == 0)
        read = timing_of(time(sets, 1, {[&](stream_ref s, int set) {
                                const std::int64_t from = set * live * token_elements * 2;
                                bench::read_plainly(s, keys_.as<char>() + from, values_.as<char>() + from,
                                                    live * token_elements * 2, sink_.data());
                              }})[0]);
      const auto of_set = [&](int set) {
        paged_attention_params now = p;
        now.page_table += set * rows.size() * columns;
        return now;
      };
      std::vector<op> ops{
          [&](stream_ref s, int set) { detail::split_attention_cuda(s, of_set(set), v.options); }};
      if (v.paired)
        ops.push_back([&](stream_ref s, int set) { bench::attend_unguarded(s, of_set(set), v.options); });
      const std::vector<std::vector<double>> us = time(table_sets, v.nodes, ops);
      const bench::timing result = timing_of(us[0]);
      add(name,
          {{"variant", v.name},
           {"page", v.page_size},
           {"width", columns * v.page_size},
           {"min_tiles", v.options.min_tiles},
           {"oversubscribe", v.options.oversubscribe},
           {"switch_tiles", v.options.switch_tiles},
           {"warpgroups", v.options.warpgroups},
           {"warps", v.options.warps},
           {"bulk", v.options.bulk},
           {"nodes", v.nodes}},
          result, bytes, "plain read of the same bytes", read.median);
      report_.note_row("share_of_read_bandwidth", read.median / result.median);
      if (v.paired) add_pair(name, us[0], us[1], bytes);
    }
    add(name, {{"variant", "plain read"}}, read, bytes, {}, 0);
  }

 private:
  using op = std::function<void(stream_ref, int)>;

  /// Microseconds of each op, round by round: replays of one graph a set, one after another, in rounds of about a
  /// millisecond. Several ops take turns, in more rounds, each second time the other way round, so that what drifts
  /// hits all of them alike.
  std::vector<std::vector<double>> time(int sets, int nodes, const std::vector<op>& ops) {
    std::vector<std::vector<graph_exec>> execs(ops.size());
    for (std::size_t which = 0; which < ops.size(); ++which)
      for (int set = 0; set < sets; ++set)
        execs[which].push_back(capture(at_, [&](stream_ref s) {
                                 for (int node = 0; node < nodes; ++node) ops[which](s, (set + node) % sets);
                               }).instantiate());
    event start(at_.where(), event::timing::on), stop(at_.where(), event::timing::on);
    const auto round = [&](std::vector<graph_exec>& of, int replays) {
      start.record(at_);
      for (int i = 0; i < replays; ++i) of[i % sets].launch(at_);
      stop.record(at_);
      stop.synchronize();
      return stop.milliseconds_since(start) * 1e3 / (replays * nodes);
    };
    const double once = round(execs[0], 8);
    const int replays = std::clamp(static_cast<int>(1000 / (once * nodes)), 4, 64) / sets * sets + sets;
    std::vector<std::vector<double>> us(ops.size());
    for (int i = 0; i < 3; ++i)
      for (auto& each : execs) round(each, replays);
    const std::size_t rounds = ops.size() > 1 ? 61 : 15;
    for (std::size_t i = 0; i < rounds; ++i)
      for (std::size_t turn = 0; turn < ops.size(); ++turn) {
        const std::size_t which = i % 2 == 0 ? turn : ops.size() - 1 - turn;
        us[which].push_back(round(execs[which], replays));
      }
    return us;
  }

  /// Adds what the same took with its guard compiled out, and the median of the rounds' ratios.
  void add_pair(const std::string& name, const std::vector<double>& guarded,
                const std::vector<double>& unguarded, double bytes) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < guarded.size(); ++i) ratios.push_back(guarded[i] / unguarded[i]);
    std::sort(ratios.begin(), ratios.end());
    const bench::timing of = timing_of(ratios);
    add(name, {{"variant", "guard compiled out"}}, timing_of(unguarded), bytes, "with its guard, in turn",
        timing_of(guarded).median);
    // of the median, by the quartiles of the rounds' ratios
    const double error = 1.253 * (ratios[ratios.size() * 3 / 4] - ratios[ratios.size() / 4]) / 1.349 /
                         std::sqrt(static_cast<double>(ratios.size()));
    report_.note_row("guarded_over_this", of.median);
    report_.note_row("standard_error", error);
    std::fprintf(stderr, "%-22s guarded over this: %.4f, standard error %.4f\n", "", of.median, error);
  }

  void add(const std::string& name, const nlohmann::json& parameters, const bench::timing& measured,
           double bytes, const std::string& peer, double peer_us) {
    report_.add(name, parameters, measured, static_cast<std::int64_t>(bytes), peer, peer_us);
    std::fprintf(stderr, "%-22s %-90s %9.2f us  %5.2f TB/s\n", name.c_str(), parameters.dump().c_str(),
                 measured.median, bytes / measured.median * 1e-6);
  }

  stream_ref at_;
  bench::report& report_;
  buffer keys_, values_;
  device_vector<std::uint32_t> sink_;
  detail::split_device device_;
};

void run_cases(attention_bench& b, const std::string& only) {
  const auto wanted = [&](const char* name) {
    return only.empty() || std::string(name).find(only) != std::string::npos;
  };
  const variant paired{.paired = true}, invariant{.name = "invariant", .batch_invariant = true};
  const auto with = [](const detail::split_options& options, int nodes = 1) {
    return variant{.nodes = nodes, .options = options};
  };
  if (wanted("decode 64x8192"))
    b.run("decode 64x8192", std::vector<row>(64, {1, 8192}),
          {paired,
           {.page_size = 1},
           {.page_size = 64},
           {.name = "wide", .width = 16384},
           {.name = "wide", .width = 1 << 20},
           invariant});
  if (wanted("decode 1x131072"))
    b.run("decode 1x131072", {{1, 131072}}, {paired, with({.warps = 4}), invariant});
  if (wanted("decode ragged")) {
    std::vector<row> rows;
    for (const int length : {128, 32768, 1000, 20000, 512, 30000, 4096, 25000, 8192, 300, 32768, 16384, 28000,
                             2048, 24000, 24806})
      rows.push_back({1, length});
    b.run("decode ragged", rows, {paired, with({.switch_tiles = 0}), invariant});
  }
  if (wanted("decode 8x1024"))
    b.run("decode 8x1024", std::vector<row>(8, {1, 1024}),
          {paired, with({.warps = 4}), with({}, 16), with({.warps = 4}, 16), invariant});
  if (wanted("verify 16x8192"))
    b.run("verify 16x8192", std::vector<row>(16, {8, 8192}),
          {paired, {.name = "tree", .tree = true}, with({.warpgroups = 1}), invariant});
  if (wanted("verify 16x16x8192")) b.run("verify 16x16x8192", std::vector<row>(16, {16, 8192}), {{}});
  if (wanted("draft-extend")) {
    std::vector<row> rows;
    for (int r = 0; r < 16; ++r) rows.push_back({r * 5 % 8 + 1, 8192});
    b.run("draft-extend", rows, {paired});
  }
  // prompt chunks: operations count rather than bytes
  const auto extend = [&](const char* name, const std::vector<row>& rows) {
    if (wanted(name)) b.run(name, rows, {paired, with({.bulk = false}), with({.warpgroups = 0})});
  };
  extend("extend 4x2048", std::vector<row>(4, {2048, 2048}));
  std::vector<row> uneven(8, {64, 2048 + 64});
  uneven[3] = {4096, 2048 + 4096};
  extend("extend uneven", uneven);
  extend("extend even", std::vector<row>(8, {568, 2048 + 568}));
  if (wanted("extend full rectangle"))
    b.run("extend full rectangle", std::vector<row>(8, {4096, 2048 + 4096}), {{}});
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, json = "-", commit = "unknown";
  CLI::App app{"Attention over a paged cache, as graph replays, beside a plain read of the same bytes"};
  app.add_option("--only", only, "cases whose name contains this");
  app.add_option("--json", json, "file to write, or - for standard output")->capture_default_str();
  app.add_option("--commit", commit, "commit that was built")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const stream at(device::cuda());
    bench::report report(device::cuda(), commit);
    attention_bench b(at, report);
    run_cases(b, only);
    report.write(json);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "bench_attention: %s\n", failure.what());
    return 1;
  }
}
