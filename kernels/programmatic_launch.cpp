#include "kernels/programmatic_launch.hpp"

namespace stepgraph {
namespace {

thread_local bool allowed_now = true;

}  // namespace

programmatic_launch_scope::programmatic_launch_scope(bool allowed) noexcept : before_(allowed_now) {
  allowed_now = before_ && allowed;
}

programmatic_launch_scope::~programmatic_launch_scope() {
  allowed_now = before_;
}

bool programmatic_launches() noexcept {
  return allowed_now;
}

}  // namespace stepgraph
