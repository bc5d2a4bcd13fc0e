#include "bench/replay/replay_case.hpp"

#include <algorithm>

#include "graphs/error.hpp"
#include "kernels/sparse/index_k_cache.hpp"

namespace stepgraph::bench {
namespace {

/// Enough that no second-level cache holds it.
constexpr std::int64_t beyond_cache = std::int64_t{2} << 30;

std::int64_t kv_token_bytes(const model_shape& shape, bool on_host) {
  const auto& c = shape.config;
  if (shape.is_sparse()) return std::int64_t{2} * c.layers * c.head_size;
  return std::int64_t{on_host ? 8 : 4} * c.layers * c.kv_heads * c.head_size;
}

}  // namespace

const char* to_string(replay_step step) noexcept {
  switch (step) {
    case replay_step::decode:
      return "decode";
    case replay_step::target_verify:
      return "target-verify";
    case replay_step::draft_extend:
      return "draft-extend";
    case replay_step::round:
      return "round";
  }
  return "unknown";
}

const std::vector<replay_policy>& replay_policies() {
  static const std::vector<replay_policy> all = {{"live", std::nullopt},
                                                 {"early-exit", guard_policy::early_exit},
                                                 {"full-width", guard_policy::full_width},
                                                 {"bounded-grid", guard_policy::bounded_grid},
                                                 {"block-a-row", guard_policy::block_a_row}};
  return all;
}

std::string replay_case::name() const {
  std::string text = message(model.name, '/', to_string(step), '/', policy.name, "/batch:", batch,
                             "/live:", live, "/width:", width);
  if (step != replay_step::decode) text += message("/drafts:", drafts);
  if (step == replay_step::round || step == replay_step::target_verify)
    text += message("/accept:", accept.text, ragged ? "/ragged" : "/even");
  std::ranges::replace(text, ' ', '-');
  return text;
}

std::int64_t replay_case::row_tokens() const {
  return std::min(width, live + std::int64_t{most_launches} * max_query_count());
}

std::int64_t replay_case::pool_pages() const {
  const std::int64_t own = batch * ((row_tokens() + page_size - 1) / page_size);
  if (policy.other != guard_policy::full_width) return own + 1;
  const std::int64_t all = batch * (width / page_size),
                     far = beyond_cache / (kv_token_bytes(model, false) * page_size);
  return std::max(own, std::min(all, far)) + 1;
}

std::int64_t bytes_needed(const replay_case& each, bool on_host) {
  const model_shape& shape = each.model;
  const std::int64_t columns = each.width / each.page_size, tokens = each.batch * each.max_query_count();
  std::int64_t bytes = model_bytes(shape, each.width, on_host);
  bytes += each.pool_pages() * each.page_size * kv_token_bytes(shape, on_host);
  bytes += 2 * each.batch * columns * 4;
  // activations and logits in float32, each named once
  bytes +=
      tokens * 4 *
      (std::int64_t{shape.config.vocab_size} + 8l * shape.config.hidden_size + 3l * shape.config.ffn_size);
  if (shape.is_sparse()) {
    constexpr std::int64_t line = index_k_cache::key_bytes + index_k_cache::scale_bytes;
    bytes += each.batch * each.width * 4 + tokens * shape.sparse_topk * 8;
    bytes +=
        (shape.config.layers * each.pool_pages() * each.page_size + each.batch * each.row_tokens()) * line;
  }
  if (each.step == replay_step::round || each.step == replay_step::draft_extend) {
    const model_shape draft = draft_of(shape);
    bytes += model_bytes(draft, each.width, on_host);
    bytes += each.pool_pages() * each.page_size * kv_token_bytes(draft, on_host);
  }
  return bytes;
}

void check(const replay_case& c) {
  STEPGRAPH_EXPECTS(c.batch > 0, "--batch: must be positive, got ", c.batch);
  STEPGRAPH_EXPECTS(c.live > 0, "--live: must be positive, got ", c.live);
  STEPGRAPH_EXPECTS(c.width > 0 && c.width <= (1 << 30), "--width: must be in [1, 2^30], got ", c.width);
  STEPGRAPH_EXPECTS(c.page_size > 0 && c.width % c.page_size == 0, "--width: ", c.width,
                    " is no multiple of --page ", c.page_size);
  STEPGRAPH_EXPECTS(c.live >= c.max_query_count(), "--live: ", c.live, " tokens hold no step of ",
                    c.max_query_count());
  // room for a row to grow while it is measured
  const std::int64_t room = std::int64_t{2} * c.max_query_count();
  STEPGRAPH_EXPECTS(c.live + room <= c.width, "--live: ", c.live, " tokens do not fit --width ", c.width,
                    ", of which ", room, " must be left to grow");
  STEPGRAPH_EXPECTS(c.step == replay_step::decode || (c.drafts > 0 && c.drafts < 64),
                    "--drafts: must be in [1, 63], got ", c.drafts);
  STEPGRAPH_EXPECTS(
      !c.model.is_sparse() || c.step == replay_step::decode || c.step == replay_step::target_verify,
      "--step: the ", c.model.name, " stand-in has decode and target-verify steps alone");
  STEPGRAPH_EXPECTS(!c.policy.other || c.step == replay_step::decode || c.step == replay_step::target_verify,
                    "--policy: a ", to_string(c.step), " runs the live policy alone, not ", c.policy.name);
}

}  // namespace stepgraph::bench
