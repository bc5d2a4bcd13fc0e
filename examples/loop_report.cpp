#include "examples/loop_report.hpp"

#include <algorithm>
#include <cstdio>

namespace stepgraph {
namespace {

using count_type = unsigned long long;

void report_rounds(const char* by, const std::vector<std::uint64_t>& counts) {
  std::fprintf(stderr, "rounds by drafts %s:", by);
  for (std::size_t length = 0; length < counts.size(); ++length)
    if (counts[length] > 0)
      std::fprintf(stderr, "  %zu: %llu", length, static_cast<count_type>(counts[length]));
  std::fprintf(stderr, "\n");
}

void report_drafts(const speculation_statistics& did) {
  if (did.by_draft_length.size() <= 1) return;  // a run without drafts
  if (did.drafted == 0) {
    std::fprintf(stderr, "no drafts: the text held nothing to look up, or they did not pay\n");
    return;
  }
  std::fprintf(stderr, "%llu of %llu drafts kept; %.2f tokens a round and row, the target's own included\n",
               static_cast<count_type>(did.accepted), static_cast<count_type>(did.drafted),
               double(did.row_rounds + did.accepted) / double(did.row_rounds));
  std::fprintf(stderr, "drafts kept a round:");
  std::uint64_t all = 0;
  for (const std::uint64_t count : did.by_accepted) all += count;
  for (std::size_t kept = 0; kept < did.by_accepted.size(); ++kept)
    std::fprintf(stderr, "  %zu: %llu (%.0f %%)", kept, static_cast<count_type>(did.by_accepted[kept]),
                 all > 0 ? 100.0 * double(did.by_accepted[kept]) / double(all) : 0.0);
  std::fprintf(stderr, "\n");
  report_rounds("asked for", did.by_draft_length);
  if (did.by_proposed != did.by_draft_length) report_rounds("there were at most", did.by_proposed);
}

void report_times(const step_times& times) {
  bool any = false;
  for (int kind = 0; kind < step_times::kinds; ++kind) {
    const time_statistics& time = times.by_kind[kind];
    if (time.count == 0) continue;
    std::fprintf(stderr, "%s%s %.1f us x %llu",
                 any ? ", " : "time on the device: ", to_string(static_cast<step_kind>(kind)), time.mean(),
                 static_cast<count_type>(time.count));
    any = true;
  }
  if (!any) return;
  const auto gap = [](const char* name, const gap_statistics& gaps) {
    if (gaps.count > 0)
      std::fprintf(stderr,
                   "\ngaps %s %.1f us, most %.1f, %llu of %llu over 5 us, %llu of them with the host late",
                   name, gaps.mean(), gaps.largest, static_cast<count_type>(gaps.over_5us),
                   static_cast<count_type>(gaps.count), static_cast<count_type>(gaps.host_late_over_5us));
  };
  gap("within rounds", times.between_steps);
  gap("between rounds", times.between_rounds);
  std::fprintf(stderr, "\n");
}

}  // namespace

void report_captures(const step_executor& executor, double seconds) {
  const auto captures = executor.captures();
  std::size_t nodes = 0, bytes = 0;
  for (const capture_report& each : captures) {
    nodes += each.nodes;
    bytes += each.device_bytes;
  }
  std::fprintf(stderr, "captured %zu steps, %zu nodes in all, in %.2f s", captures.size(), nodes, seconds);
  if (bytes > 0) std::fprintf(stderr, ", %.1f MB taken by the driver", double(bytes) / 1e6);
  std::fprintf(stderr, "\n\n");
}

void report_run(const step_executor& executor, const speculation_statistics& did, const loop_run& run) {
  std::fprintf(stderr, "\n%llu prompt tokens in %.2f s; %zu tokens in %.2f s, %.1f tokens/s\n",
               static_cast<count_type>(did.prompt_tokens), run.first_token, run.after_first,
               run.seconds - run.first_token, run.tokens_a_second());
  report_drafts(did);
  const bucket_statistics total = executor.statistics().total();
  if (total.replays == 0) {
    std::fprintf(stderr, "%llu eager rounds, no replays\n",
                 static_cast<count_type>(executor.statistics().eager_steps));
    report_times(executor.statistics().times);
    return;
  }
  report_times(executor.statistics().times);
  std::size_t nodes = 0;
  for (const capture_report& each : executor.captures())
    if (each.key.kind == step_kind::decode) nodes = each.nodes;
  std::fprintf(stderr, "%zu captures, %llu replays, %zu nodes a decode step\n", executor.captures().size(),
               static_cast<count_type>(total.replays), nodes);
  std::fprintf(stderr,
               "pages: %llu live of %llu captured, %.1f %% of what capture at full width would touch\n",
               static_cast<count_type>(total.live_pages), static_cast<count_type>(total.captured_pages),
               100.0 * double(total.live_pages) / double(total.captured_pages));
}

void report_faults(step_executor& executor, bool overruns) {
  if (const auto fault = executor.fault())
    std::fprintf(stderr, "first fault: %s in %s, row %d, value %lld\n",
                 to_string(static_cast<row_status>(fault->status)), to_string(static_cast<op_id>(fault->op)),
                 fault->row, static_cast<long long>(fault->value));
  if (!overruns) return;
  if (const auto buffer = executor.overrun())
    std::fprintf(stderr, "written past the end of: %s\n", buffer->c_str());
}

void report_comparison(const loop_run& with, const loop_run& without,
                       const std::vector<std::optional<std::size_t>>& parts, bool sampled) {
  const auto apart = std::ranges::count_if(parts, [](const auto& at) { return at.has_value(); });
  std::fprintf(stderr, "without drafts: %.1f tokens/s; with them %.2f times as many%s\n",
               without.tokens_a_second(),
               without.tokens_a_second() > 0 ? with.tokens_a_second() / without.tokens_a_second() : 0.0,
               apart == 0 ? ", and the same text" : "");
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i])
      std::fprintf(stderr, "prompt %zu: another text from its token %zu on (%s)\n", i + 1, *parts[i] + 1,
                   sampled ? "drawn with other coins, from the same distribution"
                           : "two logits within rounding of each other, else docs/debugging.md helps");
}

}  // namespace stepgraph
