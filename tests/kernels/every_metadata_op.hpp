#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernels/metadata/compressed_metadata.hpp"
#include "kernels/metadata/decode_metadata.hpp"
#include "kernels/metadata/draft_steps_metadata.hpp"
#include "kernels/metadata/dsa_metadata.hpp"
#include "kernels/metadata/kv_indices.hpp"
#include "kernels/metadata/kv_split_plan.hpp"
#include "kernels/metadata/spec_page_table.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "tests/kernels/metadata_outputs.hpp"
#include "tests/reference/random_batch.hpp"

/// Every metadata op on one batch, for what must hold of all of them alike.
namespace stepgraph {

struct every_op_options {
  int number = 0;          // varies strides, tails, top-k, steps and levels
  std::int32_t skip = -1;  // of every output that has one
  bool narrow = false;     // seq_lens int32, requests int64: the other way round than the batch has them
};

/// What the ops wrote, memory that they must not touch included, by op and name.
using every_output = std::map<std::string, std::vector<std::int64_t>>;

class every_metadata_op {
 public:
  every_metadata_op(const reference::batch& in, const every_op_options& o)
      : in_(in),
        o_(o),
        at_(test_device()),
        batch_(at_, in),
        rows_(static_cast<std::int32_t>(in.B)),
        tokens_(static_cast<std::int32_t>(std::max<std::int64_t>(in.C, 1))),
        narrow_lens_(at_, std::vector<std::int32_t>(in.seq_lens.begin(), in.seq_lens.end())),
        wide_requests_(at_, in.q) {
    lengths_ = batch_.lengths;
    requests_ = batch_.requests();
    if (o.narrow) lengths_.seq_lens = narrow_lens_.data(), requests_ = wide_requests_.data();
    query_ = device_query(in, batch_);
    query_.tokens = tokens_;
    tail_ = {static_cast<tail_mode>(o.number % 3), 4, -9};
    decode();
    token_ops();
    dsa();
    csr();
  }
  const every_output& outputs() const { return outputs_; }

 private:
  using vector = output_vector<std::int32_t>;
  output_table table(std::int64_t lines, std::int64_t columns) const {
    return output_table(at_, lines, columns, o_.number % 4,
                        {o_.skip, {static_cast<reference::tail_mode>(tail_.mode), 4, -9}});
  }
  template <class T>
  void keep(const char* name, const device_vector<T>& values) {
    const auto got = values.get();
    outputs_[name] = {got.begin(), got.end()};
  }

  void decode() {
    const vector lens(at_, rows_), cu(at_, rows_ + 1), cu_q(at_, rows_ + 1), loc(at_, tokens_);
    const output_table pages = table(rows_, in_.page_columns), window = table(rows_, in_.page_columns);
    const device_map map(at_, reference::random_page_map(in_.pool_pages, in_.seed), o_.narrow);
    decode_metadata_params p{.lengths = lengths_,
                             .requests = requests_,
                             .source = batch_.source,
                             .skip = o_.skip,
                             .cache_seqlens = lens.data(),
                             .cu_seqlens_k = cu.data(),
                             .page_table = pages.data(),
                             .page_table_stride = pages.sink.stride,
                             .page_columns = in_.page_columns,
                             .query = query_};
    decode_metadata(at_, p);
    keep("decode cache_seqlens", lens);
    keep("decode page_table", pages);
    p.tail = tail_;
    p.cu_seqlens_q = cu_q.data();
    p.window = {.page_map = map.view,
                .page_table = window.data(),
                .page_table_stride = window.sink.stride,
                .skip = o_.skip,
                .out_cache_loc = loc.data(),
                .out_cache_loc_skip = o_.skip};
    draft_extend_metadata(at_, p);
    keep("draft-extend cu_seqlens_k", cu);
    keep("draft-extend cu_seqlens_q", cu_q);
    keep("draft-extend window page_table", window);
    keep("draft-extend window slots", loc);
    const std::int32_t steps = 1 + o_.number % 4;
    query_tokens one = query_;
    one.max_count = 1;
    p.window.out_cache_loc = {};
    const vector step_lens(at_, steps * rows_), step_slots(at_, steps * tokens_),
        position(at_, steps * tokens_);
    draft_steps_metadata(at_, {.decode = p,
                               .steps = steps,
                               .query = one,
                               .slot_skip = o_.skip,
                               .cache_seqlens = step_lens.data(),
                               .out_cache_loc = step_slots.data(),
                               .position = position.data()});
    keep("draft steps cache_seqlens", step_lens);
    keep("draft steps slots", step_slots);
    keep("draft steps position", position);
  }

