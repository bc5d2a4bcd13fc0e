#include "tests/reference/sparse.hpp"

#include <algorithm>

namespace stepgraph::reference {
namespace {

// Stores one byte; where two tokens of one slot disagree, either may be there.
void put_byte(vector_output& out, std::int64_t at, std::uint8_t byte) {
  if (out.state[at] != cell::untouched && (out.state[at] == cell::open || out.value[at] != byte)) {
    out.state[at] = cell::open;
    return;
  }
  out.value[at] = byte;
  out.state[at] = cell::defined;
}

std::uint32_t word_at(const std::vector<std::uint8_t>& buffer, std::int64_t at) {
  std::uint32_t word = 0;
  for (int b = 0; b < 4; ++b) word |= static_cast<std::uint32_t>(buffer[at + b]) << (8 * b);  // little-endian
  return word;
}

// Token x of row r lies in page table[r, x / P], place x mod P, and goes to packed row cumsum0(len)[r] + x.
get_output gather(const index_k_gather& in, const std::vector<std::uint8_t>& buffer, const char* op,
                  bool keys, bool scales) {
  constexpr std::int64_t key_bytes = index_k_layout::key_bytes;
  const std::int64_t P = in.layout.P;
  get_output out;
  out.keys = untouched_vector(op, "keys", keys ? in.capacity * key_bytes : 0);
  out.scales = untouched_vector(op, "scales", scales ? in.capacity : 0);

  std::vector<std::int64_t> length;
  for (std::int64_t r = 0; r < in.n; ++r) {
    length.push_back(std::clamp<std::int64_t>(in.len[r], 0, in.table.width * P));
    if (length[r] != in.len[r]) add_fault(out.faults, {fault_kind::length, r, in.len[r]});
  }
  const std::vector<std::int64_t> first = cumsum0(length);
  for (std::int64_t r = 0; r < in.n; ++r) {
    for (std::int64_t x = 0; x < length[r]; ++x) {
      const std::int64_t to = first[r] + x;
      if (to >= in.capacity) {
        add_fault(out.faults, {fault_kind::capacity, r, first[r + 1]});
        continue;
      }
      const std::int64_t entry = in.table.entry(r, x / P);
      const bool has_page = entry >= 0 && (!in.page_map || entry < in.page_map->size);
      const std::int64_t page = has_page && in.page_map ? in.page_map->entry(entry) : entry;
      const bool there = has_page && page >= 0 && page < in.layout.pages;
      // an unmapped page is no fault
      if (!has_page || page >= in.layout.pages) add_fault(out.faults, {fault_kind::page, r, entry});
      const std::int64_t slot = page * P + x % P;
      for (std::int64_t b = 0; keys && b < key_bytes; ++b) {
        if (there) out.keys.value[to * key_bytes + b] = buffer[in.layout.key_at(slot) + b];
        out.keys.state[to * key_bytes + b] = there ? cell::defined : cell::open;
      }
      if (scales) {
        if (there) out.scales.value[to] = word_at(buffer, in.layout.scale_at(slot));
        out.scales.state[to] = there ? cell::defined : cell::open;
      }
    }
  }
  return out;
}

}  // namespace

// Token t's 128 key bytes and its scale go to slot loc[t]: page loc / P, place loc mod P in it. A negative
// slot stores nothing; dead tokens store nothing.
set_k_and_s_output set_k_and_s(const index_k_layout& layout, std::int64_t T,
                               const std::vector<std::int64_t>& loc, const std::vector<std::uint8_t>& keys,
                               const std::vector<std::uint32_t>& scales) {
  constexpr std::int64_t key_bytes = index_k_layout::key_bytes;
  set_k_and_s_output out;
  out.buffer = untouched_vector("set_k_and_s", "buffer", layout.bytes());
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t slot = loc[t];
    if (slot < 0) continue;
    if (slot >= layout.pages * layout.P) {
      add_fault(out.faults, {fault_kind::slot, t, slot});
      continue;
    }
    for (std::int64_t b = 0; b < key_bytes; ++b) {
      put_byte(out.buffer, layout.key_at(slot) + b, keys[t * key_bytes + b]);
    }
    for (int b = 0; b < 4; ++b) {
      put_byte(out.buffer, layout.scale_at(slot) + b, static_cast<std::uint8_t>(scales[t] >> (8 * b)));
    }
  }
  return out;
}

// The keys alone.
get_output get_k(const index_k_gather& in, const std::vector<std::uint8_t>& buffer) {
  return gather(in, buffer, "get_k", true, false);
}

// The scales alone.
get_output get_s(const index_k_gather& in, const std::vector<std::uint8_t>& buffer) {
  return gather(in, buffer, "get_s", false, true);
}

// Both.
get_output get_k_and_s(const index_k_gather& in, const std::vector<std::uint8_t>& buffer) {
  return gather(in, buffer, "get_k_and_s", true, true);
}

