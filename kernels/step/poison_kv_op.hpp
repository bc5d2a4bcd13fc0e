#pragma once

#include "kernels/sample/row_driver.hpp"
#include "kernels/step/poison_kv.hpp"

namespace stepgraph {

/// Body of `poison_kv`: a team a page.
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
    const std::int64_t live = live_bytes(p.owners[page]), dead = (p.page_bytes - live) / 16;
    const std::uint64_t nan = ~std::uint64_t{0};
    for (int plane = 0; plane < p.planes; ++plane) {
      auto* const at = reinterpret_cast<piece*>(static_cast<char*>(p.pool) + plane * p.plane_stride +
                                                page * p.page_bytes + live);
      for (std::int64_t i = team.rank(); i < dead; i += team.size()) at[i] = {nan, nan};
    }
  }

 private:
  STEPGRAPH_HD std::int64_t live_bytes(page_owner owner) const {
    if (owner.request < 0 || owner.request >= p.requests) return 0;
    const std::int64_t bytes = p.seq_lens[owner.request] * p.token_bytes - owner.index * p.page_bytes;
    return bytes < 0 ? 0 : bytes > p.page_bytes ? p.page_bytes : bytes;
  }
};

}  // namespace stepgraph
