// What the sparse-attention index kernels cost, each as a node in a chain of 20 in one graph, beside a copy
// of the same bytes. Prints a table, and writes JSON where asked.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/guard_comparators.hpp"
#include "bench/sparse_cases.hpp"
#include "bench/sparse_kernels.hpp"
#include "graphs/error.hpp"

namespace stepgraph::bench {
namespace {

using nlohmann::json;

void print(const std::string& name, const timing& t, double bar, std::int64_t bytes) {
  std::printf("    %-52s %8.3f us  (%.3f to %.3f) %6.2f TB/s%s\n", name.c_str(), t.median, t.minimum,
              t.maximum, 1e-6 * static_cast<double>(bytes) / t.median,
              bar > 0 && t.median > bar ? " <-- over its bar" : "");
}

class run_of_cases {
 public:
  run_of_cases(stream_ref at, report& into, bool variants) : at_(at), into_(into), variants_(variants) {}

  /// Times `enqueue`, and with --variants its other shapes; what `result` reads must be the same after all.
  template <class Params, class Result>
  double time(const std::string& name, json parameters, double bar, std::int64_t bytes, const Params& params,
              void (*enqueue)(stream_ref, const Params&), const std::vector<kernel_variant<Params>>& others,
              const Result& result, const std::string& peer = {}, double peer_us = 0) {
    const chain_options chain{.replays = bytes > 10'000'000 ? 3 : 10};
    if (bar > 0) parameters["bar_us"] = bar;
    const timing own = time_chain(
        at_, [&](stream_ref s) { enqueue(s, params); }, chain);
    print(name, own, bar, bytes);
    into_.add(name, parameters, own, bytes, peer, peer_us);
    if (!variants_) return own.median;
    const auto wanted = result.get(at_);
    for (const auto& variant : others) {
      result.fill(at_);
      const timing t = time_chain(
          at_, [&](stream_ref s) { variant.enqueue(s, params); }, chain);
      print(std::string("  ") + variant.name, t, bar, bytes);
      if (result.get(at_) != wanted) throw error(message(name, ", ", variant.name, ": outputs differ"));
    }
    return own.median;
  }

  /// The driver's copy that moves `bytes`, read and written; printed beside a kernel of plain loads and stores.
  double copy(std::int64_t bytes) {
    const std::int64_t half = bytes / 2 / 16 * 16;
    const device_array<std::uint8_t> from(at_, half), to(at_, half);
    const chain_options chain{.replays = bytes > 10'000'000 ? 3 : 10};
    const timing plain = time_chain(
        at_, [&](stream_ref s) { plain_copy(s, to.data(), from.data(), half); }, chain);
    print("plain loads and stores of as many bytes", plain, 0, bytes);
    const timing node = time_chain(
        at_, [&](stream_ref s) { s.copy(to.data(), from.data(), half); }, chain);
    print("copy node of as many bytes", node, 0, bytes);
    return node.median;
  }

  void gather(const gather_case& shape) {
    const gather_inputs in(at_, shape);
    const double copied = copy(in.bytes());
    time(shape.name, {{"rows", in.rows}, {"tokens", in.tokens}, {"width", shape.width}, {"page", in.page}},
         shape.bar, in.bytes(), in.params(), get_k_and_s, gather_variants(), in.keys, "copy node", copied);
  }

  void store(std::int64_t tokens) {
    const store_inputs in(at_, tokens);
    time("index-K store", {{"tokens", tokens}, {"page", 64}}, 0, in.bytes(), in.params(), set_k_and_s, {},
         in.cache);
  }

  void top_k(const top_k_case& shape) {
    const top_k_inputs in(at_, shape);
    const timing bare = time_chain(at_, [&](stream_ref s) { top_k_without_table(s, in.params()); });
    print("the same, nothing looked up", bare, 0, in.bytes());
    time(shape.name, {{"tokens", in.tokens}, {"topk", in.topk}, {"width", shape.width}, {"live", shape.live}},
         shape.bar, in.bytes(), in.params(), top_k_to_slots, top_k_variants(), in.slots, "nothing looked up",
         bare.median);
  }

