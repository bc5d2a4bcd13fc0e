#include <map>

#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"
#include "kernels/metadata/kv_indices.hpp"
#include "kernels/metadata/kv_split_plan.hpp"
#include "kernels/metadata/spec_page_table.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "tests/peers/library/arguments.hpp"

namespace stepgraph::peers {
namespace {

std::int32_t small(const arguments& a, const char* name, std::int32_t otherwise = 0) {
  return static_cast<std::int32_t>(a.number(name, otherwise));
}

decode_metadata_params decode_params(const arguments& a) {
  return {.lengths = a.lengths(),
          .requests = a.view("requests"),
          .source = a.source(),
          .page_map = a.map("page_map"),
          .skip = small(a, "skip", -1),
          .cache_seqlens = a.narrow("cache_seqlens"),
          .cu_seqlens_k = a.sink("cu_seqlens_k"),
          .page_table = a.narrow("page_table"),
          .page_table_stride = a.of("page_table", "stride"),
          .page_columns = a.of("page_table", "columns"),
          .window = {.full_to_swa = a.map("full_to_swa"),
                     .page_map = a.map("swa_page_map"),
                     .page_table = a.narrow("swa_page_table"),
                     .page_table_stride = a.of("swa_page_table", "stride"),
                     .skip = small(a, "swa_skip", -1),
                     .out_cache_loc = a.sink("swa_out_cache_loc"),
                     .out_cache_loc_skip = small(a, "swa_out_skip", -1)},
          .cu_seqlens_q_mode = static_cast<query_mode>(a.number("query_mode")),
          .query = a.query(),
          .q_stride = small(a, "q_stride"),
          .cu_seqlens_q = a.narrow("cu_seqlens_q")};
}

void call_draft_steps(stream_ref at, const arguments& a) {
  draft_steps_metadata(at, {.decode = decode_params(a),
                            .steps = small(a, "steps"),
                            .query = a.query(),
                            .cache_seqlens = a.narrow("steps_cache_seqlens"),
                            .cu_seqlens_k = a.sink("steps_cu_seqlens_k"),
                            .out_cache_loc = a.sink("out_cache_loc"),
                            .position = a.narrow("position")});
}

void call_dsa(stream_ref at, const arguments& a) {
  dsa_metadata(at, {.lengths = a.lengths(),
                    .requests = a.view("requests"),
                    .source = a.source(),
                    .query = a.query(),
                    .topk = small(a, "topk"),
                    .kpool = small(a, "kpool", 1),
                    .line_per_token = a.number("line_per_token") != 0,
                    .cache_seqlens = a.narrow("cache_seqlens"),
                    .cu_seqlens_k = a.sink("cu_seqlens_k"),
                    .cu_seqlens_q = a.narrow("cu_seqlens_q"),
                    .row_of = a.narrow("row_of"),
                    .expanded = a.narrow("expanded"),
                    .dsa_cache_seqlens = a.narrow("dsa_cache_seqlens"),
                    .dsa_cu_seqlens_k = a.sink("dsa_cu_seqlens_k"),
                    .paged_mqa_ctx_lens = a.narrow("paged_mqa_ctx_lens"),
                    .mqa_tokens = static_cast<std::int32_t>(a.of("paged_mqa_ctx_lens", "columns")),
                    .page_table_1 = a.table("page_table_1"),
                    .real_page_table = a.table("real_page_table")});
}

void call_compressed(stream_ref at, const arguments& a) {
  compressed_metadata_params p{.live_tokens = a.narrow("live_tokens"),
                               .tokens = static_cast<std::int32_t>(a.of("causal_length", "columns")),
                               .causal_length = a.narrow("causal_length"),
                               .out_loc = a.view("out_loc"),
                               .out_locs = static_cast<std::int32_t>(a.of("out_loc", "columns")),
                               .page_table = a.narrow("page_table"),
                               .page_table_stride = a.of("page_table", "stride"),
                               .page_columns = a.of("page_table", "columns"),
                               .page_lines = static_cast<std::int32_t>(a.of("page_table", "lines")),
                               .page_shift = a.page_shift(),
                               .levels = small(a, "levels")};
  for (int i = 0; i < p.levels && i < compressed_metadata_params::max_levels; ++i) {
    const auto name = [i](const char* what) { return what + std::to_string(i); };
    p.level[i] = {.ratio_shift = small(a, name("ratio_shift").c_str()),
                  .out_loc = a.sink(name("level_out_loc").c_str()),
                  .out_loc_skip = small(a, name("out_loc_skip").c_str(), -1),
                  .positions = a.narrow(name("positions").c_str()),
                  .length = a.narrow(name("length").c_str()),
                  .length_clamped = a.narrow(name("length_clamped").c_str()),
                  .page_indices = a.table(name("page_indices").c_str())};
  }
  compressed_metadata(at, p);
}

page_table_view table_view(const arguments& a, const char* table, const char* lengths) {
  return {a.narrow(table), a.of(table, "stride"), static_cast<std::int32_t>(a.of(table, "lines")),
          a.of(table, "columns"), a.narrow(lengths)};
}

void call_spec_page_table(stream_ref at, const arguments& a) {
  spec_page_table(at, {.live_tokens = a.narrow("live_tokens"),
                       .tokens = static_cast<std::int32_t>(a.of("row_of", "columns")),
                       .row_of = a.narrow("row_of"),
                       .by_row = table_view(a, "table_a", "length_a"),
                       .by_token = table_view(a, "table_b", "length_b"),
                       .table = a.table("table"),
                       .total = a.narrow("total")});
}

void call_kv_indices(stream_ref at, const arguments& a) {
  kv_indices(at, {.lengths = a.lengths(),
                  .requests = a.view("requests"),
                  .source = a.source(),
                  .slot_map = a.map("slot_map"),
                  .start = a.narrow("start"),
                  .skip = small(a, "skip", -1),
                  .indptr = a.sink("indptr"),
                  .indices = a.sink("indices"),
                  .capacity = a.of("indices", "columns")});
}

void call_unified_kv_indices(stream_ref at, const arguments& a) {
  unified_kv_indices(at, {.lengths = a.lengths(),
                          .query = a.query(),
                          .prefix_indptr = a.view("prefix_indptr"),
                          .prefix_indices = a.narrow("prefix_indices"),
                          .prefix_count = a.of("prefix_indices", "columns"),
                          .extend_indices = a.narrow("extend_indices"),
                          .extend_count = a.of("extend_indices", "columns"),
                          .extend_start = a.narrow("extend_start"),
                          .indptr = a.sink("indptr"),
                          .indices = a.sink("indices"),
                          .capacity = a.of("indices", "columns")});
}

void call_kv_split_plan(stream_ref at, const arguments& a) {
  static_assert(sizeof(kv_split_chunk) == 4 * sizeof(std::int32_t));
  kv_split_plan(at, {.lengths = a.lengths(),
                     .tile = small(a, "tile"),
                     .max_splits = small(a, "max_splits"),
                     .workers = small(a, "workers"),
                     .capacity = static_cast<std::int32_t>(a.of("chunks", "lines")),
                     .chunks = a.pointer<kv_split_chunk>("chunks"),
                     .cu_chunks = a.narrow("cu_chunks")});
}

void call_token_inputs(stream_ref at, const arguments& a) {
  const query_tokens query = a.query();
  token_inputs(at, {.lengths = a.lengths(),
                    .query_counts = query.counts,
                    .max_query_count = query.max_count,
                    .tokens = query.tokens,
                    .requests = a.view("requests"),
                    .source = a.source(),
                    .cu_seqlens_q = a.narrow("cu_seqlens_q"),
                    .row_of = a.narrow("row_of"),
                    .position = a.narrow("position"),
                    .out_cache_loc = a.sink("out_cache_loc")});
}

}  // namespace

bool call_metadata(const std::string& op, stream_ref at, const arguments& a) {
  static const std::map<std::string, void (*)(stream_ref, const arguments&)> ops = {
      {"decode_metadata", [](stream_ref s, const arguments& b) { decode_metadata(s, decode_params(b)); }},
      {"draft_extend_metadata",
       [](stream_ref s, const arguments& b) { draft_extend_metadata(s, decode_params(b)); }},
      {"draft_steps_metadata", call_draft_steps},
      {"dsa_metadata", call_dsa},
      {"compressed_metadata", call_compressed},
      {"spec_page_table", call_spec_page_table},
      {"kv_indices", call_kv_indices},
      {"unified_kv_indices", call_unified_kv_indices},
      {"kv_split_plan", call_kv_split_plan},
      {"token_inputs", call_token_inputs},
  };
  const auto found = ops.find(op);
  if (found == ops.end()) return false;
  found->second(at, a);
  return true;
}

}  // namespace stepgraph::peers
