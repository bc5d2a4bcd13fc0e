#pragma once

#include <cstddef>
#include <string>

namespace stepgraph {

enum class backend { host, cuda };

/// Where work runs: the host backend, or one CUDA device. A value; compares by what it names.
class device {
 public:
  /// The host backend, always there.
  static device host() noexcept { return device(backend::host, 0); }

  /// CUDA device `ordinal`. Throws `cuda_error` with the driver's reason if there is none, or if the library
  /// was built without CUDA.
  static device cuda(int ordinal = 0);

  /// CUDA device 0 where there is one, else the host.
  static device best() noexcept;

  /// CUDA devices that can be used, 0 without a driver or in a host-only build.
  static int cuda_count() noexcept;

  backend kind() const noexcept { return kind_; }
  bool is_host() const noexcept { return kind_ == backend::host; }
  int ordinal() const noexcept { return ordinal_; }

  /// "host (2 threads)" or the GPU's marketing name.
  std::string name() const;

  /// Streaming multiprocessors; for the host, the threads of its pool.
  int multiprocessors() const;

  /// Bytes of device memory free at the moment; for the host, the greatest size.
  std::size_t free_bytes() const;

  friend bool operator==(const device&, const device&) = default;

 private:
  device(backend kind, int ordinal) noexcept : kind_(kind), ordinal_(ordinal) {}
  backend kind_;
  int ordinal_;
};

}  // namespace stepgraph
