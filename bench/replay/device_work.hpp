#pragma once

#include <cstdint>

#include "graphs/stream.hpp"

/// Small pieces of work that only the benchmark enqueues, on either backend.
namespace stepgraph::bench {

/// Fills `count` bfloat16 elements with values spread over [-1, 1). On the host nothing is done: there no time
/// depends on the values.
void fill_device(stream_ref at, void* to, std::int64_t count, std::uint32_t seed);

/// Reads `bytes`, or copies them, as fast as a plain kernel can.
void read_bytes(stream_ref at, const void* from, std::int64_t bytes, std::uint32_t* sink);
void copy_bytes(stream_ref at, void* to, const void* from, std::int64_t bytes);

/// Blocks that end at once, as a grid has that is sized by the captured width: one for every `chunk` columns of
/// `width`, head and row; each reads its row's length. Only on a GPU.
struct dead_blocks_params {
  const std::int32_t* cache_seqlens = nullptr;  // [rows]
  std::int32_t rows = 0;
  std::int32_t heads = 0;
  std::int64_t width = 0;
  std::int32_t chunk = 0;
};
void dead_blocks(stream_ref at, const dead_blocks_params& params);

/// Stand-in for sparse attention: for every token reads the `line_bytes` of each of its `topk` slots (negative ones
/// skipped) and stores `out_bytes`. Moves the bytes, computes nothing.
struct gather_params {
  const void* cache = nullptr;          // [slots, line_bytes]
  const std::int32_t* slots = nullptr;  // [tokens, topk]
  std::int32_t tokens = 0;
  std::int32_t topk = 0;
  std::int32_t line_bytes = 0;  // a multiple of 16
  std::uint32_t* sink = nullptr;
};
void gather_attention_stand_in(stream_ref at, const gather_params& params);

/// The same on a CUDA stream; not there in a host-only build.
struct cuda_work {
  static void fill(stream_ref at, void* to, std::int64_t count, std::uint32_t seed);
  static void read(stream_ref at, const void* from, std::int64_t bytes, std::uint32_t* sink);
  static void copy(stream_ref at, void* to, const void* from, std::int64_t bytes);
  static void dead_blocks(stream_ref at, const dead_blocks_params& params);
  static void gather(stream_ref at, const gather_params& params);
};

}  // namespace stepgraph::bench
