#include "bench/replay/node_groups.hpp"

namespace stepgraph::bench {

const char* to_string(node_group group) noexcept {
  switch (group) {
    case node_group::prologue:
      return "prologue";
    case node_group::metadata:
      return "metadata";
    case node_group::indices:
      return "sparse indices";
    case node_group::attention:
      return "attention";
    case node_group::model:
      return "model";
    case node_group::sampling:
      return "sampling";
    case node_group::speculation:
      return "speculation";
    case node_group::epilogue:
      return "epilogue";
  }
  return "unknown";
}

node_group group_of(std::string_view name) noexcept {
  // the first that fits: an op that embeds another's body comes before it
  struct entry {
    std::string_view part;
    node_group group;
  };
  static constexpr entry table[] = {
      {"step_prologue", node_group::prologue},
      {"verify_prologue", node_group::prologue},
      {"draft_prologue", node_group::prologue},
      {"step_epilogue", node_group::epilogue},
      {"verify_inputs", node_group::speculation},
      {"draft_extend_inputs", node_group::speculation},
      {"_accept", node_group::speculation},
      {"finish_rows", node_group::speculation},
      {"commit", node_group::speculation},
      {"k_and_s", node_group::indices},
      {"top_k", node_group::indices},
      {"window_token_ids", node_group::indices},
      {"_metadata", node_group::metadata},
      {"token_inputs", node_group::metadata},
      {"page_table", node_group::metadata},
      {"kv_indices", node_group::metadata},
      {"split_plan", node_group::metadata},
      {"attention", node_group::attention},
      {"dead_blocks", node_group::attention},
      {"sample", node_group::sampling},
      {"target_distribution", node_group::sampling},
  };
  for (const auto& [part, group] : table)
    if (name.find(part) != std::string_view::npos) return group;
  return node_group::model;
}

}  // namespace stepgraph::bench
