#pragma once

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "graphs/error.hpp"
#include "graphs/stream.hpp"
#include "kernels/columns.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"

namespace stepgraph::peers {

/// The arguments of one call, by name. A number is a JSON number; a tensor is
/// {"data": address, "wide": int64 or not, "stride": entries between lines, "lines", "columns"}; what is
/// absent is null or its default.
class arguments {
 public:
  explicit arguments(const char* text) : all_(nlohmann::json::parse(text)) {}

  bool has(const char* name) const { return all_.contains(name); }

  std::int64_t number(const char* name, std::int64_t otherwise = 0) const {
    return has(name) ? all_.at(name).get<std::int64_t>() : otherwise;
  }
  float real(const char* name, float otherwise = 0) const {
    return has(name) ? all_.at(name).get<float>() : otherwise;
  }
  std::string text(const char* name) const { return all_.at(name).get<std::string>(); }

  /// A number of a tensor's: "stride", "lines" or "columns"; 0 where there is none.
  std::int64_t of(const char* name, const char* what) const {
    return has(name) ? all_.at(name).at(what).get<std::int64_t>() : 0;
  }

  template <class T>
  T* pointer(const char* name) const {
    return std::bit_cast<T*>(static_cast<std::uintptr_t>(of(name, "data")));
  }
  /// int32 alone: an int64 tensor would be misread.
  std::int32_t* narrow(const char* name) const {
    STEPGRAPH_EXPECTS(!has(name) || !wide(name), name, " must be int32");
    return pointer<std::int32_t>(name);
  }
  index_view view(const char* name) const {
    if (!has(name)) return {};
    return wide(name) ? index_view(pointer<std::int64_t>(name)) : index_view(pointer<std::int32_t>(name));
  }
  index_sink sink(const char* name) const {
    if (!has(name)) return {};
    return wide(name) ? index_sink(pointer<std::int64_t>(name)) : index_sink(pointer<std::int32_t>(name));
  }
  index_map map(const char* name) const { return {view(name), of(name, "columns")}; }
  table_sink table(const char* name, std::int32_t skip = -1) const {
    return {narrow(name), of(name, "stride"), of(name, "columns"), skip};
  }

  /// Rows are as many as `seq_lens` has.
  row_lengths lengths() const {
    return {.live_rows = narrow("live_rows"),
            .rows = static_cast<std::int32_t>(of("seq_lens", "columns")),
            .seq_lens = view("seq_lens"),
            .delta = static_cast<std::int32_t>(number("delta")),
            .delta_by_row = narrow("delta_by_row"),
            .cap = number("cap")};
  }
  std::int32_t page_shift() const {
    return std::countr_zero(static_cast<std::uint32_t>(number("page_size", 1)));
  }
  page_source source() const {
    return {.table = narrow("req_to_token"),
            .row_stride = of("req_to_token", "stride"),
            .requests = static_cast<std::int32_t>(of("req_to_token", "lines")),
            .columns = of("req_to_token", "columns"),
            .page_shift = page_shift(),
            .page_granular = number("page_granular") != 0,
            .pool_pages = number("pool_pages")};
  }
  query_tokens query() const {
    return {.counts = narrow("query_counts"),
            .uniform = number("uniform") != 0,
            .max_count = static_cast<std::int32_t>(number("max_count")),
            .tokens = static_cast<std::int32_t>(number("tokens"))};
  }

 private:
  bool wide(const char* name) const { return all_.at(name).at("wide").get<bool>(); }
  nlohmann::json all_;
};

/// Each enqueues the op named `op` and returns true, or false where it has none of that name.
bool call_metadata(const std::string& op, stream_ref at, const arguments& a);
bool call_sparse(const std::string& op, stream_ref at, const arguments& a);
bool call_attention(const std::string& op, stream_ref at, const arguments& a);

/// Bytes of paged attention's workspace.
std::int64_t attention_workspace_bytes(device where, const arguments& a);

}  // namespace stepgraph::peers
