#include "runtime/kv_cache.hpp"

#include "graphs/error.hpp"

namespace stepgraph {

std::size_t kv_page_bytes(const kv_layout& layout, int page_size) {
  // note: heads and their size are bounded by the executor, so this cannot overflow 64 bits
  return std::size_t{2} * page_size * layout.kv_heads * layout.head_size * size_of(layout.type);
}

std::size_t kv_cache_bytes(const kv_layout& layout, int page_size, std::int64_t pages) {
  const std::size_t layer_page = kv_page_bytes(layout, page_size);
  const std::size_t most = (std::size_t{1} << 62) / layer_page / static_cast<std::size_t>(layout.layers);
  STEPGRAPH_EXPECTS(pages >= 0 && static_cast<std::size_t>(pages) <= most, "kv_cache: ", pages, " pages of ",
                    layout.layers, " layers, ", layer_page, " bytes each, are out of range");
  return layer_page * layout.layers * static_cast<std::size_t>(pages);
}

kv_cache_view make_kv_cache(const kv_layout& layout, int page_size, std::int64_t pages,
                            std::span<std::byte> block) {
  const std::size_t needed = kv_cache_bytes(layout, page_size, pages), half = needed / layout.layers / 2;
  STEPGRAPH_EXPECTS(block.size() >= needed, "kv_cache: ", pages, " pages of ", layout.layers, " layers need ",
                    needed, " bytes, the block has ", block.size());
  kv_cache_view view{.layout = layout, .page_size = page_size, .layers = {}};
  const std::int64_t head = layout.head_size, token = head * layout.kv_heads;
  for (int layer = 0; layer < layout.layers; ++layer) {
    std::byte* const keys = block.data() + 2 * half * layer;
    view.layers.push_back({.keys = keys,
                           .values = keys + half,
                           .page_stride = token * page_size,
                           .token_stride = token,
                           .head_stride = head,
                           .pages = pages});
  }
  return view;
}

}  // namespace stepgraph
