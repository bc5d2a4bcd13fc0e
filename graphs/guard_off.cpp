#include "graphs/guard_off.hpp"

#if defined(STEPGRAPH_MUTATIONS)
#include <cstdlib>
#include <cstring>

namespace stepgraph {

bool guard_off(const char* id) noexcept {
  static const char* const off = std::getenv("STEPGRAPH_GUARD_OFF");
  return off && std::strcmp(off, id) == 0;
}

}  // namespace stepgraph
#endif
