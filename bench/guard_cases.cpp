#include "bench/guard_cases.hpp"

#include <cstdio>
#include <memory>

#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"

namespace stepgraph::bench {

const std::vector<decode_shape>& decode_shapes() {
  static const std::vector<decode_shape> shapes = {
      {0, 1048576, 1, 4096, 1.5},   {0, 1048576, 64, 4096, 1.75}, {0, 1048576, 64, 20000, 4.0},
      {0, 1048576, 64, 65536, 8.6}, {0, 262144, 256, 4096, 2.7},  {6, 1048576, 1, 4096, 1.35},
      {6, 1048576, 64, 4096, 1.5},  {6, 1048576, 64, 65536, 2.2}, {6, 262144, 256, 65536, 4.4},
  };
  return shapes;
}

std::vector<std::int32_t> random_slots(int requests, std::int64_t width, int page_shift) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::int32_t> slots(requests * width);
  const std::int64_t page = std::int64_t{1} << page_shift;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(slots.size()); i += page) {
    const auto first = static_cast<std::int32_t>((random() & 0xfffff) << page_shift);
    for (std::int64_t x = 0; x < page && i + x < static_cast<std::int64_t>(slots.size()); ++x)
      slots[i + x] = first + static_cast<std::int32_t>(x);
  }
  return slots;
}

void print_timing(const std::string& name, const timing& t, double bar) {
  std::printf("    %-44s %8.3f us  (%.3f to %.3f)%s\n", name.c_str(), t.median, t.minimum, t.maximum,
              bar == 0 || t.median <= bar ? "" : " <-- over its bar");
}

double copy_us(stream_ref at, std::int64_t bytes) {
  static const double us_a_byte = [at] {
    constexpr std::int64_t size = std::int64_t{1} << 30;
    const buffer from(device_memory(at.where()), size), to(device_memory(at.where()), size);
    at.fill(from.data(), 1, size);
    const timing t =
        time_chain(at, [&](stream_ref s) { plain_copy(s, to.data(), from.data(), size); }, {.replays = 2});
    return t.median / (2 * size);
  }();
  return us_a_byte * bytes;
}

void print_bytes(const timing& t, std::int64_t bytes, stream_ref at) {
  if (bytes > 0)
    std::printf("    %-44s %8.2f times the bytes at the bandwidth of a copy\n", "",
                t.median / copy_us(at, bytes));
}

namespace {

/// Times stepgraph's own op beside the four policies, `by(policy, stream)`, and reports all five.
template <class Own, class By>
void measure(stream_ref at, report& into, const std::string& name, nlohmann::json parameters, double bar,
             std::int64_t bytes, const Own& own, const By& by) {
  parameters["bar_us"] = bar;
  std::printf("%s (at most %.2f us)\n", name.c_str(), bar);
  const policy_times others = time_policies(at, into, name, parameters, bytes, by);
  const timing t = time_chain(at, own);
  print_timing("stepgraph", t, bar);
  print_bytes(t, bytes, at);
  into.add(name + ", stepgraph", parameters, t, bytes, others.best, others.best_us);
}

constexpr int query_tokens_a_row = 4;

/// What DSA metadata writes for 64 rows of 4 tokens, page 64, width 131,072, 65,536 live.
struct dsa_inputs {
  explicit dsa_inputs(stream_ref at)
      : decode(at, {6, 131072, 64, 65536, 0}),
        counts(at, std::vector<std::int32_t>(64, query_tokens_a_row)),
        cu_q(at, 65),
        row_of(at, tokens),
        expanded(at, tokens),
        lens(at, tokens),
        cu(at, tokens + 1),
        pages(at, tokens * 2048),
        slots(at, std::int64_t{tokens} * 131072) {}

  dsa_metadata_params params(bool page_lines_a_token, bool token_table) const {
    dsa_metadata_params p{.lengths = decode.lengths(),
                          .requests = decode.requests.data(),
                          .source = decode.pages(),
                          .query = {counts.data(), false, query_tokens_a_row, tokens},
                          .topk = 2048,
                          .line_per_token = page_lines_a_token,
                          .cache_seqlens = decode.cache_seqlens.data(),
                          .cu_seqlens_k = decode.cu_seqlens_k.data(),
                          .cu_seqlens_q = cu_q.data(),
                          .row_of = row_of.data(),
                          .expanded = expanded.data(),
                          .dsa_cache_seqlens = lens.data(),
                          .dsa_cu_seqlens_k = cu.data()};
    p.real_page_table = {.data = pages.data(), .stride = 2048, .columns = 2048};
    if (token_table) p.page_table_1 = {.data = slots.data(), .stride = 131072, .columns = 131072};
    return p;
  }

