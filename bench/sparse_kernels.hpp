#pragma once

#include <vector>

#include "kernels/sparse/combine_top_k_and_window.hpp"
#include "kernels/sparse/index_k_cache.hpp"
#include "kernels/sparse/top_k_to_slots.hpp"

/// The sparse-attention index kernels launched in other shapes than the library does, to see what its own
/// choice is worth.
namespace stepgraph::bench {

template <class Params>
struct kernel_variant {
  const char* name;
  void (*enqueue)(stream_ref, const Params&);
};

const std::vector<kernel_variant<get_k_and_s_params>>& gather_variants();
const std::vector<kernel_variant<top_k_to_slots_params>>& top_k_variants();
const std::vector<kernel_variant<combine_top_k_and_window_params>>& combine_variants();

}  // namespace stepgraph::bench
