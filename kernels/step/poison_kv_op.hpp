#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/step/poison_kv.hpp"

namespace stepgraph {

/// Writes how many tokens of each page are live: a team a request. A page belongs to one request.
struct mark_live_op {
  static constexpr const char* name = "mark_live";
  struct scratch {};
  poison_kv_params p;

  STEPGRAPH_HD int rows() const { return p.source.requests; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int request) const {
    if (p.open[request] == 0) return;
    const std::int64_t tokens = p.source.token_columns(), page_size = std::int64_t{1} << p.source.page_shift;
    const std::int64_t given = p.seq_lens[request], length = given > tokens ? tokens : given;
    for (std::int64_t i = team.rank(); i * page_size < length; i += team.size()) {
      const std::int64_t page = p.source.page(request, i), left = length - i * page_size;
      if (page >= 0 && page < p.pages)
        p.live_tokens[page] = static_cast<std::int32_t>(left < page_size ? left : page_size);
    }
  }
};

/// Fills the rest of each page: a team a page.
struct poison_kv_op {
  static constexpr const char* name = "poison_kv";
  struct scratch {};
  poison_kv_params p;

  struct alignas(16) piece {
    std::uint64_t low, high;
  };

  STEPGRAPH_HD int rows() const { return p.pages; }

  template <class Team>
  STEPGRAPH_HD void row(Team& team, scratch&, int page) const {
    const std::int64_t live = p.live_tokens[page] * p.token_bytes, dead = (p.page_bytes - live) / 16;
    const std::uint64_t nan = ~std::uint64_t{0};
    for (int plane = 0; plane < p.planes; ++plane) {
      auto* const at = reinterpret_cast<piece*>(static_cast<char*>(p.pool) + plane * p.plane_stride +
                                                page * p.page_bytes + live);
      for (std::int64_t i = team.rank(); i < dead; i += team.size()) at[i] = {nan, nan};
    }
  }
};

}  // namespace stepgraph
