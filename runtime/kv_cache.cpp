#include "runtime/kv_cache.hpp"

#include "graphs/error.hpp"

namespace stepgraph {

kv_cache_view make_kv_cache(const kv_layout& layout, int page_size, std::int64_t pages,
                            std::span<std::byte> block) {
  const std::size_t half = kv_page_bytes(layout, page_size) / 2 * static_cast<std::size_t>(pages);
  STEPGRAPH_EXPECTS(block.size() >= 2 * half * layout.layers, "kv_cache: ", pages, " pages of ",
                    layout.layers, " layers need ", 2 * half * layout.layers, " bytes, the block has ",
                    block.size());
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
