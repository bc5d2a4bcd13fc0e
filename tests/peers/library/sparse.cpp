#include <map>

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"
#include "kernels/sparse/window_token_ids.hpp"
#include "tests/peers/library/arguments.hpp"

namespace stepgraph::peers {
namespace {

std::int32_t small(const arguments& a, const char* name) {
  return static_cast<std::int32_t>(a.number(name));
}

/// A tensor [pages, bytes of a page].
index_k_cache cache_of(const arguments& a) {
  return {.data = a.pointer<std::uint8_t>("cache"),
          .pages = a.of("cache", "lines"),
          .page_stride = a.of("cache", "stride"),
          .page_shift = a.page_shift()};
}

void call_set(stream_ref at, const arguments& a) {
  set_k_and_s(at, {.live_tokens = a.narrow("live_tokens"),
                   .tokens = static_cast<std::int32_t>(a.of("loc", "columns")),
                   .loc = a.view("loc"),
                   .keys = a.pointer<std::uint8_t>("keys"),
                   .scales = a.pointer<float>("scales"),
                   .cache = cache_of(a)});
}

void call_get(stream_ref at, const arguments& a) {
  get_k_and_s(at, {.lengths = a.lengths(),
                   .page_table = a.narrow("page_table"),
                   .page_table_stride = a.of("page_table", "stride"),
                   .page_columns = a.of("page_table", "columns"),
                   .cache = cache_of(a),
                   .cu_seqlens_k = a.sink("cu_seqlens_k"),
                   .keys = a.pointer<std::uint8_t>("keys"),
                   .scales = a.pointer<std::uint32_t>("scales"),
                   .capacity = a.of("keys", "lines")});
}

void call_top_k(stream_ref at, const arguments& a) {
  top_k_to_slots(at, {.live_tokens = a.narrow("live_tokens"),
                      .tokens = static_cast<std::int32_t>(a.of("indices", "lines")),
                      .row_of = a.narrow("row_of"),
                      .indices = a.view("indices"),
                      .index_stride = a.of("indices", "stride"),
                      .index_columns = a.of("indices", "columns"),
                      .topk = small(a, "topk"),
                      .table = a.narrow("table"),
                      .table_stride = a.of("table", "stride"),
                      .table_lines = static_cast<std::int32_t>(a.of("table", "lines")),
                      .table_columns = a.of("table", "columns"),
                      .slots = a.table("slots"),
                      .count = a.narrow("count"),
                      .last_plus_one = a.narrow("last_plus_one")});
}

void call_combine(stream_ref at, const arguments& a) {
  combine_top_k_and_window(at, {.lengths = a.lengths(),
                                .query_start_loc = a.narrow("query_start_loc"),
                                .tokens = static_cast<std::int32_t>(a.of("length", "columns")),
                                .topk_indices = a.view("topk_indices"),
                                .topk_stride = a.of("topk_indices", "stride"),
                                .topk_columns = a.of("topk_indices", "columns"),
                                .topk = small(a, "topk"),
                                .window = small(a, "window"),
                                .ratio = small(a, "ratio"),
                                .gather_len = a.narrow("gather_len"),
                                .compressed_base = a.narrow("compressed_base"),
                                .swa_base = a.narrow("swa_base"),
                                .indices = a.table("indices"),
                                .length = a.narrow("length")});
}

void call_window_ids(stream_ref at, const arguments& a) {
  window_token_ids(at, {.lengths = a.lengths(),
                        .requests = a.view("requests"),
                        .source = a.source(),
                        .query = a.query(),
                        .window = small(a, "window"),
                        .full_to_swa = a.map("full_to_swa"),
                        .gather_len = a.narrow("gather_len"),
                        .offsets = a.sink("offsets"),
                        .ids = a.sink("ids"),
                        .capacity = a.of("ids", "columns")});
}

}  // namespace

bool call_sparse(const std::string& op, stream_ref at, const arguments& a) {
  static const std::map<std::string, void (*)(stream_ref, const arguments&)> ops = {
      {"set_k_and_s", call_set},
      {"get_k_and_s", call_get},
      {"top_k_to_slots", call_top_k},
      {"combine_top_k_and_window", call_combine},
      {"window_token_ids", call_window_ids},
  };
  const auto found = ops.find(op);
  if (found == ops.end()) return false;
  found->second(at, a);
  return true;
}

}  // namespace stepgraph::peers