  void token_ops() {
    const vector cu(at_, rows_ + 1), row_of(at_, tokens_), causal(at_, tokens_), position(at_, tokens_),
        slots(at_, tokens_), last(at_, rows_), length(at_, tokens_), clamped(at_, tokens_),
        total(at_, tokens_);
    token_inputs(at_, {.lengths = lengths_,
                       .query_counts = batch_.query_counts(),
                       .max_query_count = static_cast<std::int32_t>(in_.Emax),
                       .tokens = tokens_,
                       .requests = requests_,
                       .source = batch_.source,
                       .skip = o_.skip,
                       .cu_seqlens_q = cu.data(),
                       .last_row = last.data(),
                       .row_of = row_of.data(),
                       .position = position.data(),
                       .causal_length = causal.data(),
                       .out_cache_loc = slots.data()});
    keep("token inputs cu_seqlens_q", cu);
    keep("token inputs row_of", row_of);
    keep("token inputs causal_length", causal);
    keep("token inputs position", position);
    keep("token inputs last_row", last);
    keep("token inputs slots", slots);
    const std::int64_t columns = in_.page_columns;
    const output_table pages = table(rows_, columns), indices = table(tokens_, columns),
                       joined = table(tokens_, columns);
    const vector page_lens(at_, rows_);
    decode_metadata(at_, {.lengths = lengths_,
                          .requests = requests_,
                          .source = batch_.source,
                          .cache_seqlens = page_lens.data(),
                          .page_table = pages.data(),
                          .page_table_stride = pages.sink.stride,
                          .page_columns = columns});
    compressed_metadata_params p{.live_tokens = cu.data() + rows_,
                                 .tokens = tokens_,
                                 .causal_length = causal.data(),
                                 .out_loc = slots.data(),
                                 .out_locs = tokens_,
                                 .page_table = pages.data(),
                                 .page_table_stride = pages.sink.stride,
                                 .page_columns = columns,
                                 .page_lines = rows_,
                                 .row_of = row_of.data(),
                                 .page_shift = 7,
                                 .levels = 1 + o_.number % 2};
    const vector compressed_slots(at_, tokens_);
    for (int level = 0; level < p.levels; ++level) p.level[level] = {.ratio_shift = level == 0 ? 7 : 2};
    p.level[0].out_loc = compressed_slots.data();
    p.level[0].out_loc_skip = o_.skip;
    p.level[0].length = length.data();
    p.level[0].length_clamped = clamped.data();
    p.level[0].page_indices = indices.sink;
    compressed_metadata(at_, p);
    keep("compressed slots", compressed_slots);
    keep("compressed length", length);
    keep("compressed length_clamped", clamped);
    keep("compressed page_indices", indices);
    spec_page_table(at_, {.live_tokens = cu.data() + rows_,
                          .tokens = tokens_,
                          .row_of = row_of.data(),
                          .by_row = {pages.data(), pages.sink.stride, rows_, columns, cu.data()},
                          .by_token = {indices.data(), indices.sink.stride, tokens_, columns, length.data()},
                          .table = joined.sink,
                          .total = total.data()});
    keep("spec page table", joined);
    keep("spec page table total", total);
  }

