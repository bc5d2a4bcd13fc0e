#include "tests/allocation_counter.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t calls = 0;
}

std::uint64_t stepgraph::host_allocations() {
  return calls;
}

void* operator new(std::size_t bytes) {
  ++calls;
  if (void* const made = std::malloc(bytes ? bytes : 1)) return made;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++calls;
  return std::malloc(bytes ? bytes : 1);
}
void operator delete(void* pointer, const std::nothrow_t&) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  std::free(pointer);
}
