#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graphs/arena.hpp"
#include "kernels/attention/paged_attention.hpp"
#include "runtime/step_limits.hpp"

namespace stepgraph {

/// The paged KV cache of all layers, as views; the memory is the executor's arena or the embedder's own pool.
struct kv_cache_view {
  kv_layout layout;
  std::int64_t page_size = 0;         // tokens
  std::vector<kv_pages_view> layers;  // [layout.layers]
};

/// Bytes of one page of one layer, keys and values.
inline std::size_t kv_page_bytes(const kv_layout& layout, int page_size) {
  return std::size_t{2} * page_size * layout.kv_heads * layout.head_size * size_of(layout.type);
}

/// Lays `layout` out in `block`: per layer all pages of keys, then all pages of values, [page, token, head,
/// element].
kv_cache_view make_kv_cache(const kv_layout& layout, int page_size, std::int64_t pages,
                            std::span<std::byte> block);

}  // namespace stepgraph
