#include "tests/reference/kv_indices.hpp"

#include <algorithm>

namespace stepgraph::reference {
namespace {

// Clamps a length to [0, most] and reports it where that changes it.
std::int64_t clamped(std::int64_t length, std::int64_t most, std::int64_t row, std::vector<fault>& faults) {
  const std::int64_t kept = std::clamp<std::int64_t>(length, 0, most);
  if (kept != length) add_fault(faults, {fault_kind::length, row, length});
  return kept;
}

// Writes `value` at `at` unless the output ends before; the row is then reported with the end of its entries.
void put(vector_output& out, std::int64_t at, std::int64_t value, std::int64_t row, std::int64_t row_end,
         std::vector<fault>& faults) {
  if (at >= static_cast<std::int64_t>(out.value.size())) {
    add_fault(faults, {fault_kind::capacity, row, row_end});
    return;
  }
  out.value[at] = value;
  out.state[at] = cell::defined;
}

}  // namespace

// Line t is the first len_a[row_of[t]] entries of its row's line in A, then the first len_b[t] of its own
// line in B. Lengths are clamped to their tables, the total to the output's width.
spec_page_table_output spec_page_table(const spec_page_table_input& in) {
  constexpr const char* op = "spec page table";
  const std::int64_t C = static_cast<std::int64_t>(in.row_of.size());
  std::vector<std::int64_t> first(in.row_of.size(), 0);
  std::vector<std::int64_t> total(in.row_of.size(), 0);
  spec_page_table_output out;
  for (std::int64_t t = 0; t < in.T; ++t) {
    const std::int64_t r = in.row_of[t];
    if (r < 0 || r >= in.table_a.lines) {
      add_fault(out.faults, {fault_kind::line, t, r});
    } else {
      first[t] = clamped(in.len_a[r], in.table_a.width, t, out.faults);
    }
    const std::int64_t second = clamped(in.len_b[t], in.table_b.width, t, out.faults);
    total[t] = std::min(first[t] + second, in.width);
    if (first[t] + second > in.width) add_fault(out.faults, {fault_kind::capacity, t, first[t] + second});
  }
  out.total = fixed_vector(op, "total", total);
  out.table = make_table(
      op, "table", C, in.T, in.width, in.rule.tail, [&](std::int64_t t) { return total[t]; },
      [&](std::int64_t t, std::int64_t x) {
        const std::int64_t value =
            x < first[t] ? in.table_a.entry(in.row_of[t], x) : in.table_b.entry(t, x - first[t]);
        return value < 0 ? in.rule.skip : value;
      });
  return out;
}

// indptr = cumsum0(len - start), never clamped; the slots of tokens start .. len - 1 in order, as far as the
// output holds them.
kv_indices_output kv_indices(const batch& in, const kv_indices_options& options) {
  constexpr const char* op = "kv indices";
  const derived d = derive(in);
  kv_indices_output out;
  out.faults = without_tokens(d.faults);
  slot_reader read(in, out.faults);

  std::vector<std::int64_t> start(static_cast<std::size_t>(in.B), 0);
  std::vector<std::int64_t> count(static_cast<std::size_t>(in.B), 0);
  for (std::int64_t r = 0; r < d.n; ++r) {
    if (!options.start.empty()) {
      start[r] = std::clamp<std::int64_t>(options.start[r], 0, d.len[r]);
      if (start[r] != options.start[r]) add_fault(out.faults, {fault_kind::start, r, options.start[r]});
    }
    count[r] = d.len[r] - start[r];
  }
  const std::vector<std::int64_t> indptr = cumsum0(count);
  out.indptr = fixed_vector(op, "indptr", indptr);
  out.indices = untouched_vector(op, "indices", options.capacity);
  for (std::int64_t r = 0; r < d.n; ++r) {
    for (std::int64_t i = 0; i < count[r]; ++i) {
      const auto slot = options.slot_map ? read.mapped(*options.slot_map, read.raw_slot(r, start[r] + i), r)
                                         : read.slot(r, start[r] + i);
      put(out.indices, indptr[r] + i, slot.value_or(options.skip), r, indptr[r + 1], out.faults);
    }
  }
  return out;
}

// indptr = cumsum0(prefix_len + E); a row's entries are its prefix indices, then its extend indices.
kv_indices_output unified_kv_indices(const batch& in, const unified_kv_indices_input& input) {
  constexpr const char* op = "unified kv indices";
  const derived d = derive(in);
  kv_indices_output out;
  out.faults = d.faults;

  std::vector<std::int64_t> prefix(static_cast<std::size_t>(in.B), 0);
  std::vector<std::int64_t> count(static_cast<std::size_t>(in.B), 0);
  for (std::int64_t r = 0; r < d.n; ++r) {
    prefix[r] = clamped(input.prefix_indptr[r + 1] - input.prefix_indptr[r], in.cap(), r, out.faults);
    count[r] = prefix[r] + d.kept[r];
  }
  const std::vector<std::int64_t> indptr = cumsum0(count);
  out.indptr = fixed_vector(op, "indptr", indptr);
  out.indices = untouched_vector(op, "indices", input.capacity);

  // an entry before or past its array becomes skip, and is reported
  const auto entry = [&](const std::vector<std::int64_t>& indices, std::int64_t at, std::int64_t r) {
    if (at < 0 || at >= static_cast<std::int64_t>(indices.size())) {
      add_fault(out.faults, {fault_kind::column, r, at});
      return input.skip;
    }
    return indices[at] < 0 ? input.skip : indices[at];
  };
  for (std::int64_t r = 0; r < d.n; ++r) {
    for (std::int64_t i = 0; i < prefix[r]; ++i) {
      put(out.indices, indptr[r] + i, entry(input.prefix_indices, input.prefix_indptr[r] + i, r), r,
          indptr[r + 1], out.faults);
    }
    const std::int64_t extend = input.extend_start.empty() ? d.cu_q[r] : input.extend_start[r];
    for (std::int64_t j = 0; j < d.kept[r]; ++j) {
      put(out.indices, indptr[r] + prefix[r] + j, entry(input.extend_indices, extend + j, r), r,
          indptr[r + 1], out.faults);
    }
  }
  return out;
}

}  // namespace stepgraph::reference
