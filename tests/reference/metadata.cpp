#include "tests/reference/metadata.hpp"

#include <algorithm>

namespace stepgraph::reference {
namespace {

constexpr const char* token_op = "token inputs";

void append(std::vector<fault>& faults, const std::vector<fault>& more) {
  for (const fault& f : more) add_fault(faults, f);
}

// page_table[r, p] = S(q[r], p * P) / P for p < pages(len[r]), through the page map.
table_output page_table(const batch& in, const derived& d, const output_rule& rule, const char* op,
                        std::vector<fault>& faults) {
  slot_reader read(in, faults);
  return make_table(
      op, "page_table", in.B, d.n, in.page_columns, rule.tail,
      [&](std::int64_t r) { return in.pages(d.len[r]); },
      [&](std::int64_t r, std::int64_t p) { return read.page(r, p).value_or(rule.skip); });
}

// By a slot map: full_to_swa[S(q[r], p * P)] / P; by a page map: map[S(q[r], p * P) / P]. Maps take raw
// slots.
table_output swa_page_table(const batch& in, const derived& d, const decode_options& options, const char* op,
                            std::vector<fault>& faults) {
  slot_reader read(in, faults);
  const output_rule& rule = options.swa_page_table;
  return make_table(
      op, "swa_page_table", in.B, d.n, in.page_columns, rule.tail,
      [&](std::int64_t r) { return in.pages(d.len[r]); },
      [&](std::int64_t r, std::int64_t p) -> std::int64_t {
        if (options.full_to_swa) {
          const auto slot = read.mapped(*options.full_to_swa, read.raw_slot(r, p * in.P), r);
          return slot ? *slot / in.P : rule.skip;
        }
        return read.mapped(*options.swa_page_map, read.raw_page(r, p), r).value_or(rule.skip);
      });
}

// full_to_swa[S(q, base + j)] per live token, skip where either is missing; dead tokens skip too.
vector_output swa_out_cache_loc(const batch& in, const derived& d, const decode_options& options,
                                const char* op, std::vector<fault>& faults) {
  slot_reader read(in, faults);
  std::vector<std::int64_t> out(static_cast<std::size_t>(in.C), options.swa_out_cache_loc_skip);
  for (std::int64_t t = 0; t < d.T; ++t) {
    const std::int64_t r = d.row_of[t];
    const auto raw = read.raw_slot(r, d.base[r] + d.j[t]);
    if (!raw) continue;
    if (options.full_to_swa) {
      const auto slot = read.mapped(*options.full_to_swa, raw, r);
      if (slot) out[t] = *slot;
    } else {
      const auto page = read.mapped(*options.swa_page_map, *raw / in.P, r);
      if (page) out[t] = *page * in.P + *raw % in.P;
    }
  }
  return fixed_vector(op, "swa_out_cache_loc", out);
}

// Left alone, cumsum0(E), or min(k, n) * q_stride.
vector_output cu_seqlens_q(const batch& in, const derived& d, const decode_options& options, const char* op) {
  if (options.cu_seqlens_q == cu_seqlens_q_mode::left_alone)
    return untouched_vector(op, "cu_seqlens_q", in.B + 1);
  if (options.cu_seqlens_q == cu_seqlens_q_mode::cumsum_tokens)
    return fixed_vector(op, "cu_seqlens_q", d.cu_q);
  std::vector<std::int64_t> cu;
  for (std::int64_t k = 0; k <= in.B; ++k) cu.push_back(std::min(k, d.n) * options.q_stride);
  return fixed_vector(op, "cu_seqlens_q", cu);
}

// What decode, multi-head and draft-extend have in common.
decode_output step_metadata(const batch& in, const decode_options& options, const char* op) {
  const derived d = derive(in);
  decode_output out;
  const bool window = options.page_tables && (options.full_to_swa || options.swa_page_map);
  const bool reads_tokens =
      options.cu_seqlens_q == cu_seqlens_q_mode::cumsum_tokens || (window && options.swa_slots);
  out.faults = reads_tokens ? d.faults : without_tokens(d.faults);
  out.cache_seqlens = fixed_vector(op, "cache_seqlens", d.len);
  out.cu_seqlens_k = fixed_vector(op, "cu_seqlens_k", cumsum0(d.len));
  out.cu_seqlens_q = cu_seqlens_q(in, d, options, op);
  out.swa_out_cache_loc = untouched_vector(op, "swa_out_cache_loc", 0);
  out.page_table = {op, "page_table", in.page_columns, {}};
  out.swa_page_table = {op, "swa_page_table", in.page_columns, {}};
  if (!options.page_tables) return out;
  out.page_table = page_table(in, d, options.page_table, op, out.faults);
  if (window) out.swa_page_table = swa_page_table(in, d, options, op, out.faults);
  if (window && options.swa_slots) out.swa_out_cache_loc = swa_out_cache_loc(in, d, options, op, out.faults);
  return out;
}

}  // namespace

// Tokens lie packed by row. Token j of row r stores at S(q[r], base + j), nowhere if that lies before the
// cache; in a tree its position is base + depth. The output head takes the last token of each row that has
// one.
token_inputs_output token_inputs(const batch& in, const token_inputs_options& options) {
  const derived d = derive(in);
  token_inputs_output out;
  out.faults = d.faults;
  slot_reader read(in, out.faults);

  std::vector<std::int64_t> position = d.position;
  std::vector<std::int64_t> loc(static_cast<std::size_t>(in.C), options.out_cache_loc_skip);
  for (std::int64_t t = 0; t < d.T; ++t) {
    const std::int64_t r = d.row_of[t];
    if (!options.depth.empty()) position[t] = std::max<std::int64_t>(0, d.base[r] + options.depth[t]);
    loc[t] = read.slot(r, d.base[r] + d.j[t]).value_or(options.out_cache_loc_skip);
  }
  std::vector<std::int64_t> last(static_cast<std::size_t>(in.B), 0);
  for (std::int64_t r = 0; r < d.n; ++r) {
    if (d.kept[r] > 0) last[r] = d.cu_q[r] + d.kept[r] - 1;
  }
  out.row_of = fixed_vector(token_op, "row_of", d.row_of);
  out.position = fixed_vector(token_op, "position", position);
  out.causal_length = fixed_vector(token_op, "causal_length", d.c);
  out.out_cache_loc = fixed_vector(token_op, "out_cache_loc", loc);
  out.last_row = fixed_vector(token_op, "last_row", last);
  return out;
}

// Lengths, prefix sums, pages; cu_seqlens_q is no output of plain decode.
decode_output decode_metadata(const batch& in, const decode_options& options) {
  return step_metadata(in, options, "decode metadata");
}

// Decode's outputs and cu_seqlens_q in the asked mode.
decode_output multi_head_metadata(const batch& in, const decode_options& options) {
  return step_metadata(in, options, "multi-head metadata");
}

// Decode's outputs and cu_seqlens_q = cumsum0(E).
decode_output draft_extend_metadata(const batch& in, decode_options options) {
  options.cu_seqlens_q = cu_seqlens_q_mode::cumsum_tokens;
  return step_metadata(in, options, "draft-extend metadata");
}

// For each k the decode at delta = k + 1, with its output slots and positions; the tables of the last one.
draft_steps_output draft_steps_metadata(const batch& in, const draft_steps_options& options) {
  constexpr const char* op = "draft steps";
  draft_steps_output out;
  decode_options tables = options.decode;
  tables.swa_slots = false;
  for (std::int64_t k = 0; k < options.steps; ++k) {
    batch step = in;
    step.delta = k + 1;
    step.delta_of.clear();
    const decode_output decode = step_metadata(step, tables, op);
    const token_inputs_output tokens = token_inputs(step, {options.out_cache_loc_skip, {}});
    out.cache_seqlens.push_back(decode.cache_seqlens);
    out.cu_seqlens_k.push_back(decode.cu_seqlens_k);
    out.out_cache_loc.push_back(tokens.out_cache_loc);
    out.position.push_back(tokens.position);
    append(out.faults, tokens.faults);
    if (k == options.steps - 1) {
      out.page_table = decode.page_table;
      out.swa_page_table = decode.swa_page_table;
      append(out.faults, decode.faults);
    }
  }
  return out;
}

}  // namespace stepgraph::reference
