#pragma once

#include <cstdint>

#include "kernels/guard.hpp"

/// Random numbers by counter: what a request draws depends on its own seed, identity and position alone,
/// never on the batch, the bucket or how often a graph was replayed. Philox4x32-10, after Salmon et al.,
/// "Parallel random numbers: as easy as 1, 2, 3" (2011).
namespace stepgraph {

/// Four 32-bit words: a counter, or a block of output.
struct philox_words {
  std::uint32_t word[4];
};

/// The ten rounds. `key_low` and `key_high` are the key's words 0 and 1.
STEPGRAPH_HD philox_words philox4x32_10(philox_words c, std::uint32_t key_low, std::uint32_t key_high) {
  constexpr std::uint64_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
  STEPGRAPH_UNROLL
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = multiplier_0 * c.word[0];
    const std::uint64_t product_1 = multiplier_1 * c.word[2];
    c = {{static_cast<std::uint32_t>(product_1 >> 32) ^ c.word[1] ^ key_low,
          static_cast<std::uint32_t>(product_1),
          static_cast<std::uint32_t>(product_0 >> 32) ^ c.word[3] ^ key_high,
          static_cast<std::uint32_t>(product_0)}};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return c;
}

/// A 32-bit word as a uniform number in [0, 1): 24 bits, because more would round to 1.
STEPGRAPH_HD float uniform_of(std::uint32_t word) {
  if (guard_off("coin-one")) return static_cast<float>(word) * 0x1p-32f;
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

/// What a random number decides. The purpose is part of the counter, so no number serves two.
enum class draw_purpose : std::uint32_t {
  draft_draw = 0,     // a draft token from the draft's q
  accept_coin = 1,    // whether a draft is kept
  residual_draw = 2,  // the replacement after a refusal
  bonus_draw = 3,     // the token after a path kept to its end, and every token of plain sampling
};

/// Whose random numbers: the key, and the half of the counter that stays. `request` is an identity that is
/// never used again, not a line of a pool.
struct random_stream {
  std::uint64_t seed;
  std::uint64_t request;
};

/// One random number of one purpose. The purpose is its type: a function that takes an `accept_coin` cannot
/// be given the number of a residual draw, and the two cannot be made from one counter.
template <draw_purpose Purpose>
class random_number {
 public:
  static constexpr draw_purpose purpose = Purpose;

  /// `position` is that of the token being decided. `node` is the node being decided (the draft step, counted
  /// from 1, in a chain); of a residual or bonus draw the node that the drawn token follows. Below 2^24.
  STEPGRAPH_HD random_number(random_stream from, std::uint32_t position, std::uint32_t node) {
    const std::uint32_t purpose_word = guard_off("same-coin") ? 0 : static_cast<std::uint32_t>(Purpose);
    const philox_words counter{{position, purpose_word << 24 | (node & 0xffffffu),
                                static_cast<std::uint32_t>(from.request),
                                static_cast<std::uint32_t>(from.request >> 32)}};
    value_ = uniform_of(philox4x32_10(counter, static_cast<std::uint32_t>(from.seed),
                                      static_cast<std::uint32_t>(from.seed >> 32))
                            .word[0]);
  }

  /// In [0, 1), a multiple of 2^-24.
  STEPGRAPH_HD float uniform() const { return value_; }

 private:
  float value_;
};

using draft_draw = random_number<draw_purpose::draft_draw>;
using accept_coin = random_number<draw_purpose::accept_coin>;
using residual_draw = random_number<draw_purpose::residual_draw>;
using bonus_draw = random_number<draw_purpose::bonus_draw>;

/// Whether the coin keeps something that has this probability.
STEPGRAPH_HD bool keeps(accept_coin coin, double probability) {
  return coin.uniform() < probability;
}

}  // namespace stepgraph
