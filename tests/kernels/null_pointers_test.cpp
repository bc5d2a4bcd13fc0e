#include "tests/kernels/null_pointers.hpp"

#include "stepgraph.hpp"

namespace stepgraph {

TEST_CASE("a null pointer is named: what every metadata op is given") {
  token_inputs_params p = good_inputs();
  expect_named("token_inputs", token_inputs, p, {FIELD(lengths.live_rows), FIELD(lengths.seq_lens)});
  expect_named("token_inputs", token_inputs, p, {FIELD(source.table)});
  expect_named("token_inputs", token_inputs, p, {FIELD(requests)});
  expect_named("token_inputs", token_inputs, p, {FIELD(query_counts), FIELD(cu_seqlens_q), FIELD(row_of)});
}

TEST_CASE("a null pointer is named: metadata outputs") {
  decode_metadata_params decode;
  decode.lengths = good_lengths();
  decode.source = good_source();
  decode.requests = in;
  expect_named("decode_metadata", decode_metadata, decode, {FIELD(cache_seqlens)});

  draft_steps_metadata_params steps;
  steps.decode = decode;
  steps.steps = 1;
  expect_named("draft_steps_metadata", draft_steps_metadata, steps, {FIELD(cache_seqlens)});
  steps.cache_seqlens = word;
  steps.query = good_query();
  expect_named("draft_steps_metadata", draft_steps_metadata, steps, {FIELD(query.counts)});

  dsa_metadata_params dsa;
  dsa.lengths = good_lengths();
  dsa.source = good_source();
  dsa.requests = in;
  dsa.query = good_query();
  dsa.topk = 4;
  dsa.cache_seqlens = dsa.cu_seqlens_q = dsa.dsa_cache_seqlens = word;
  expect_named("dsa_metadata", dsa_metadata, dsa,
               {FIELD(cache_seqlens), FIELD(cu_seqlens_q), FIELD(dsa_cache_seqlens)});

  kv_indices_params indices;
  indices.lengths = good_lengths();
  indices.source = good_source();
  indices.requests = in;
  indices.indptr = indices.indices = word;
  indices.capacity = 8;
  expect_named("kv_indices", kv_indices, indices, {FIELD(indptr), FIELD(indices)});

  unified_kv_indices_params unified;
  unified.lengths = good_lengths();
  unified.query = good_query();
  unified.prefix_indptr = in;
  unified.indptr = unified.indices = word;
  unified.capacity = 8;
  expect_named("unified_kv_indices", unified_kv_indices, unified, {FIELD(prefix_indptr)});
  expect_named("unified_kv_indices", unified_kv_indices, unified, {FIELD(indptr), FIELD(indices)});

  compressed_metadata_params compressed;
  compressed.tokens = 2;
  compressed.levels = 1;
  compressed.live_tokens = compressed.causal_length = in;
  expect_named("compressed_metadata", compressed_metadata, compressed,
               {FIELD(live_tokens), FIELD(causal_length)});

  kv_split_plan_params plan;
  plan.lengths = good_lengths();
  plan.tile = plan.max_splits = plan.workers = 1;
  plan.capacity = 2;
  kv_split_chunk chunk{};
  plan.chunks = &chunk;
  plan.cu_chunks = word;
  expect_named("kv_split_plan", kv_split_plan, plan, {FIELD(chunks), FIELD(cu_chunks)});

  spec_page_table_params spec;
  spec.live_tokens = spec.row_of = in;
  spec.tokens = 2;
  spec.by_row.data = spec.by_row.length = spec.by_token.data = spec.by_token.length = in;
  spec.table.data = spec.total = word;
  expect_named("spec_page_table", spec_page_table, spec,
               {FIELD(live_tokens), FIELD(row_of), FIELD(by_row.data), FIELD(by_row.length),
                FIELD(by_token.data), FIELD(by_token.length), FIELD(total), FIELD(table)});
}

TEST_CASE("a null pointer is named: sparse-attention indices") {
  window_token_ids_params ids;
  ids.lengths = good_lengths();
  ids.source = good_source();
  ids.requests = in;
  ids.query = good_query();
  ids.gather_len = word;
  ids.offsets = ids.ids = word;
  ids.capacity = 8;
  expect_named("window_token_ids", window_token_ids, ids, {FIELD(gather_len), FIELD(offsets), FIELD(ids)});

  combine_top_k_and_window_params combine;
  combine.lengths = good_lengths();
  combine.query_start_loc = combine.gather_len = combine.swa_base = in;
  combine.tokens = 2;
  combine.window = 1;
  combine.indices.data = combine.length = word;
  expect_named("combine_top_k_and_window", combine_top_k_and_window, combine, {FIELD(query_start_loc)});
  expect_named("combine_top_k_and_window", combine_top_k_and_window, combine,
               {FIELD(gather_len), FIELD(swa_base), FIELD(length), FIELD(indices)});

  set_k_and_s_params set;
  std::uint8_t bytes[16];
  const float scale = 0;
  set.cache = {.data = reinterpret_cast<std::uint8_t*>(word), .pages = 1, .page_stride = 132 * 64};
  set.live_tokens = in;
  set.tokens = 2;
  set.loc = in;
  set.keys = bytes;
  set.scales = &scale;
  expect_named("set_k_and_s", set_k_and_s, set, {FIELD(cache.data)});
  expect_named("set_k_and_s", set_k_and_s, set, {FIELD(loc), FIELD(keys), FIELD(scales)});
}

}  // namespace stepgraph
