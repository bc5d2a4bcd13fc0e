#include "tests/reference/dsa_metadata.hpp"

#include <algorithm>

#include "tests/reference/metadata.hpp"

namespace stepgraph::reference {
namespace {

constexpr const char* dsa_op = "DSA metadata";
constexpr const char* compressed_op = "compressed metadata";

// pooled_len = len / kpool; pooled_table[r, x] = real_page_table[r, x * kpool] / kpool for x <
// pages(pooled_len).
void pooled_keys(const batch& in, const derived& d, const dsa_options& options, dsa_output& out) {
  slot_reader read(in, out.faults);
  std::vector<std::int64_t> pooled(static_cast<std::size_t>(in.B), 0);
  for (std::int64_t r = 0; r < d.n; ++r) pooled[r] = d.len[r] / options.kpool;
  const std::int64_t width = options.pooled_columns > 0 ? options.pooled_columns : in.page_columns;
  const output_rule& rule = options.pooled_table;
  out.pooled_len = fixed_vector(dsa_op, "pooled_len", pooled);
  out.pooled_table = make_table(
      dsa_op, "pooled_table", in.B, d.n, width, rule.tail,
      [&](std::int64_t r) { return in.pages(pooled[r]); },
      [&](std::int64_t r, std::int64_t x) {
        const auto page = read.page(r, x * options.kpool);
        return page ? *page / options.kpool : rule.skip;
      });
}

}  // namespace

// min(x, topk); with pooled keys whole groups up to topk, then the tokens of the unfinished group.
std::int64_t dsa_len(std::int64_t x, std::int64_t topk, std::int64_t kpool) {
  if (kpool <= 1) return std::min(x, topk);
  return std::min(x / kpool * kpool, topk) + x % kpool;
}

// Lengths per row as decode; per token its causal length and how much of it the sparse attention reads;
// tables with len[r] live tokens and pages(len[r]) live pages on every line that belongs to row r.
dsa_output dsa_metadata(const batch& in, const dsa_options& options) {
  const derived d = derive(in);
  dsa_output out;
  out.faults = d.faults;
  out.cache_seqlens = fixed_vector(dsa_op, "cache_seqlens", d.len);
  out.cu_seqlens_k = fixed_vector(dsa_op, "cu_seqlens_k", cumsum0(d.len));
  out.cu_seqlens_q = fixed_vector(dsa_op, "cu_seqlens_q", d.cu_q);
  out.row_of = fixed_vector(dsa_op, "row_of", d.row_of);
  out.expanded = fixed_vector(dsa_op, "expanded", d.c);

  std::vector<std::int64_t> sparse(static_cast<std::size_t>(in.C), 0);
  for (std::int64_t t = 0; t < d.T; ++t) sparse[t] = dsa_len(d.c[t], options.topk, options.kpool);
  out.dsa_cache_seqlens = fixed_vector(dsa_op, "dsa_cache_seqlens", sparse);
  out.dsa_cu_seqlens_k = fixed_vector(dsa_op, "dsa_cu_seqlens_k", cumsum0(sparse));

  slot_reader read(in, out.faults);
  const std::int64_t lines = options.line_per_token ? in.C : in.B;
  const std::int64_t live = options.line_per_token ? d.T : d.n;
  const auto row = [&](std::int64_t line) { return options.line_per_token ? d.row_of[line] : line; };
  const std::int64_t token_columns = options.token_columns > 0 ? options.token_columns : in.cap();
  out.page_table_1 = {dsa_op, "page_table_1", token_columns, {}};
  if (options.token_table) {
    out.page_table_1 = make_table(
        dsa_op, "page_table_1", lines, live, token_columns, options.page_table_1.tail,
        [&](std::int64_t line) { return d.len[row(line)]; },
        [&](std::int64_t line, std::int64_t x) {
          return read.slot(row(line), x).value_or(options.page_table_1.skip);
        });
  }
  out.real_page_table = make_table(
      dsa_op, "real_page_table", lines, live, in.page_columns, options.real_page_table.tail,
      [&](std::int64_t line) { return in.pages(d.len[row(line)]); },
      [&](std::int64_t line, std::int64_t p) {
        return read.page(row(line), p).value_or(options.real_page_table.skip);
      });

  out.paged_mqa_ctx_lens = {dsa_op, "paged_mqa_ctx_lens", options.mqa_tokens, {}};
  for (std::int64_t r = 0; options.mqa_tokens > 0 && r < in.B; ++r) {
    out.paged_mqa_ctx_lens.line.emplace_back(static_cast<std::size_t>(options.mqa_tokens), d.len[r]);
  }

  out.pooled_len = untouched_vector(dsa_op, "pooled_len", 0);
  if (options.kpool > 1) pooled_keys(in, d, options, out);
  return out;
}

// Every E[r] is one device number.
batch with_equal_tokens(batch in, std::int64_t E) {
  in.E.assign(static_cast<std::size_t>(in.B), E);
  return in;
}

// A compressed entry is stored by the token that completes a group of k: out_loc / k where c mod k is 0. Its
// position is that of the group's first token, the length the number of complete groups. With m = P / k
// compressed entries a page, entry x of a token lies at page_table[t, x / m] * m + x mod m.
compressed_output compressed_metadata(const compressed_input& in) {
  const std::int64_t C = static_cast<std::int64_t>(in.c.size());
  const std::int64_t k = in.ratio;
  std::vector<std::int64_t> loc(in.c.size(), in.out_loc_skip);
  std::vector<std::int64_t> positions(in.c.size(), 0);
  std::vector<std::int64_t> length(in.c.size(), 0);
  std::vector<std::int64_t> clamped(in.c.size(), 0);
  for (std::int64_t t = 0; t < in.T; ++t) {
    const std::int64_t c = in.c[t];
    const bool has_slot = t < static_cast<std::int64_t>(in.out_loc.size()) && in.out_loc[t] >= 0;
    if (c > 0 && c % k == 0 && has_slot) loc[t] = in.out_loc[t] / k;
    if (c > 0) positions[t] = (c - 1) / k * k;
    length[t] = c / k;
    clamped[t] = std::max<std::int64_t>(length[t], 1);
  }
  compressed_output out;
  out.out_loc = fixed_vector(compressed_op, "out_loc", loc);
  out.positions = fixed_vector(compressed_op, "positions", positions);
  out.length = fixed_vector(compressed_op, "length", length);
  out.length_clamped = fixed_vector(compressed_op, "length_clamped", clamped);
  if (!in.indices) return out;

  const std::int64_t m = in.P / k;
  const std::int64_t capacity = in.capacity > 0 ? in.capacity : m * in.page_columns;
  out.page_indices = make_table(
      compressed_op, "page_indices", C, in.T, capacity, in.page_indices.tail,
      [&](std::int64_t t) {
        if (length[t] > capacity) add_fault(out.faults, {fault_kind::capacity, t, length[t]});
        return length[t];
      },
      [&](std::int64_t t, std::int64_t x) -> std::int64_t {
        if (!in.line.empty() && (in.line[t] < 0 || in.line[t] >= in.page_lines)) {
          add_fault(out.faults, {fault_kind::line, t, in.line[t]});
          return in.page_indices.skip;
        }
        if (x / m >= in.page_columns) {
          add_fault(out.faults, {fault_kind::length, t, length[t]});
          return in.page_indices.skip;
        }
        const std::int64_t page = in.page_table(t, x / m);
        return page < 0 ? in.page_indices.skip : page * m + x % m;
      });
  return out;
}

// What a step of this batch gives compressed attention: c, S(q, base + j) and the token's page table.
compressed_input compressed_from(const batch& in, std::int64_t ratio) {
  const derived d = derive(in);
  compressed_input out;
  out.ratio = ratio;
  out.P = in.P;
  out.page_columns = in.page_columns;
  out.T = d.T;
  out.c = d.c;
  out.out_loc = token_inputs(in).out_cache_loc.value;
  out.page_table = [in, d](std::int64_t t, std::int64_t p) -> std::int64_t {
    std::vector<fault> ignored;
    return slot_reader(in, ignored).page(d.row_of[t], p).value_or(-1);
  };
  out.indices = in.P % ratio == 0;
  return out;
}

}  // namespace stepgraph::reference
