// What a guard costs: stepgraph's metadata kernels beside four other ways to follow the live region, on the
// same inputs in one run, each as a node in a chain of 20 in one graph. Prints a table, and writes JSON where
// asked.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <random>

#include "bench/guard_cases.hpp"
#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

/// Live columns of all rows, and lengths: what two ways to make them must agree on.
std::vector<std::int32_t> live_outputs(stream_ref at, const decode_inputs& in) {
  const auto table = in.table.get(at);
  auto out = in.cache_seqlens.get(at);
  const auto sums = in.cu_seqlens_k.get(at);
  out.insert(out.end(), sums.begin(), sums.end());
  const std::int64_t pages = pages_of(in.shape.live, in.shape.page_shift);
  for (int r = 0; r < in.shape.rows; ++r) {
    const auto line = table.begin() + r * in.params().page_columns;
    out.insert(out.end(), line, line + pages);
  }
  return out;
}

void run_decode(stream_ref at, const decode_shape& shape, report& into, bool shapes) {
  std::printf("decode page %d, width %lld, batch %d, live %lld (at most %.2f us)\n", 1 << shape.page_shift,
              static_cast<long long>(shape.width), shape.rows, static_cast<long long>(shape.live), shape.bar);
  const decode_inputs in(at, shape);
  const auto params = in.params();
  const nlohmann::json parameters = {{"page", 1 << shape.page_shift},
                                     {"width", shape.width},
                                     {"batch", shape.rows},
                                     {"live", shape.live},
                                     {"bar_us", shape.bar}};
  decode_metadata(at, params);
  const auto own_outputs = live_outputs(at, in);
  for (const guard_policy policy : {guard_policy::full_width, guard_policy::early_exit,
                                    guard_policy::bounded_grid, guard_policy::block_a_row}) {
    in.table.fill(at);
    decode_by(policy, at, params);
    if (live_outputs(at, in) != own_outputs) throw error(message(to_string(policy), ": outputs differ"));
  }
  const policy_times others =
      time_policies(at, into, "decode metadata", parameters, in.bytes(),
                    [&](guard_policy policy, stream_ref s) { decode_by(policy, s, params); });
  const timing own = time_chain(at, [&](stream_ref s) { decode_metadata(s, params); });
  print_timing("stepgraph", own, shape.bar);
  print_bytes(own, in.bytes(), at);
  into.add("decode metadata, stepgraph", parameters, own, in.bytes(), others.best, others.best_us);
  const timing serial =
      time_chain(at, [&](stream_ref s) { decode_shaped(s, params, {.programmatic = false}); });
  print_timing("stepgraph, no programmatic launch", serial);
  into.add("decode metadata, stepgraph without programmatic launch", parameters, serial, in.bytes());
  if (!shapes) return;
  const auto variant = [&](const std::string& name, const auto& enqueue) {
    const timing t = time_chain(at, enqueue);
    print_timing(name, t);
    into.add("decode metadata, " + name, parameters, t, in.bytes());
  };
  variant("chain of loads only", [&](stream_ref s) { decode_chain_only(s, params); });
  for (const int heads : {33, 66, 132, 264})
    for (const int helpers : {33, 132})
      for (const int late : {0, 1})
        variant(message("heads ", heads, ", helpers ", helpers, late ? ", late" : ""), [&](stream_ref s) {
          decode_shaped(s, params, {.head_blocks = heads, .helpers = helpers, .lets_in_late = late});
        });
}

/// Width 1,048,576 against width 4,096 at one live length, and everything live with and without the guard.
void run_guard_cost(stream_ref at, report& into) {
  for (const int page_shift : {0, 6}) {
    double narrow = 0;
    for (const std::int64_t width : {std::int64_t{4096}, std::int64_t{1} << 20}) {
      const decode_inputs in(at,
                             {.page_shift = page_shift, .width = width, .rows = 64, .live = 4096, .bar = 0});
      const auto params = in.params();
      const timing t = time_chain(at, [&](stream_ref s) { decode_metadata(s, params); });
      if (width == 4096) narrow = t.median;
      print_timing(message("page ", 1 << page_shift, ", 64 x 4096 in width ", width), t);
      into.add("decode metadata, same live length in two widths",
               {{"page", 1 << page_shift}, {"width", width}, {"batch", 64}, {"live", 4096}}, t, in.bytes(),
               width == 4096 ? "" : "width 4096", narrow);
    }
  }
  for (const std::int64_t width : {std::int64_t{4096}, std::int64_t{65536}, std::int64_t{1} << 20}) {
    const decode_inputs in(at, {.page_shift = 0, .width = width, .rows = 64, .live = width, .bar = 0});
    const auto params = in.params();
    const timing bare = time_chain(at, [&](stream_ref s) { decode_unguarded(s, params); }, {.replays = 3});
    const timing own = time_chain(at, [&](stream_ref s) { decode_metadata(s, params); }, {.replays = 3});
    print_timing(message("everything live, 64 x ", width), own);
    print_timing("  guard compiled out", bare);
    into.add("decode metadata, everything live",
             {{"page", 1}, {"width", width}, {"batch", 64}, {"live", width}}, own, in.bytes(),
             "guard compiled out", bare.median);
  }
}

void run_floors(stream_ref at, report& into) {
  for (const bool programmatic : {false, true})
    for (const int blocks : {1, 66, 264}) {
      const timing t = time_chain(at, [&](stream_ref s) { empty_kernel(s, blocks, programmatic); });
      print_timing(message("empty, ", blocks, " blocks", programmatic ? ", programmatic" : ""), t);
      into.add("empty kernel", {{"blocks", blocks}, {"programmatic", programmatic}}, t);
    }
  for (const std::int64_t bytes : {std::int64_t{1} << 24, std::int64_t{1} << 30}) {
    buffer from(device_memory(at.where()), bytes), to(device_memory(at.where()), bytes);
    at.fill(from.data(), 1, bytes);
    const timing t =
        time_chain(at, [&](stream_ref s) { plain_copy(s, to.data(), from.data(), bytes); }, {.replays = 2});
    print_timing(message("copy of ", bytes, " bytes: ", 2e-6 * bytes / t.median, " TB/s"), t);
    into.add("plain copy", {{"bytes", bytes}}, t, 2 * bytes);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Cost of following the live region");
  std::string json, commit = "unknown";
  bool shapes = false;
  app.add_option("--json", json, "file to write, or - for standard output");
  app.add_option("--commit", commit, "commit that was built");
  app.add_flag("--shapes", shapes, "also time other grids");
  CLI11_PARSE(app, argc, argv);
  if (device::cuda_count() == 0) {
    std::puts("skipped: there is no CUDA device");
    return 77;
  }
  const stream at(device::cuda());
  report into(at.where(), commit);
  run_floors(at, into);
  run_other_ops(at, into);
  for (const decode_shape& shape : decode_shapes()) run_decode(at, shape, into, shapes);
  if (!json.empty() && json != "-") into.write(json);  // what there is, should the rest be cut off
  run_guard_cost(at, into);
  if (!json.empty()) into.write(json);
  return 0;
}

}  // namespace
}  // namespace stepgraph::bench

int main(int argc, char** argv) {
  try {
    return stepgraph::bench::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