  void dsa() {
    for (const bool line_per_token : {false, true}) {
      const vector lens(at_, rows_), cu_q(at_, rows_ + 1), row_of(at_, tokens_), expanded(at_, tokens_),
          sparse(at_, tokens_), pooled_len(at_, rows_);
      const std::int64_t lines = line_per_token ? tokens_ : rows_;
      const output_table tokens = table(lines, in_.cap()), pages = table(lines, in_.page_columns);
      dsa_metadata(at_, {.lengths = lengths_,
                         .requests = requests_,
                         .source = batch_.source,
                         .query = query_,
                         .topk = 1 + o_.number * 7,
                         .kpool = 1 << o_.number % 3,
                         .line_per_token = line_per_token,
                         .cache_seqlens = lens.data(),
                         .cu_seqlens_q = cu_q.data(),
                         .row_of = row_of.data(),
                         .expanded = expanded.data(),
                         .dsa_cache_seqlens = sparse.data(),
                         .pooled_len = pooled_len.data(),
                         .page_table_1 = o_.number % 2 ? tokens.sink : table_sink{},
                         .real_page_table = pages.sink});
      keep(line_per_token ? "DSA expanded, a line a token" : "DSA expanded", expanded);
      keep(line_per_token ? "DSA lengths, a line a token" : "DSA lengths", sparse);
      keep(line_per_token ? "DSA row_of, a line a token" : "DSA row_of", row_of);
      keep(line_per_token ? "DSA page_table_1, a line a token" : "DSA page_table_1", tokens);
      keep(line_per_token ? "DSA page_table, a line a token" : "DSA page_table", pages);
      keep("DSA pooled_len", pooled_len);
    }
  }

  void csr() {
    const std::int64_t capacity = rows_ * in_.cap() + tokens_;
    const vector indptr(at_, rows_ + 1), indices(at_, capacity), unified(at_, capacity), cu(at_, rows_ + 1);
    kv_indices(at_, {.lengths = lengths_,
                     .requests = requests_,
                     .source = batch_.source,
                     .skip = o_.skip,
                     .indptr = indptr.data(),
                     .indices = indices.data(),
                     .capacity = capacity});
    keep("KV indptr", indptr);
    keep("KV indices", indices);
    const device_vector<std::int64_t> prefix(at_, std::vector<std::int64_t>(rows_ + 1, 0));
    const device_vector<std::int32_t> extend(at_, tokens_, 5);
    unified_kv_indices(at_, {.lengths = lengths_,
                             .query = query_,
                             .prefix_indptr = prefix.data(),
                             .prefix_indices = extend.data(),
                             .prefix_count = 1,
                             .extend_indices = extend.data(),
                             .extend_count = tokens_,
                             .skip = o_.skip,
                             .indptr = indptr.data(),
                             .indices = unified.data(),
                             .capacity = capacity});
    keep("unified KV indptr", indptr);
    keep("unified KV indices", unified);
    const std::int32_t splits = 4 + o_.number;
    const device_vector<std::int32_t> chunks(at_, 4 * rows_ * splits, output_poison);
    kv_split_plan(at_, {.lengths = lengths_,
                        .tile = 1 + o_.number,
                        .max_splits = splits,
                        .workers = 132 - o_.number,
                        .capacity = rows_ * splits,
                        .chunks = reinterpret_cast<kv_split_chunk*>(chunks.data()),
                        .cu_chunks = cu.data()});
    keep("KV split chunks", chunks);
    keep("KV split cu_chunks", cu);
  }

  const reference::batch& in_;
  every_op_options o_;
  stream at_;
  device_batch batch_;
  std::int32_t rows_, tokens_;
  device_vector<std::int32_t> narrow_lens_;
  device_vector<std::int64_t> wide_requests_;
  row_lengths lengths_;
  index_view requests_;
  query_tokens query_;
  tail_rule tail_;
  every_output outputs_;
};

inline every_output run_every_metadata_op(const reference::batch& in, const every_op_options& options) {
  return every_metadata_op(in, options).outputs();
}

}  // namespace stepgraph