  void combine(const combine_case& shape) {
    const combine_inputs in(at_, shape);
    const double copied = copy(in.bytes());
    time(shape.name, {{"tokens", in.tokens}, {"topk", shape.topk}, {"window", shape.window}}, shape.bar,
         in.bytes(), in.params(), combine_top_k_and_window, combine_variants(), in.indices, "copy node",
         copied);
  }

  /// One live region in a captured width of 4,096 and of 1,048,576.
  void widths() {
    double narrow_gather = 0, narrow_top_k = 0;
    for (const std::int64_t width : {std::int64_t{4096}, std::int64_t{1} << 20}) {
      const gather_inputs in(at_, {"", std::vector<std::int32_t>(8, 1024), width, 0});
      const double us =
          time("index-K gather, one live region in two widths",
               {{"rows", 8}, {"tokens", in.tokens}, {"width", width}}, 0, in.bytes(), in.params(),
               get_k_and_s, {}, in.keys, width == 4096 ? "" : "width 4096", narrow_gather);
      if (width == 4096) narrow_gather = us;
      const top_k_inputs top(at_, {"", std::vector<std::int32_t>(64, 1), 2048, width, 0, true, 4096});
      const double top_us =
          time("top-k to slots, one live region in two widths",
               {{"tokens", 64}, {"topk", 2048}, {"width", width}}, 0, top.bytes(), top.params(),
               top_k_to_slots, {}, top.slots, width == 4096 ? "" : "width 4096", narrow_top_k);
      if (width == 4096) narrow_top_k = top_us;
    }
  }

 private:
  stream_ref at_;
  report& into_;
  bool variants_;
};

/// One row of `first` and `count` - 1 of `others`.
std::vector<std::int32_t> one_and_rest(int count, std::int32_t first, std::int32_t others) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count), others);
  values[static_cast<std::size_t>(count) / 3] = first;
  return values;
}

int run(int argc, char** argv) {
  CLI::App app("Cost of the sparse-attention index kernels");
  std::string json_path, commit = "unknown";
  bool variants = false;
  app.add_option("--json", json_path, "file to write, or - for standard output");
  app.add_option("--commit", commit, "commit that was built");
  app.add_flag("--variants", variants, "also time other launch shapes");
  CLI11_PARSE(app, argc, argv);
  if (device::cuda_count() == 0) {
    std::puts("skipped: there is no CUDA device");
    return 77;
  }
  const stream at(device::cuda());
  report into(at.where(), commit);
  run_of_cases cases(at, into, variants);
  cases.gather({"index-K gather, 64 rows of 8,192", std::vector<std::int32_t>(64, 8192), 131072, 35});
  cases.gather(
      {"index-K gather, one row of 65,536 and 63 of 1,024", one_and_rest(64, 65536, 1024), 131072, 10});
  cases.gather({"index-K gather, 8 rows of 1,024", std::vector<std::int32_t>(8, 1024), 131072, 2.4});
  cases.store(256);
  cases.store(16384);
  for (const std::int64_t live : {4096, 65536}) {
    for (const int topk : {2048, 2051})
      cases.top_k(
          {"top-k to slots, decode", std::vector<std::int32_t>(64, 1), topk, 131072, 1.9, true, live});
    cases.top_k({"top-k to slots, prefill, 64 rows of 4", std::vector<std::int32_t>(64, 4), 2048, 131072, 3.2,
                 false, live});
    cases.top_k({"top-k to slots, prefill, one row of 64 and 63 of 1", one_and_rest(64, 64, 1), 2048, 131072,
                 2.6, false, live});
  }
  cases.combine({"combine top-k and window", 8, 2048, 512, 128, 19});
  cases.combine({"combine top-k and window", 64, 4, 512, 128, 2.0});
  cases.widths();
  if (!json_path.empty()) into.write(json_path);
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
