#pragma once

#include <cstdint>

#include "graphs/stream.hpp"

namespace stepgraph {

/// Whose a page is, as the host knows it.
struct page_owner {
  std::int32_t
      request;  // line of the request table; negative: nobody's, or of a request that has no tokens yet
  std::int32_t index;  // among the request's pages
};

/// Makes "undefined" literal: fills what lies in a KV pool beyond each request's tokens with NaNs (every byte
/// 0xff), so that whatever reads it shows. For poison mode; its cost follows the pool.
struct poison_kv_params {
  void* pool = nullptr;                    // planes of pages of tokens, 16-byte aligned
  std::int32_t planes = 0;                 // keys and values of each layer
  std::int64_t plane_stride = 0;           // bytes, a multiple of 16
  std::int64_t page_bytes = 0;             // of one plane
  std::int64_t token_bytes = 0;            // of one plane, a multiple of 16
  std::int32_t pages = 0;                  // of a plane
  const page_owner* owners = nullptr;      // [pages]
  const std::int32_t* seq_lens = nullptr;  // [requests] tokens in the cache; beyond them nothing is live
  std::int32_t requests = 0;
};

/// Enqueues the op: one launch. Throws `invalid_argument` naming the field that cannot be.
void poison_kv(stream_ref at, const poison_kv_params& params);

}  // namespace stepgraph
