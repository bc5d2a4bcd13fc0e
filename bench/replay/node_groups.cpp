#include "bench/replay/node_groups.hpp"

#include <utility>

namespace stepgraph::bench {

const char* to_string(node_group group) noexcept {
  switch (group) {
    case node_group::prologue:
      return "prologue";
    case node_group::metadata:
      return "metadata";
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
  static constexpr std::pair<std::string_view, node_group> table[] = {
      {"step_prologue", node_group::prologue},    {"step_epilogue", node_group::epilogue},
      {"verify_inputs", node_group::speculation}, {"draft_extend_inputs", node_group::speculation},
      {"draft_inputs", node_group::speculation},  {"_accept", node_group::speculation},
      {"finish_rows", node_group::speculation},   {"commit", node_group::speculation},
      {"_metadata", node_group::metadata},        {"token_inputs", node_group::metadata},
      {"page_table", node_group::metadata},       {"kv_indices", node_group::metadata},
      {"split_plan", node_group::metadata},       {"topk", node_group::metadata},
      {"index_k", node_group::metadata},          {"combine", node_group::metadata},
      {"window_token_ids", node_group::metadata}, {"attention", node_group::attention},
      {"dead_blocks", node_group::attention},     {"sample", node_group::sampling},
      {"argmax", node_group::sampling},           {"target_distribution", node_group::sampling},
  };
  for (const auto& [part, group] : table)
    if (name.find(part) != std::string_view::npos) return group;
  return node_group::model;
}

}  // namespace stepgraph::bench
