#include "graphs/counters.hpp"

namespace stepgraph {

detail::activity_counters& detail::activity_totals() noexcept {
  static activity_counters totals{};
  return totals;
}

activity activity_now() noexcept {
  const auto& totals = detail::activity_totals();
  return {totals.captures, totals.instantiations, totals.updates,
          totals.launches, totals.allocations,    totals.synchronizations};
}

}  // namespace stepgraph
