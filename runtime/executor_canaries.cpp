#include <algorithm>

#include "runtime/executor_state.hpp"

namespace stepgraph {

// note: what is undefined in a step's block is filled before each step, canaries included, so theirs are the same
unsigned char step_executor::state::canary_of(const arena& block) const {
  return &block == &blocks.step ? wild : 0xc5;
}

/// Before a block is used.
void step_executor::state::mark_canaries(const arena& block) {
  if (!options.poison) return;
  for (const std::span<std::byte> gap : block.gaps()) {
    if (in_host_memory(block))
      std::ranges::fill(gap, std::byte{canary_of(block)});
    else if (!gap.empty())
      stream.fill(gap.data(), canary_of(block), gap.size());
  }
}

std::optional<std::string> step_executor::state::first_overrun(const arena& block) const {
  const std::vector<std::span<std::byte>> gaps = block.gaps();
  std::vector<std::vector<std::byte>> read;
  for (const std::span<std::byte> gap : gaps) {
    std::vector<std::byte>& bytes = read.emplace_back();
    bytes.resize(gap.size());
    if (!gap.empty()) stream.copy(bytes.data(), gap.data(), gap.size());
  }
  stream.synchronize();
  for (std::size_t i = 0; i < read.size(); ++i)
    if (!std::ranges::all_of(read[i], [&](std::byte each) { return each == std::byte{canary_of(block)}; }))
      return block.carvings()[i].name;
  return std::nullopt;
}

std::optional<std::string> step_executor::overrun() const {
  const one_thread guard(state_->busy);
  const state& s = *state_;
  STEPGRAPH_EXPECTS(s.options.poison, "step_executor::overrun: needs executor_options::poison");
  s.stream.synchronize();
  for (const arena* const block : {&s.blocks.step, &s.blocks.lasting, &s.ring_block, &s.pinned_block})
    if (std::optional<std::string> name = s.first_overrun(*block)) return name;
  return std::nullopt;
}

}  // namespace stepgraph
