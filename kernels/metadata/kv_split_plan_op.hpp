#pragma once

#include "kernels/columns.hpp"
#include "kernels/divisor.hpp"
#include "kernels/metadata/kv_split_plan.hpp"
#include "kernels/tile_driver.hpp"

namespace stepgraph {

/// Body of `kv_split_plan`.
struct kv_split_plan_op {
  static constexpr const char* name = "kv_split_plan";
  static constexpr op_id id = op_id::kv_split_plan;
  static constexpr int tile_columns = 0;  // vectors only
  kv_split_plan_params p;
  divisor by_tile, by_max_splits, by_wanted;
  std::int32_t
      wanted;  // chunks for an even share: four a worker, as few as the capacity leaves after one a row

  explicit kv_split_plan_op(const kv_split_plan_params& params)
      : p(params),
        by_tile(params.tile),
        by_max_splits(params.max_splits),
        by_wanted(wanted_chunks(params)),
        wanted(wanted_chunks(params)) {}

  /// Where the numbers of a thread's first row lie.
  using place = row_lengths::place;
  template <class Team>
  STEPGRAPH_HD place vectors_place(const Team& team) const {
    return p.lengths.place_of(team.rank() < p.lengths.rows ? team.rank() : 0);
  }
  template <class Team>
  STEPGRAPH_HD void vectors(Team& team) const {
    vectors(team, vectors_place(team));
  }

  template <class Team>
  STEPGRAPH_HD void vectors(Team& team, const place& at) const {
    const int rows = p.lengths.rows;
    // note: a thread's first row stays in registers
    std::int64_t first_length = 0;
    if (team.rank() < rows) first_length = p.lengths.length_reported(team.rank(), at, p.faults, id);
    std::uint32_t share = 1;
    if (!p.batch_invariant) {
      std::int64_t mine = tiles(first_length);
      STEPGRAPH_NO_UNROLL
      for (int row = team.rank() + team.size(); row < rows; row += team.size())
        mine += tiles(p.lengths.length(row));
      share = share_of(team.sum_of(mine));
    }
    std::int64_t before = 0;
    if (team.rank() == 0) p.cu_chunks[0] = 0;
    STEPGRAPH_NO_UNROLL
    for (int base = 0; base < rows; base += team.size()) {
      const int row = base + team.rank();
      std::int64_t length = first_length;
      if (base > 0) length = row < rows ? p.lengths.length_reported(row, p.faults, id) : 0;
      const std::uint32_t row_tiles = tiles(length);
      const std::uint32_t least = by_max_splits(row_tiles + p.max_splits - 1);
      const std::uint32_t each = share < least || p.batch_invariant ? least : share;
      const bool whole = each >= row_tiles;
      const std::int32_t count = row_tiles == 0 ? 0
                                 : whole        ? 1
                                                : static_cast<std::int32_t>(up(row_tiles, each));
      const auto sum = team.exclusive_sum(count);
      const auto first = static_cast<std::int32_t>(before + sum.before);
      if (row < rows) p.cu_chunks[row + 1] = first + count;
      const std::int32_t step =
          whole ? static_cast<std::int32_t>(length) : static_cast<std::int32_t>(each * p.tile);
      const int items = rows - base < team.size() ? rows - base : team.size();
      const row_chunks mine{row, first, step, static_cast<std::int32_t>(length)};
      const auto write = [&](const row_chunks& of, std::int32_t k) { write_chunk(of, k); };
      if (std::int64_t{4} * rows <= wanted)
        team.template spread<8>(items, mine, count, write);
      else
        team.template spread<2>(items, mine, count, write);
      before += sum.total;
    }
  }

 private:
  /// A row's chunks: where they go, and tokens of each but the last.
  struct alignas(16) row_chunks {
    std::int32_t row, first, step, length;
  };

  static std::int32_t wanted_chunks(const kv_split_plan_params& p) {
    const std::int64_t room = std::int64_t{p.capacity} - p.lengths.rows;
    const std::int64_t wanted = std::int64_t{4} * p.workers;
    return static_cast<std::int32_t>(room < wanted ? room : wanted);
  }

  /// ceil(a / b) of numbers below 2^31.
  STEPGRAPH_HD static std::uint32_t up(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }
  STEPGRAPH_HD std::uint32_t tiles(std::int64_t length) const {
    const std::int64_t of = guard_off("frozen-plan") ? p.lengths.cap : length;
    return of > 0 ? by_tile(static_cast<std::uint32_t>(of) + p.tile - 1) : 0;
  }

  /// The even share of `all` tiles.
  STEPGRAPH_HD std::uint32_t share_of(std::int64_t all) const {
    if (wanted <= 0) return most(all);
    const std::int64_t raised = all + wanted - 1;
    if (raised >> 32 == 0) return most(by_wanted(static_cast<std::uint32_t>(raised)));
    // more tiles than 32 bits count: rounded up to 65,536, for a division of 64 bits is a call
    const std::int64_t high = raised >> 16;
    return most((std::int64_t{by_wanted(high >> 32 == 0 ? static_cast<std::uint32_t>(high) : UINT32_MAX)} + 1)
                << 16);
  }
  /// `tiles`, at least one; more than a row has are as many as it has.
  STEPGRAPH_HD static std::uint32_t most(std::int64_t tiles) {
    return tiles < 1 ? 1 : tiles < INT32_MAX ? static_cast<std::uint32_t>(tiles) : INT32_MAX;
  }

  STEPGRAPH_HD void write_chunk(const row_chunks& of, std::int32_t k) const {
    const std::int32_t begin = k * of.step, rest = of.length - begin;
    kv_split_chunk* const to = p.chunks + of.first + k;
    const kv_split_chunk chunk{of.row, begin, rest < of.step ? of.length : begin + of.step, k};
    if (aligned16(p.chunks))
      *reinterpret_cast<quad*>(to) = quad{{chunk.row, chunk.begin, chunk.end, chunk.index}};
    else
      *to = chunk;
  }
};

}  // namespace stepgraph
