#pragma once

#include <array>
#include <string_view>

namespace stepgraph::bench {

/// What a step's nodes are there for.
enum class node_group { prologue, metadata, indices, attention, model, sampling, speculation, epilogue };

inline constexpr std::array all_groups{node_group::prologue,    node_group::metadata, node_group::indices,
                                       node_group::attention,   node_group::model,    node_group::sampling,
                                       node_group::speculation, node_group::epilogue};

const char* to_string(node_group group) noexcept;

/// The group of a node by its name: on the host the op's, on a GPU the kernel's mangled one, which holds it.
/// What no table entry knows (cuBLAS, the model's own kernels) is the model's.
node_group group_of(std::string_view node_name) noexcept;

}  // namespace stepgraph::bench
