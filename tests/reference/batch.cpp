#include "tests/reference/batch.hpp"

#include <algorithm>

namespace stepgraph::reference {

void add_fault(std::vector<fault>& faults, const fault& f) {
  if (std::find(faults.begin(), faults.end(), f) == faults.end()) faults.push_back(f);
}

std::vector<fault> without_tokens(const std::vector<fault>& faults) {
  std::vector<fault> kept;
  for (const fault& f : faults)
    if (f.kind != fault_kind::query_tokens && f.kind != fault_kind::tokens_dropped) kept.push_back(f);
  return kept;
}

bool has_fault(const std::vector<fault>& faults, fault_kind kind, std::int64_t row) {
  for (const fault& f : faults) {
    if (f.kind == kind && f.row == row) return true;
  }
  return false;
}

std::int64_t batch::cap() const {
  return std::min(max_context, page_columns * P);
}

std::int64_t batch::pages(std::int64_t x) const {
  return (x + P - 1) / P;
}

derived derive(const batch& in) {
  derived d;
  d.n = std::clamp<std::int64_t>(in.n, 0, in.B);
  if (d.n != in.n) add_fault(d.faults, {fault_kind::live_count, -1, in.n});
  d.E.assign(in.B, 0);
  d.kept.assign(in.B, 0);
  d.len.assign(in.B, 0);
  d.base.assign(in.B, 0);
  d.row_of.assign(in.C, 0);
  d.j.assign(in.C, 0);
  d.c.assign(in.C, 0);
  d.position.assign(in.C, 0);

  // lengths and query tokens of live rows, each clamped to its range
  for (std::int64_t r = 0; r < d.n; ++r) {
    d.E[r] = std::clamp<std::int64_t>(in.E[r], 0, in.Emax);
    if (d.E[r] != in.E[r]) add_fault(d.faults, {fault_kind::query_tokens, r, in.E[r]});
    const std::int64_t length = in.seq_lens[r] + (in.delta_of.empty() ? in.delta : in.delta_of[r]);
    d.len[r] = std::clamp<std::int64_t>(length, 0, in.cap());
    if (d.len[r] != length) add_fault(d.faults, {fault_kind::length, r, length});
    // note: a dropped token does not move the others, so the base counts it
    d.base[r] = d.len[r] - d.E[r];
  }

  // tokens packed row after row; those past C are dropped
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < in.B; ++r) {
    d.kept[r] = std::min(d.E[r], in.C - next);
    if (d.kept[r] != d.E[r]) add_fault(d.faults, {fault_kind::tokens_dropped, r, d.E[r]});
    next += d.kept[r];
  }
  d.cu_q = cumsum0(d.kept);
  d.T = d.cu_q[in.B];

  for (std::int64_t r = 0; r < d.n; ++r) {
    for (std::int64_t j = 0; j < d.kept[r]; ++j) {
      const std::int64_t t = d.cu_q[r] + j;
      d.row_of[t] = r;
      d.j[t] = j;
      d.c[t] = std::max<std::int64_t>(0, d.base[r] + j + 1);
      d.position[t] = std::max<std::int64_t>(0, d.c[t] - 1);
    }
  }
  return d;
}

std::optional<std::int64_t> slot_reader::entry(std::int64_t r, std::int64_t column) {
  const std::int64_t q = in_.q[r];
  if (q < 0 || q >= in_.source.rows) {
    add_fault(faults_, {fault_kind::request_index, r, q});
    return std::nullopt;
  }
  if (column < 0) return std::nullopt;
  if (column >= in_.source.width) {
    add_fault(faults_, {fault_kind::column, r, column});
    return std::nullopt;
  }
  last_entry_ = in_.source.entry(q, column);
  const std::int64_t page = in_.source.page_granular ? last_entry_ : last_entry_ / in_.P;
  if (last_entry_ < 0 || (in_.source.pool_pages > 0 && page >= in_.source.pool_pages)) {
    add_fault(faults_, {fault_kind::slot, r, last_entry_});
    return std::nullopt;
  }
  return last_entry_;
}

std::optional<std::int64_t> slot_reader::raw_slot(std::int64_t r, std::int64_t t) {
  if (t < 0) return std::nullopt;
  if (!in_.source.page_granular) return entry(r, t);
  const std::optional<std::int64_t> page = entry(r, t / in_.P);
  if (!page) return std::nullopt;
  return *page * in_.P + t % in_.P;
}

std::optional<std::int64_t> slot_reader::raw_page(std::int64_t r, std::int64_t p) {
  if (in_.source.page_granular) return entry(r, p);
  const std::optional<std::int64_t> slot = entry(r, p * in_.P);
  if (!slot) return std::nullopt;
  return *slot / in_.P;
}

std::optional<std::int64_t> slot_reader::slot(std::int64_t r, std::int64_t t) {
  const std::optional<std::int64_t> raw = raw_slot(r, t);
  if (!raw || !in_.page_map) return raw;
  const std::optional<std::int64_t> page = mapped(*in_.page_map, *raw / in_.P, r);
  if (!page) return std::nullopt;
  return *page * in_.P + *raw % in_.P;
}

std::optional<std::int64_t> slot_reader::page(std::int64_t r, std::int64_t p) {
  const std::optional<std::int64_t> raw = raw_page(r, p);
  if (!raw || !in_.page_map) return raw;
  return mapped(*in_.page_map, raw, r);
}

std::optional<std::int64_t> slot_reader::mapped(const index_map& map, std::optional<std::int64_t> index,
                                                std::int64_t row) {
  if (!index || *index < 0) return std::nullopt;
  if (*index >= map.size) {
    add_fault(faults_, {fault_kind::slot, row, last_entry_});
    return std::nullopt;
  }
  const std::int64_t value = map.entry(*index);
  if (value < 0) return std::nullopt;
  return value;
}

}  // namespace stepgraph::reference
