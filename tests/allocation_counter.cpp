#include "tests/allocation_counter.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local std::uint64_t calls = 0;
thread_local std::uint64_t failing = 0;  // from this value of `calls` on one fails; 0: none
std::atomic<std::int64_t> live = 0;

void* allocate(std::size_t bytes) noexcept {
  ++calls;
  void* const made = std::malloc(bytes ? bytes : 1);
  if (made) live.fetch_add(1, std::memory_order_relaxed);
  return made;
}

void deallocate(void* pointer) noexcept {
  if (pointer) live.fetch_sub(1, std::memory_order_relaxed);
  std::free(pointer);
}

}  // namespace

std::uint64_t stepgraph::host_allocations() {
  return calls;
}

std::int64_t stepgraph::live_host_allocations() {
  return live.load(std::memory_order_relaxed);
}

void stepgraph::fail_host_allocation(std::uint64_t number) {
  failing = number == 0 ? 0 : calls + number;
}

void* operator new(std::size_t bytes) {
  if (failing > 0 && calls + 1 >= failing) {
    failing = 0;
    throw std::bad_alloc();
  }
  if (void* const made = allocate(bytes)) return made;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void operator delete(void* pointer, const std::nothrow_t&) noexcept {
  deallocate(pointer);
}
void operator delete(void* pointer) noexcept {
  deallocate(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  deallocate(pointer);
}
