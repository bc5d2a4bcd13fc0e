#pragma once

#include <vector>

#include "graphs/arena.hpp"
#include "tests/test_device.hpp"

namespace stepgraph {

/// Says where the executor's two blocks lie, so that a test can look at every carving.
class seen_memory final : public memory_resource {
 public:
  device where() const noexcept override { return test_device(); }

  /// What lasts is allocated first, then the steps' block, whose carvings are listed first.
  std::byte* at(const carving_info& carving) const {
    const std::size_t step_bytes = bytes.back();
    return of_step(carving) ? blocks.back() + carving.offset : blocks.front() + (carving.offset - step_bytes);
  }
  bool of_step(const carving_info& carving) const { return carving.offset < bytes.back(); }

 private:
  void* do_allocate(std::size_t size) override {
    void* const made = device_memory(where()).allocate(size);
    blocks.push_back(static_cast<std::byte*>(made));
    bytes.push_back(size);
    return made;
  }
  void do_deallocate(void* pointer, std::size_t size) noexcept override {
    device_memory(where()).deallocate(pointer, size);
  }
  std::vector<std::byte*> blocks;
  std::vector<std::size_t> bytes;
};

}  // namespace stepgraph
