#pragma once

#include <cstdint>
#include <vector>

#include "kernels/speculate/accept_result.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/reference/speculation.hpp"

namespace stepgraph {

constexpr std::int32_t poison = -77;
constexpr std::int32_t wild = 0x7f7f7f7f;

/// A random tree, or a chain, of `nodes` nodes with tokens below `vocab`.
inline reference::draft_tree random_tree(reference::random_integers& random, int nodes, int vocab,
                                         bool chain) {
  reference::draft_tree tree;
  for (int node = 0; node < nodes; ++node) {
    tree.parents.push_back(node == 0 ? -1 : chain ? node - 1 : random.below(node));
    tree.tokens.push_back(random.below(vocab));
  }
  return tree;
}

/// The packed verify step of some rows; a row without nodes sits the round out.
struct verify_case {
  int rows = 0, live = 0, max_nodes = 1, tokens = 0;  // tokens: the bucket
  std::vector<reference::draft_tree> trees;           // [live]
  std::vector<std::int32_t> cu;                       // [rows + 1]

  int nodes(int row) const { return row < live ? static_cast<int>(trees[row].tokens.size()) : 0; }
  int live_tokens() const { return cu.back(); }
};

inline verify_case make_verify_case(int rows, int max_nodes, std::vector<reference::draft_tree> trees,
                                    int spare_tokens) {
  verify_case out{rows, static_cast<int>(trees.size()), max_nodes, 0, std::move(trees), {0}};
  for (int row = 0; row < rows; ++row) out.cu.push_back(out.cu.back() + out.nodes(row));
  out.tokens = out.cu.back() + spare_tokens > 0 ? out.cu.back() + spare_tokens : 1;
  return out;
}

inline verify_case random_verify_case(reference::random_integers& random, int rows, int live, int max_nodes,
                                      int vocab, bool chain) {
  std::vector<reference::draft_tree> trees;
  for (int row = 0; row < live; ++row)
    trees.push_back(random_tree(random, random.one_in(4) ? 0 : static_cast<int>(random.between(1, max_nodes)),
                                vocab, chain));
  return make_verify_case(rows, max_nodes, std::move(trees), static_cast<int>(random.below(5)));
}

/// The same in device memory; dead tokens hold wild ids and parents.
class device_verify {
 public:
  device_verify(stream_ref at, const verify_case& in, bool tree)
      : n_(at, {in.live}), cu_(at, in.cu), ids_(at, packed(in, false)), parents_(at, packed(in, true)) {
    view = {.live_rows = n_.data(),
            .rows = in.rows,
            .max_query_count = in.max_nodes,
            .cu_seqlens_q = cu_.data(),
            .token_ids = ids_.data(),
            .parents = tree ? parents_.data() : nullptr};
  }
  verify_view view;

  /// Another step of the same buckets, as the next replay finds it.
  void set(const verify_case& in) {
    n_.set({in.live});
    cu_.set(in.cu);
    ids_.set(packed(in, false));
    parents_.set(packed(in, true));
  }
  const std::int32_t* live_tokens() const { return cu_.data() + cu_.size() - 1; }

 private:
  static std::vector<std::int32_t> packed(const verify_case& in, bool parents) {
    std::vector<std::int32_t> out(in.tokens, wild);
    for (int row = 0; row < in.live; ++row)
      for (int node = 0; node < in.nodes(row); ++node)
        out[in.cu[row] + node] =
            static_cast<std::int32_t>(parents ? in.trees[row].parents[node] : in.trees[row].tokens[node]);
    return out;
  }
  device_vector<std::int32_t> n_, cu_, ids_, parents_;
};

/// An accept's outputs, poisoned, with canaries after each.
class device_result {
 public:
  device_result(stream_ref at, int rows, int stride)
      : rows_(rows),
        stride_(stride),
        vectors_{{at, static_cast<std::size_t>(rows) + 4, poison},
                 {at, static_cast<std::size_t>(rows) + 4, poison},
                 {at, static_cast<std::size_t>(rows) + 4, poison},
                 {at, static_cast<std::size_t>(rows) + 4, poison}},
        tokens_(at, static_cast<std::size_t>(rows) * stride + 4, poison),
        path_(at, static_cast<std::size_t>(rows) * stride + 4, poison) {
    view = {.accept_count = vectors_[0].data(),
            .emit_count = vectors_[1].data(),
            .cache_advance = vectors_[2].data(),
            .next_token = vectors_[3].data(),
            .emit_tokens = tokens_.data(),
            .path = path_.data(),
            .stride = stride};
  }
  accept_result view;
  std::vector<std::int32_t> accept_count() const { return vectors_[0].get(); }
  std::vector<std::int32_t> emit_count() const { return vectors_[1].get(); }
  std::vector<std::int32_t> cache_advance() const { return vectors_[2].get(); }
  std::vector<std::int32_t> next_token() const { return vectors_[3].get(); }
  std::vector<std::int32_t> emit_tokens() const { return tokens_.get(); }
  std::vector<std::int32_t> path() const { return path_.get(); }

  /// Compares all outputs with what each live row should come to, and everything else with the poison. Rows
  /// of which `unsure` is true are left out (a coin within rounding of its probability).
  template <class Check>
  void compare(const verify_case& in, const std::vector<reference::accepted>& want,
               const std::vector<bool>& unsure, const Check& check) const {
    const auto a = accept_count(), e = emit_count(), c = cache_advance(), next = next_token(),
               ids = emit_tokens(), nodes = path();
    for (int row = 0; row < rows_; ++row) {
      if (row < in.live && !unsure.empty() && unsure[row]) continue;
      const bool ran = in.nodes(row) > 0;
      const std::vector<std::int64_t> emitted = ran ? want[row].emitted : std::vector<std::int64_t>{};
      const std::vector<std::int64_t> kept = ran ? want[row].path : std::vector<std::int64_t>{};
      check(a[row] == (ran ? static_cast<int>(kept.size()) - 1 : 0), "accept_count", row);
      check(e[row] == static_cast<int>(emitted.size()), "emit_count", row);
      check(c[row] == static_cast<int>(kept.size()), "cache_advance", row);
      check(next[row] == (row >= in.live ? 0 : emitted.empty() ? -1 : emitted.back()), "next_token", row);
      for (int i = 0; i < stride_; ++i) {
        const std::size_t place = static_cast<std::size_t>(row) * stride_ + i;
        check(ids[place] == (i < static_cast<int>(emitted.size()) ? emitted[i] : poison), "emit_tokens", row);
        check(nodes[place] == (i < static_cast<int>(kept.size()) ? kept[i] : poison), "path", row);
      }
    }
    for (int i = 0; i < 4; ++i) {
      for (const auto& v : {a, e, c, next}) check(v[rows_ + i] == poison, "canary", i);
      for (const auto& v : {ids, nodes})
        check(v[static_cast<std::size_t>(rows_) * stride_ + i] == poison, "canary", i);
    }
  }

 private:
  int rows_, stride_;
  device_vector<std::int32_t> vectors_[4];
  device_vector<std::int32_t> tokens_, path_;
};

}  // namespace stepgraph