  static constexpr int tokens = 64 * query_tokens_a_row;
  decode_inputs decode;
  device_array<std::int32_t> counts, cu_q, row_of, expanded, lens, cu, pages, slots;
};

void run_dsa(stream_ref at, report& into) {
  const dsa_inputs in(at);
  const struct {
    const char* name;
    bool line_per_token, token_table;
    double bar;
  } cases[] = {{"DSA verify, compact, a line a token", true, false, 4.8},
               {"DSA verify, compact, row_of", false, false, 4.8},
               {"DSA verify, wide, a line a token", true, true, 24},
               {"DSA verify, wide, row_of", false, true, 9.5}};
  const auto run = [&](const char* name, const dsa_metadata_params& params, double bar, std::int64_t bytes) {
    measure(
        at, into, name,
        {{"page", 64}, {"width", 131072}, {"batch", 64}, {"tokens", in.tokens}, {"live", 65536}}, bar, bytes,
        [&](stream_ref s) { dsa_metadata(s, params); },
        [&](guard_policy policy, stream_ref s) { dsa_by(policy, s, params); });
  };
  for (const auto& c : cases) {
    const std::int64_t lines = c.line_per_token ? in.tokens : 64;
    run(c.name, in.params(c.line_per_token, c.token_table), c.bar,
        lines * 4096 + 64 * 1024 * 32 + (c.token_table ? (lines + 64) * 65536 * 4 : 0));
  }
  // the same kernel with E of 1 to 4 accepted tokens
  std::vector<std::int32_t> ragged;
  for (int r = 0; r < 64; ++r) ragged.push_back(1 + r % query_tokens_a_row);
  at.copy(in.counts.data(), ragged.data(), ragged.size() * sizeof(std::int32_t));
  at.synchronize();
  run("DSA draft-extend, ragged, compact", in.params(true, false), 5, 160 * 4096 + 64 * 1024 * 32);
}

/// C4 and C128 in one node: page 256, 4,096 page columns, 64 tokens of 1,000 to 4,096.
void run_compressed(stream_ref at, report& into) {
  constexpr int tokens = 64;
  constexpr std::int64_t columns = 4096;
  std::mt19937 random(std::random_device{}());
  std::vector<std::int32_t> causal, slots, table(tokens * columns);
  for (int t = 0; t < tokens; ++t) {
    causal.push_back(static_cast<std::int32_t>(1000 + random() % 3097));
    slots.push_back(static_cast<std::int32_t>(random() & 0xffffff));
  }
  for (auto& page : table) page = static_cast<std::int32_t>(random() & 0xffff);
  const device_array<std::int32_t> live(at, std::vector<std::int32_t>{tokens}), c(at, causal), loc(at, slots),
      pages(at, table);
  compressed_metadata_params p{.live_tokens = live.data(),
                               .tokens = tokens,
                               .causal_length = c.data(),
                               .out_loc = loc.data(),
                               .out_locs = tokens,
                               .page_table = pages.data(),
                               .page_table_stride = columns,
                               .page_columns = columns,
                               .page_lines = tokens,
                               .page_shift = 8,
                               .levels = 2};
  std::vector<std::unique_ptr<device_array<std::int32_t>>> outputs;
  const auto vector = [&](std::int64_t size) {
    outputs.push_back(std::make_unique<device_array<std::int32_t>>(at, size));
    return outputs.back()->data();
  };
  for (const int i : {0, 1}) {
    p.level[i] = {.ratio_shift = i == 0 ? 2 : 7,
                  .out_loc = vector(tokens),
                  .positions = vector(tokens),
                  .length = vector(tokens),
                  .length_clamped = vector(tokens)};
    const std::int64_t capacity = columns << (8 - p.level[i].ratio_shift);
    p.level[i].page_indices = {.data = vector(tokens * capacity), .stride = capacity, .columns = capacity};
  }
  const auto run = [&](const char* name) {
    measure(
        at, into, name, {{"page", 256}, {"width", 1048576}, {"batch", tokens}}, 2.2, 0,
        [&](stream_ref s) { compressed_metadata(s, p); },
        [&](guard_policy policy, stream_ref s) { compressed_by(policy, s, p); });
  };
  run("C4 and C128, indices of both");
  p.level[0].page_indices = {};
  run("C4 and C128, indices of C128");
}

void run_draft_steps(stream_ref at, report& into) {
  const decode_inputs in(at, {6, 1048576, 64, 4096, 0});
  const device_array<std::int32_t> counts(at, std::vector<std::int32_t>(64, 1)), lens(at, 4 * 64),
      cu(at, 4 * 65), position(at, 4 * 64);
  const device_array<std::int64_t> loc(at, 4 * 64);
  draft_steps_metadata_params p{.decode = in.params(),
                                .steps = 4,
                                .query = {counts.data(), false, 1, 64},
                                .cache_seqlens = lens.data(),
                                .cu_seqlens_k = cu.data(),
                                .out_cache_loc = loc.data(),
                                .position = position.data()};
  measure(
      at, into, "all four draft steps", {{"page", 64}, {"width", 1048576}, {"batch", 64}, {"live", 4096}},
      2.6, 0, [&](stream_ref s) { draft_steps_metadata(s, p); },
      [&](guard_policy policy, stream_ref s) { draft_steps_by(policy, s, p); });
}

}  // namespace

void run_other_ops(stream_ref at, report& into) {
  run_dsa(at, into);
  run_compressed(at, into);
  run_draft_steps(at, into);
}

}  // namespace stepgraph::bench
