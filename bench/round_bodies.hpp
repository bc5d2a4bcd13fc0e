#pragma once

#include <vector>

#include "bench/round_head.hpp"

/// What the bodies of a round's steps are where its bookkeeping is measured.
namespace stepgraph::bench {

/// Every line holds the same logits, so that target and draft agree.
class fixed_logits {
 public:
  fixed_logits(stream_ref at, int lines, int vocab_size)
      : vocab_size_(vocab_size), block_(device_memory(at.where()), 4ul * lines * vocab_size) {
    std::vector<float> values(static_cast<std::size_t>(lines) * vocab_size);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = -4.0f + 1e-3f * static_cast<float>(i % vocab_size * 7919 % 4001);
    for (int line = 0; line < lines; ++line) values[static_cast<std::size_t>(line) * vocab_size + 17] = 9.0f;
    at.copy(block_.data(), values.data(), block_.bytes());
    at.synchronize();
  }
  head_logits head() const {
    return {.data = block_.as<const float>(), .stride = vocab_size_, .vocab_size = vocab_size_};
  }

 private:
  int vocab_size_;
  buffer block_;
};

enum class bodies {
  empty,         // no body
  product,       // an output head's product, of which nothing is kept
  ranked,        // the same product, which finds the largest logits, of which the tokens are taken
  logits,        // an output head's logits, nobody chooses
  argmax,        // the same, and an argmax over them
  greedy_whole,  // an argmax over given logits
  greedy,        // the last, node by node; so are those below
  ranked_nodes,
  product_nodes,
  sampled
};

inline const char* name_of(bodies body) {
  switch (body) {
    case bodies::empty:
      return "all bookkeeping";
    case bodies::product:
    case bodies::product_nodes:
      return "with the head's product";
    case bodies::ranked:
    case bodies::ranked_nodes:
      return "with the head's product, ranked";
    case bodies::logits:
      return "with the head's logits";
    case bodies::argmax:
      return "with the head's logits and argmax";
    case bodies::greedy_whole:
      return "all bookkeeping and argmax";
    case bodies::greedy:
      return "greedy";
    case bodies::sampled:
      return "sampled";
  }
  return "";
}

}  // namespace stepgraph::bench