// out[t, i] = table[line, topk[t, i]], -1 where the index lies outside the table or the entry is negative.
top_k_to_slots_output top_k_to_slots(const top_k_to_slots_input& in) {
  constexpr const char* op = "top-k to slots";
  const std::int64_t C = static_cast<std::int64_t>(in.row_of.size());
  top_k_to_slots_output out;
  out.slots = make_table(
      op, "slots", C, in.T, in.topk, {}, [&](std::int64_t) { return in.topk; },
      [&](std::int64_t t, std::int64_t i) -> std::int64_t {
        const std::int64_t line = in.expanded ? t : in.row_of[t];
        if (line < 0 || line >= in.table.lines) {
          add_fault(out.faults, {fault_kind::line, t, line});
          return -1;
        }
        const std::int64_t index = in.index(t, i);
        if (index >= in.table.width) add_fault(out.faults, {fault_kind::top_k, t, index});
        if (index < 0 || index >= in.table.width) return -1;
        return std::max<std::int64_t>(in.table.entry(line, index), -1);
      });

  std::vector<std::int64_t> count(in.row_of.size(), 0);
  std::vector<std::int64_t> last(in.row_of.size(), 0);
  for (std::int64_t t = 0; t < in.T; ++t) {
    last[t] = 1;
    for (std::int64_t i = 0; i < in.topk; ++i) {
      if (out.slots.line[t][i] < 0) continue;
      count[t] += 1;
      last[t] = i + 1;
    }
  }
  out.count = fixed_vector(op, "count", count);
  out.last_plus_one = fixed_vector(op, "last_plus_one", last);
  return out;
}

// For the token at pos = c - 1: a = min((pos + 1) / k, topk) compressed indices on the row's compressed base,
// then b = min(pos + 1, w) indices of the gathered window, the oldest first, then -1 up to the padded width. A
// token of the window that was not gathered has no index: it would be one of the row before.
combine_output combine_top_k_and_window(const combine_input& in) {
  constexpr const char* op = "combine top-k and window";
  // tokens of each row, from differences of query_start_loc
  combine_output out;
  std::vector<std::int64_t> row_of, c, len;
  for (std::int64_t r = 0; r < in.n; ++r) {
    len.push_back(std::clamp<std::int64_t>(in.len[r], 0, in.cap));
    if (len[r] != in.len[r]) add_fault(out.faults, {fault_kind::length, r, in.len[r]});
    const std::int64_t E = in.query_start_loc[r + 1] - in.query_start_loc[r];
    for (std::int64_t j = 0; j < E; ++j) {
      if (static_cast<std::int64_t>(row_of.size()) == in.C) {
        add_fault(out.faults, {fault_kind::tokens_dropped, r, E});
        break;
      }
      row_of.push_back(r);
      c.push_back(std::max<std::int64_t>(0, len[r] - E + j + 1));
    }
  }
  const std::int64_t T = static_cast<std::int64_t>(row_of.size());

  std::vector<std::int64_t> length(static_cast<std::size_t>(in.C), 0);
  std::vector<std::vector<std::int64_t>> padded;
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t r = row_of[t];
    const std::int64_t pos = c[t] - 1;
    const std::int64_t a = std::min((pos + 1) / in.ratio, in.topk);
    const std::int64_t b = std::min(pos + 1, in.window);
    const std::int64_t gather_start = len[r] - in.gather_len[r];
    std::vector<std::int64_t> line;
    for (std::int64_t i = 0; i < a; ++i) {
      const std::int64_t index = in.index(t, i);
      line.push_back(index < 0 ? -1 : in.compressed_base[r] + index);
    }
    for (std::int64_t i = 0; i < b; ++i) {
      const std::int64_t gathered = pos - b + 1 - gather_start + i;  // place among the row's gathered tokens
      if (gathered < 0) add_fault(out.faults, {fault_kind::window, r, in.gather_len[r]});
      line.push_back(gathered < 0 ? -1 : in.swa_base[r] + gathered);
    }
    line.resize(static_cast<std::size_t>(in.padded_width()), -1);
    padded.push_back(std::move(line));
    length[t] = a + b;
  }
  out.indices = make_table(
      op, "indices", in.C, T, in.columns > 0 ? in.columns : in.padded_width(), in.tail,
      [&](std::int64_t) { return in.padded_width(); },
      [&](std::int64_t t, std::int64_t i) { return padded[t][i]; });
  out.length = fixed_vector(op, "length", length);
  return out;
}

// Per row g = min(len, E + w - 1) ids full_to_swa[S(q, len - g + i)] at cumsum0(g)[r] + i.
window_token_ids_output window_token_ids(const batch& in, const window_token_ids_options& options) {
  constexpr const char* op = "window token ids";
  const derived d = derive(in);
  window_token_ids_output out;
  // the token bucket plays no part here
  for (const fault& f : d.faults)
    if (f.kind != fault_kind::tokens_dropped) out.faults.push_back(f);
  slot_reader read(in, out.faults);

  std::vector<std::int64_t> g(static_cast<std::size_t>(in.B), 0);
  for (std::int64_t r = 0; r < d.n; ++r) {
    g[r] = std::max<std::int64_t>(0, std::min(d.len[r], d.E[r] + options.window - 1));
  }
  const std::vector<std::int64_t> offset = cumsum0(g);
  out.gather_len = fixed_vector(op, "gather_len", g);
  out.offsets = fixed_vector(op, "offsets", offset);
  out.ids = untouched_vector(op, "ids", options.capacity);
  for (std::int64_t r = 0; r < d.n; ++r) {
    for (std::int64_t i = 0; i < g[r]; ++i) {
      const auto raw = read.raw_slot(r, d.len[r] - g[r] + i);
      const auto id = read.mapped(options.full_to_swa, raw, r);
      if (offset[r] + i >= options.capacity) {
        add_fault(out.faults, {fault_kind::capacity, r, offset[r + 1]});
        continue;
      }
      out.ids.value[offset[r] + i] = id.value_or(options.skip);
      out.ids.state[offset[r] + i] = cell::defined;
    }
  }
  return out;
}

}  // namespace stepgraph::reference
