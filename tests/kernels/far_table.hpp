#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "graphs/memory_resource.hpp"
#include "graphs/stream.hpp"

namespace stepgraph {

/// Far more int32 than are ever touched: device memory, or address space of the host without memory behind
/// it.
class far_table {
 public:
  far_table(stream_ref at, std::int64_t entries) : at_(at), bytes_(entries * 4) {
    if (!at.is_host()) {
      block_ = buffer(device_memory(at.where()), bytes_);
      data_ = block_.as<std::int32_t>();
      return;
    }
    void* const mapped =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("no address space for a far table");
    data_ = static_cast<std::int32_t*>(mapped);
  }
  ~far_table() {
    if (at_.is_host()) munmap(data_, bytes_);
  }
  far_table(const far_table&) = delete;
  far_table& operator=(const far_table&) = delete;

  std::int32_t* data() const { return data_; }
  void set(std::int64_t first, const std::vector<std::int32_t>& values) const {
    at_.copy(data_ + first, values.data(), values.size() * 4);
    at_.synchronize();
  }
  std::vector<std::int32_t> get(std::int64_t first, std::int64_t count) const {
    std::vector<std::int32_t> values(count);
    at_.copy(values.data(), data_ + first, count * 4);
    at_.synchronize();
    return values;
  }

 private:
  stream_ref at_;
  std::size_t bytes_;
  buffer block_;
  std::int32_t* data_ = nullptr;
};

}  // namespace stepgraph
