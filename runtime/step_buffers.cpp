#include "runtime/step_buffers.hpp"

namespace stepgraph::detail {

arena carve(const step_limits& limits, const kv_layout& layout, const buffer_sizes& sizes,
            memory_resource& memory, std::size_t budget, step_buffers& buffers) {
  arena_plan plan;
  const std::size_t rows = sizes.rows, tokens = sizes.tokens, requests = limits.max_requests;
  // note: a row's line begins at 16 bytes
  buffers.page_columns = sizes.page_columns;
  buffers.page_table_stride = (sizes.page_columns + 3) / 4 * 4;
  const std::size_t page_stride = buffers.page_table_stride;

  const auto live_rows = plan.add<std::int32_t>("live_rows", 1);
  const auto row_requests = plan.add<std::int32_t>("requests", rows);
  const auto query_counts = plan.add<std::int32_t>("query_counts", rows);
  const auto seq_lens = plan.add<std::int32_t>("seq_lens", rows);
  const auto row_status = plan.add<std::int32_t>("row_status", rows);
  const auto cu_seqlens_q = plan.add<std::int32_t>("cu_seqlens_q", rows + 1);
  const auto cu_seqlens_k = plan.add<std::int32_t>("cu_seqlens_k", rows + 1);
  const auto last_row = plan.add<std::int32_t>("last_row", rows);
  const auto cache_seqlens = plan.add<std::int32_t>("cache_seqlens", rows);
  const auto next_token = plan.add<std::int32_t>("next_token", rows);
  const auto token_ids = plan.add<std::int32_t>("token_ids", tokens);
  const auto row_of = plan.add<std::int32_t>("row_of", tokens);
  const auto positions = plan.add<std::int32_t>("positions", tokens);
  const auto causal_length = plan.add<std::int32_t>("causal_length", tokens);
  const auto out_cache_loc = plan.add<std::int32_t>("out_cache_loc", tokens);
  const auto page_table = plan.add<std::int32_t>("page_table", rows * page_stride);
  const auto scratch = plan.add<std::byte>("scratch", sizes.scratch_bytes);
  const std::size_t undefined_end = plan.bytes();

  const auto staging = plan.add<std::byte>("staging", staging_layout{sizes.rows, sizes.tokens}.bytes());
  const auto fault_taken = plan.add<std::int32_t>("fault_taken", 1);
  const auto pages = plan.add<std::int32_t>("request_pages", sizes.own_requests ? requests * page_stride : 0);
  const auto state_lens = plan.add<std::int32_t>("request_seq_lens", sizes.own_requests ? requests : 0);
  const auto last_token = plan.add<std::int32_t>("request_last_token", sizes.own_requests ? requests : 0);
  const auto kv = plan.add<std::byte>(
      "kv_cache",
      sizes.own_kv ? kv_page_bytes(layout, limits.page_size) * sizes.kv_pages * layout.layers : 0);

  arena made(std::move(plan), memory, budget);
  buffers.live_rows = made.view(live_rows).data();
  buffers.requests = made.view(row_requests).data();
  buffers.query_counts = made.view(query_counts).data();
  buffers.seq_lens = made.view(seq_lens).data();
  buffers.row_status = made.view(row_status).data();
  buffers.cu_seqlens_q = made.view(cu_seqlens_q).data();
  buffers.cu_seqlens_k = made.view(cu_seqlens_k).data();
  buffers.last_row = made.view(last_row).data();
  buffers.cache_seqlens = made.view(cache_seqlens).data();
  buffers.next_token = made.view(next_token).data();
  buffers.token_ids = made.view(token_ids).data();
  buffers.row_of = made.view(row_of).data();
  buffers.positions = made.view(positions).data();
  buffers.causal_length = made.view(causal_length).data();
  buffers.out_cache_loc = made.view(out_cache_loc).data();
  buffers.page_table = made.view(page_table).data();
  buffers.scratch = made.view(scratch);
  buffers.undefined = {made.data(), undefined_end};
  buffers.staging = made.view(staging).data();
  buffers.fault_taken = made.view(fault_taken).data();
  if (sizes.own_requests)
    buffers.state = {.pages = made.view(pages).data(),
                     .page_stride = static_cast<std::int64_t>(page_stride),
                     .page_columns = static_cast<std::int32_t>(sizes.page_columns),
                     .requests = limits.max_requests,
                     .seq_lens = made.view(state_lens).data(),
                     .last_token = made.view(last_token).data()};
  if (sizes.own_kv) buffers.kv = make_kv_cache(layout, limits.page_size, sizes.kv_pages, made.view(kv));
  return made;
}

}  // namespace stepgraph::detail
