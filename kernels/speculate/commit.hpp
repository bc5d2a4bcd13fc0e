#pragma once

#include <cstdint>

#include "graphs/stream.hpp"
#include "kernels/row_lengths.hpp"
#include "kernels/speculate/accept_result.hpp"

namespace stepgraph {

/// After a tree was verified, the tokens kept lie scattered over the slots that the step was given: node
/// path[i] must be found at position base + i. A chain's path is its own order, and neither op does anything.
///
/// Page size 1: the row's line of the slot table is permuted, kept nodes first, then the others in order, so
/// the request still owns every slot it was given. It must run before the read fence, while the line is still
/// the request's. Slots come from this step's `slots`, never from the table.
struct commit_slots_params {
  verify_view verify{};                         // token_ids is not read
  const std::int32_t* accept_count = nullptr;   // [rows], of accept_result
  const std::int32_t* path = nullptr;           // [rows, path_stride], likewise
  std::int64_t path_stride = 0;                 // entries
  const std::int32_t* cache_seqlens = nullptr;  // [rows] len, this step's tokens included
  index_view slots{};                           // [tokens] out_cache_loc of this step
  index_view requests{};                        // [rows] lines of the table
  std::int32_t* table = nullptr;                // in/out [request_count, columns] slot of each token
  std::int64_t table_stride = 0;                // entries
  std::int32_t request_count = 0;
  std::int64_t columns = 0;
  fault_sink faults{};
};

/// Keys or values of one layer, as bytes. NHD or HND: strides say.
struct kv_plane {
  void* data;                // 16-byte aligned
  std::int64_t page_stride;  // bytes, multiples of 16
  std::int64_t token_stride;
  std::int64_t head_stride;
};

/// Any page size: moves the kept tokens' keys and values to the first slots that the step was given. Only
/// this step's own slots are read and written, in an order in which nothing is overwritten before it has
/// moved: path[i] >= i and ascending, and each 16 bytes of a token's place are moved by one thread, i
/// ascending. Page 0 is the sink and never moved from or to; a negative slot or one outside the pool is
/// reported and not followed.
struct commit_kv_params {
  verify_view verify{};                        // token_ids and parents are not read
  const std::int32_t* accept_count = nullptr;  // [rows], of accept_result
  const std::int32_t* path = nullptr;          // [rows, path_stride], likewise
  std::int64_t path_stride = 0;                // entries
  index_view slots{};                          // [tokens] out_cache_loc of this step
  const kv_plane* planes = nullptr;            // [plane_count] in device memory; two a layer
  std::int32_t plane_count = 0;
  std::int32_t heads = 0;       // of a plane
  std::int32_t head_bytes = 0;  // multiple of 16
  std::int32_t page_shift = 0;  // log2 of the page size
  std::int64_t pool_pages = 0;  // the sink included
  fault_sink faults{};
};

/// Throw `invalid_argument` naming the field that cannot be.
void check(const commit_slots_params& params);
void check(const commit_kv_params& params);

/// Enqueue the ops: one launch each. Throw `invalid_argument` naming the field that cannot be.
void commit_slots(stream_ref at, const commit_slots_params& params);
void commit_kv(stream_ref at, const commit_kv_params& params);

}  // namespace stepgraph
