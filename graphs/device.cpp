#include "graphs/device.hpp"

#include <limits>

#include "graphs/cuda_backend.hpp"
#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"

namespace stepgraph {

device device::cuda(int ordinal) {
  detail::cuda::check_device(ordinal);
  return device(backend::cuda, ordinal);
}

device device::best() noexcept {
  return cuda_count() > 0 ? device(backend::cuda, 0) : host();
}

int device::cuda_count() noexcept {
  return detail::cuda::device_count();
}

std::string device::name() const {
  if (!is_host()) return detail::cuda::device_name(ordinal_);
  const int threads = thread_pool::shared().size();
  return message("host (", threads, threads == 1 ? " thread)" : " threads)");
}

int device::multiprocessors() const {
  return is_host() ? thread_pool::shared().size() : detail::cuda::multiprocessors(ordinal_);
}

std::size_t device::free_bytes() const {
  return is_host() ? std::numeric_limits<std::size_t>::max() : detail::cuda::free_bytes(ordinal_);
}

}  // namespace stepgraph
