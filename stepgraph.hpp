#pragma once

// Everything that an embedder uses.
#include "graphs/arena.hpp"                       // IWYU pragma: export
#include "graphs/counters.hpp"                    // IWYU pragma: export
#include "graphs/error.hpp"                       // IWYU pragma: export
#include "graphs/graph.hpp"                       // IWYU pragma: export
#include "graphs/memory_resource.hpp"             // IWYU pragma: export
#include "graphs/stream.hpp"                      // IWYU pragma: export
#include "kernels/attention/paged_attention.hpp"  // IWYU pragma: export
#include "kernels/metadata/decode_metadata.hpp"   // IWYU pragma: export
#include "kernels/metadata/token_inputs.hpp"      // IWYU pragma: export
#include "kernels/sample/greedy_sample.hpp"       // IWYU pragma: export
#include "runtime/step_executor.hpp"              // IWYU pragma: export
