#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "graphs/device.hpp"

namespace stepgraph {

/// Where memory comes from. Derive from it to hand out an engine's own pool. Allocation is never part of a
/// replay.
class memory_resource {
 public:
  virtual ~memory_resource() = default;

  /// `bytes` aligned to 256, usable on `where()`. Throws `out_of_memory` with the numbers; refused during a
  /// capture.
  void* allocate(std::size_t bytes);

  void deallocate(void* pointer, std::size_t bytes) noexcept { do_deallocate(pointer, bytes); }

  virtual device where() const noexcept = 0;

  /// Bytes that can be had, as far as the resource knows; by default no limit.
  virtual std::size_t available() const { return std::numeric_limits<std::size_t>::max(); }

 private:
  virtual void* do_allocate(std::size_t bytes) = 0;
  virtual void do_deallocate(void* pointer, std::size_t bytes) noexcept = 0;
};

/// Memory that kernels of `where` work on: cudaMalloc, or aligned host memory. Lives as long as the process.
memory_resource& device_memory(device where);

/// Host memory that the kernels and copies of `where` reach without staging: pinned and mapped, or aligned
/// host memory.
memory_resource& pinned_memory(device where);

/// Empty if work of `where` can reach the memory that `pointer` is in, else whose memory it is. Asks the driver, so it
/// is for checks before anything is captured. On the host every address of the process will do.
std::string foreign_memory(device where, const void* pointer);

/// Owns a block of bytes from a resource. Move-only.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(memory_resource& from, std::size_t bytes)
      : from_(&from), data_(bytes ? from.allocate(bytes) : nullptr), bytes_(bytes) {}
  ~buffer() {
    if (data_) from_->deallocate(data_, bytes_);
  }
  buffer(buffer&& other) noexcept
      : from_(other.from_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const noexcept { return bytes_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  memory_resource* from_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace stepgraph
