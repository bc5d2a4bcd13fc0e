#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "graphs/memory_resource.hpp"

namespace stepgraph {

/// One named part of an arena.
struct carving_info {
  std::string name;
  std::size_t offset;  // bytes from the arena's start, a multiple of 256
  std::size_t bytes;
};

/// The claim to `count` elements of an arena that is still to be allocated.
template <class T>
struct carving {
  std::size_t offset = 0;  // bytes
  std::size_t count = 0;   // elements
};

/// Counts first: collects named carvings, so that the whole need is known before anything is allocated.
class arena_plan {
 public:
  /// `gap`: bytes behind each carving that belong to nobody, at least; see `arena::gaps`.
  explicit arena_plan(std::size_t gap = 0) noexcept : gap_(gap) {}

  /// Adds `count` elements under `name`. Throws `invalid_argument` if the size does not fit in 64 bits.
  template <class T>
  carving<T> add(std::string name, std::size_t count) {
    return {add_bytes(std::move(name), count, sizeof(T)), count};
  }

  /// Adds what `other` has, behind it: several blocks' need in one.
  void append(const arena_plan& other);

  std::size_t bytes() const noexcept { return bytes_; }
  std::span<const carving_info> carvings() const noexcept { return carvings_; }

 private:
  std::size_t add_bytes(std::string name, std::size_t count, std::size_t size);
  std::vector<carving_info> carvings_;
  std::size_t bytes_ = 0;
  std::size_t gap_;
};

/// Throws `out_of_memory` with the bytes needed, the bytes there and the largest carvings if the plan does not
/// fit in `budget` and in what `from` has.
void require_memory(const arena_plan& plan, const memory_resource& from, std::size_t budget);

/// Allocates a plan once, from one resource. Move-only; views stay valid as long as it lives.
class arena {
 public:
  static constexpr std::size_t no_budget = std::numeric_limits<std::size_t>::max();

  arena() noexcept = default;

  /// Throws as `require_memory` does; then nothing has been allocated.
  arena(arena_plan plan, memory_resource& from, std::size_t budget = no_budget);

  template <class T>
  std::span<T> view(carving<T> part) const {
    return {reinterpret_cast<T*>(block_.data() + part.offset), part.count};
  }

  std::size_t bytes() const noexcept { return block_.bytes(); }
  std::byte* data() const noexcept { return block_.data(); }
  std::span<const carving_info> carvings() const noexcept { return carvings_; }

  /// What lies behind each carving, up to the next: nobody's bytes, in which a write past a carving's end shows.
  /// Empty where a carving is, or where it ends at the next one's start.
  std::vector<std::span<std::byte>> gaps() const;

 private:
  std::vector<carving_info> carvings_;
  buffer block_;
};

}  // namespace stepgraph
