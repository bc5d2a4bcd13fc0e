#include "tests/reference/kv_split.hpp"

#include <algorithm>
#include <sstream>

namespace stepgraph::reference {
namespace {

std::string at(std::size_t i, const kv_chunk& chunk, const char* what) {
  std::ostringstream out;
  out << "kv split: chunk " << i << " (row " << chunk.row << ", [" << chunk.begin << ", " << chunk.end
      << ")) " << what;
  return out.str();
}

// The ends of each row's chunks, in order; empty chunks do not count.
std::vector<std::vector<std::int64_t>> ends_of(const std::vector<kv_chunk>& chunks, std::size_t rows) {
  std::vector<std::vector<std::int64_t>> out(rows);
  for (const kv_chunk& chunk : chunks) {
    if (chunk.begin != chunk.end) out.at(static_cast<std::size_t>(chunk.row)).push_back(chunk.end);
  }
  return out;
}

}  // namespace

// Chunks of a row cover [0, len) exactly, in order, without overlap; all but a row's last are multiples of
// the tile; at most max_splits a row, capacity in all.
std::string check_kv_split(const std::vector<kv_chunk>& chunks, const std::vector<std::int64_t>& len,
                           std::int64_t tile, std::int64_t max_splits, std::int64_t capacity) {
  std::ostringstream out;
  if (static_cast<std::int64_t>(chunks.size()) > capacity) {
    out << "kv split: " << chunks.size() << " chunks, capacity " << capacity;
    return out.str();
  }
  std::vector<std::int64_t> covered(len.size(), 0);
  std::vector<std::int64_t> count(len.size(), 0);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const kv_chunk& chunk = chunks[i];
    if (chunk.row < 0 || chunk.row >= static_cast<std::int64_t>(len.size()))
      return at(i, chunk, "is of no live row");
    const std::int64_t length = len[chunk.row];
    if (chunk.begin != covered[chunk.row])
      return at(i, chunk, "does not begin where the one before it ended");
    if (chunk.end > length) return at(i, chunk, "ends past its row");
    if (chunk.end < chunk.begin) return at(i, chunk, "ends before it begins");
    if (chunk.end == chunk.begin && length > 0) return at(i, chunk, "is empty");
    if (chunk.end < length && (chunk.end - chunk.begin) % tile != 0)
      return at(i, chunk, "is no multiple of the tile");
    covered[chunk.row] = chunk.end;
    count[chunk.row] += 1;
    if (count[chunk.row] > (length > 0 ? max_splits : 1)) return at(i, chunk, "is one too many of its row");
  }
  for (std::size_t r = 0; r < len.size(); ++r) {
    if (covered[r] != len[r]) {
      out << "kv split: row " << r << " is covered up to " << covered[r] << " of " << len[r];
      return out.str();
    }
  }
  return {};
}

// Each chunk goes to the worker that is free first.
kv_split_balance balance_of(const std::vector<kv_chunk>& chunks, std::int64_t workers) {
  kv_split_balance out;
  std::vector<std::int64_t> load(static_cast<std::size_t>(workers), 0);
  for (const kv_chunk& chunk : chunks) {
    const std::int64_t tokens = chunk.end - chunk.begin;
    *std::min_element(load.begin(), load.end()) += tokens;
    out.total += tokens;
    out.longest = std::max(out.longest, tokens);
  }
  out.makespan = *std::max_element(load.begin(), load.end());
  if (out.total > 0) {
    out.ratio =
        static_cast<double>(out.makespan) * static_cast<double>(workers) / static_cast<double>(out.total);
  }
  return out;
}

// A row's chunks depend on its own length alone: equal lengths, equal chunks.
std::string check_batch_invariant(const std::vector<kv_chunk>& a, const std::vector<std::int64_t>& len_a,
                                  const std::vector<kv_chunk>& b, const std::vector<std::int64_t>& len_b) {
  const auto ends_a = ends_of(a, len_a.size());
  const auto ends_b = ends_of(b, len_b.size());
  for (std::size_t ra = 0; ra < len_a.size(); ++ra) {
    for (std::size_t rb = 0; rb < len_b.size(); ++rb) {
      if (len_a[ra] != len_b[rb]) continue;
      if (ends_a[ra] != ends_b[rb]) {
        std::ostringstream out;
        out << "kv split: rows " << ra << " and " << rb << " are both " << len_a[ra]
            << " long but split differently";
        return out.str();
      }
    }
  }
  return {};
}

}  // namespace stepgraph::reference
