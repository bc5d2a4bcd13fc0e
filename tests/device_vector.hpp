#pragma once

#include <cstring>
#include <vector>

#include "graphs/memory_resource.hpp"
#include "graphs/stream.hpp"

namespace stepgraph {

/// A vector in device memory for tests: made from host values, read back by copies that wait.
template <class T>
class device_vector {
 public:
  device_vector(stream_ref at, const std::vector<T>& values) : at_(at), size_(values.size()) {
    block_ = buffer(device_memory(at.where()), size_ * sizeof(T) + 16);
    set(values);
  }
  device_vector(stream_ref at, std::size_t size, T value) : device_vector(at, std::vector<T>(size, value)) {}

  T* data() const { return block_.as<T>(); }
  std::size_t size() const { return size_; }

  void set(const std::vector<T>& values) {
    at_.copy(block_.data(), values.data(), values.size() * sizeof(T));
    at_.synchronize();
  }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    at_.copy(values.data(), block_.data(), size_ * sizeof(T));
    at_.synchronize();
    return values;
  }

 private:
  stream_ref at_;
  std::size_t size_;
  buffer block_;
};

}  // namespace stepgraph
