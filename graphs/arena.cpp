#include "graphs/arena.hpp"

#include <algorithm>

#include "graphs/error.hpp"
#include "graphs/guard_off.hpp"

namespace stepgraph {
namespace {

constexpr std::size_t alignment = 256;

std::string largest_carvings(std::span<const carving_info> carvings) {
  std::vector<carving_info> sorted(carvings.begin(), carvings.end());
  std::ranges::sort(sorted, std::ranges::greater{}, &carving_info::bytes);
  if (sorted.size() > 4) sorted.resize(4);
  std::string text;
  for (const carving_info& part : sorted)
    text += message(text.empty() ? "" : ", ", part.name, " ", part.bytes);
  return text;
}

}  // namespace

std::size_t arena_plan::add_bytes(std::string name, std::size_t count, std::size_t size) {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 4;
  STEPGRAPH_EXPECTS(count <= most / size && bytes_ <= most - count * size, "arena: carving ", name, " of ",
                    count, " x ", size, " bytes is too large");
  const std::size_t offset = bytes_;
  carvings_.push_back({std::move(name), offset, count * size});
  const std::size_t gap = count > 0 ? gap_ : 0;
  bytes_ = (offset + count * size + gap + alignment - 1) / alignment * alignment;
  return offset;
}

void arena_plan::append(const arena_plan& other) {
  for (const carving_info& each : other.carvings_)
    carvings_.push_back({each.name, bytes_ + each.offset, each.bytes});
  bytes_ += other.bytes_;
}

void require_memory(const arena_plan& plan, const memory_resource& from, std::size_t budget) {
  const std::size_t needed = plan.bytes();
  const std::size_t there =
      std::min(guard_off("memory-budget") ? arena::no_budget : budget, from.available());
  if (needed > there)
    throw out_of_memory(message("arena: ", needed, " bytes needed, ", there,
                                " there; largest carvings: ", largest_carvings(plan.carvings())),
                        needed, there);
}

arena::arena(arena_plan plan, memory_resource& from, std::size_t budget)
    : carvings_(plan.carvings().begin(), plan.carvings().end()) {
  require_memory(plan, from, budget);
  block_ = buffer(from, plan.bytes());
}

std::vector<std::span<std::byte>> arena::gaps() const {
  std::vector<std::span<std::byte>> all;
  for (std::size_t i = 0; i < carvings_.size(); ++i) {
    const std::size_t from = carvings_[i].offset + carvings_[i].bytes;
    const std::size_t to = i + 1 < carvings_.size() ? carvings_[i + 1].offset : bytes();
    all.emplace_back(block_.data() + from, carvings_[i].bytes > 0 ? to - from : 0);
  }
  return all;
}

}  // namespace stepgraph
