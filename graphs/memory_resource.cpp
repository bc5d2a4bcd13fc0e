#include "graphs/memory_resource.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "graphs/counters.hpp"
#include "graphs/cuda_backend.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"

namespace stepgraph {
namespace {

constexpr std::align_val_t alignment{256};

class host_memory final : public memory_resource {
 public:
  device where() const noexcept override { return device::host(); }
  std::size_t available() const override { return device::host().free_bytes(); }

 private:
  void* do_allocate(std::size_t bytes) override {
    try {
      return ::operator new(bytes, alignment);
    } catch (const std::bad_alloc&) {
      throw out_of_memory(message("host memory: ", bytes, " bytes refused"), bytes, 0);
    }
  }
  void do_deallocate(void* pointer, std::size_t) noexcept override { ::operator delete(pointer, alignment); }
};

class cuda_memory final : public memory_resource {
 public:
  explicit cuda_memory(device where) : where_(where) {}
  device where() const noexcept override { return where_; }
  std::size_t available() const override { return where_.free_bytes(); }

 private:
  void* do_allocate(std::size_t bytes) override { return detail::cuda::allocate(where_.ordinal(), bytes); }
  void do_deallocate(void* pointer, std::size_t) noexcept override { detail::cuda::deallocate(pointer); }
  device where_;
};

class cuda_pinned final : public memory_resource {
 public:
  explicit cuda_pinned(device where) : where_(where) {}
  device where() const noexcept override { return where_; }

 private:
  void* do_allocate(std::size_t bytes) override {
    return detail::cuda::allocate_pinned(where_.ordinal(), bytes);
  }
  void do_deallocate(void* pointer, std::size_t) noexcept override {
    detail::cuda::deallocate_pinned(pointer);
  }
  device where_;
};

template <class Resource>
memory_resource& resource_of(device where) {
  // never destroyed: buffers of static lifetime may outlive any order of destruction
  static auto* const lock = new std::mutex;
  static auto* const made = new std::map<int, std::unique_ptr<Resource>>;
  const std::scoped_lock guard(*lock);
  auto& entry = (*made)[where.ordinal()];
  if (!entry) entry = std::make_unique<Resource>(where);
  return *entry;
}

memory_resource& shared_host_memory() {
  static auto* const resource = new host_memory;
  return *resource;
}

}  // namespace

void* memory_resource::allocate(std::size_t bytes) {
  detail::refuse_in_capture("an allocation");
  void* const pointer = do_allocate(bytes);
  ++detail::activity_totals().allocations;
  return pointer;
}

memory_resource& device_memory(device where) {
  return where.is_host() ? shared_host_memory() : resource_of<cuda_memory>(where);
}

memory_resource& pinned_memory(device where) {
  return where.is_host() ? shared_host_memory() : resource_of<cuda_pinned>(where);
}

std::string foreign_memory(device where, const void* pointer) {
  return where.is_host() ? std::string() : detail::cuda::foreign_memory(where.ordinal(), pointer);
}

}  // namespace stepgraph
