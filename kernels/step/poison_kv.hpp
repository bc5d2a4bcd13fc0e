#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/page_source.hpp"

namespace stepgraph {

/// Makes "undefined" literal: fills what lies in a KV pool beyond each request's tokens with NaNs (every byte
/// 0xff), so that whatever reads it shows. For poison mode; its cost follows the pool.
struct poison_kv_params {
  void* pool = nullptr;                // planes of pages of tokens, 16-byte aligned
  std::int32_t planes = 0;             // keys and values of each layer
  std::int64_t plane_stride = 0;       // bytes, a multiple of 16
  std::int64_t page_bytes = 0;         // of one plane
  std::int64_t token_bytes = 0;        // of one plane, a multiple of 16
  std::int32_t pages = 0;              // of a plane
  page_source source{};                // whose pages they are, page-granular
  const std::int32_t* open = nullptr;  // [requests] not 0: the request has tokens; of others nothing is live
  const std::int32_t* seq_lens = nullptr;  // [requests] tokens in the cache
  std::int32_t* live_tokens = nullptr;     // [pages] scratch
};

/// Enqueues the op: a fill and two launches. Throws `invalid_argument` naming the field that cannot be.
void poison_kv(stream_ref at, const poison_kv_params& params);

}  // namespace stepgraph
