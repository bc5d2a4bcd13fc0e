#include "bench/attention_kernels.hpp"
#include "kernels/attention/paged_attention.hpp"
#include "tests/peers/library/arguments.hpp"

namespace stepgraph::peers {
namespace {

paged_attention_params attention_params(const arguments& a) {
  const auto small = [&a](const char* name) { return static_cast<std::int32_t>(a.number(name)); };
  const std::string type = a.text("type");
  STEPGRAPH_EXPECTS(type == "float16" || type == "bfloat16", "type must be float16 or bfloat16, got ", type);
  return {.type = type == "float16" ? element_type::f16 : element_type::bf16,
          .query = a.pointer<void>("query"),
          .output = a.pointer<void>("output"),
          .cache = {.keys = a.pointer<void>("keys"),
                    .values = a.pointer<void>("values"),
                    .page_stride = a.number("page_stride"),
                    .token_stride = a.number("token_stride"),
                    .head_stride = a.number("head_stride"),
                    .pages = a.number("pages")},
          .page_table = a.narrow("page_table"),
          .page_table_stride = a.of("page_table", "stride"),
          .page_columns = a.of("page_table", "columns"),
          .row_of = a.narrow("row_of"),
          .causal_length = a.narrow("causal_length"),
          .tokens = static_cast<std::int32_t>(a.of("row_of", "columns")),
          .rows = static_cast<std::int32_t>(a.of("page_table", "lines")),
          .heads = small("heads"),
          .kv_heads = small("kv_heads"),
          .head_size = small("head_size"),
          .page_shift = a.page_shift(),
          .scale = a.real("scale", 1),
          .cu_seqlens_q = a.narrow("cu_seqlens_q"),
          .cache_seqlens = a.narrow("cache_seqlens"),
          .tree_mask = a.pointer<std::uint64_t>("tree_mask"),
          .workspace = a.pointer<void>("workspace"),
          .workspace_bytes = static_cast<std::size_t>(a.of("workspace", "columns"))};
}

}  // namespace

bool call_attention(const std::string& op, stream_ref at, const arguments& a) {
#if STEPGRAPH_CUDA
  if (op == "read_plainly") {
    bench::read_plainly(at, a.pointer<void>("keys"), a.pointer<void>("values"), 2 * a.of("keys", "columns"),
                        a.pointer<std::uint32_t>("sink"));
    return true;
  }
#endif
  if (op != "paged_attention") return false;
  paged_attention(at, attention_params(a));
  return true;
}

std::int64_t attention_workspace_bytes(device where, const arguments& a) {
  return static_cast<std::int64_t>(paged_attention_workspace_bytes(where, attention_params(a)));
}

}  // namespace stepgraph::peers
