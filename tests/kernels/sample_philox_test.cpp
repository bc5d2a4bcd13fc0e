#include <doctest/doctest.h>

#include <type_traits>

#include "kernels/sample/philox.hpp"
#include "tests/reference/philox.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("Philox4x32-10 gives the published known answers, oracle and product alike") {
  struct known {
    std::array<std::uint32_t, 4> counter;
    std::array<std::uint32_t, 2> key;
    std::array<std::uint32_t, 4> output;
  };
  const known answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const known& it : answers) {
    CHECK(reference::philox(it.counter, it.key) == it.output);
    const philox_words got =
        philox4x32_10({{it.counter[0], it.counter[1], it.counter[2], it.counter[3]}}, it.key[0], it.key[1]);
    for (int i = 0; i < 4; ++i) CHECK(got.word[i] == it.output[i]);
  }
}

TEST_CASE("every random number is keyed by seed, request, position, purpose and node as defined") {
  reference::random_integers random(test_seed());
  for (int i = 0; i < 200; ++i) {
    const auto seed = static_cast<std::uint64_t>(random.below(INT64_MAX)) * 3;
    const auto request = static_cast<std::uint64_t>(random.below(INT64_MAX)) * 5;
    const auto position = static_cast<std::uint32_t>(random.below(1 << 20));
    const auto node = static_cast<std::uint32_t>(random.below(64));
    const random_stream from{seed, request};
    CHECK(draft_draw(from, position, node).uniform() == reference::uniform(seed, request, position, 0, node));
    CHECK(accept_coin(from, position, node).uniform() ==
          reference::uniform(seed, request, position, 1, node));
    CHECK(residual_draw(from, position, node).uniform() ==
          reference::uniform(seed, request, position, 2, node));
    CHECK(bonus_draw(from, position, node).uniform() == reference::uniform(seed, request, position, 3, node));
  }
}

TEST_CASE("a node beyond 24 bits cannot reach into the purpose") {
  const random_stream from{7, 9};
  CHECK(accept_coin(from, 3, 0x1000005u).uniform() == accept_coin(from, 3, 5u).uniform());
  CHECK(accept_coin(from, 3, 0x1000005u).uniform() != residual_draw(from, 3, 5u).uniform());
}

TEST_CASE("coin-one: no 32-bit word is a uniform of 1") {
  CHECK(uniform_of(0xffffffffu) < 1.0f);
  CHECK(uniform_of(0xffffffffu) == 1.0f - 0x1p-24f);
  CHECK(static_cast<float>(0xffffffffu) * 0x1p-32f == 1.0f);  // what the shorter way would have made of it
  CHECK(uniform_of(0) == 0.0f);
}

TEST_CASE("same-coin: the number of one purpose is no argument for another") {
  static_assert(std::is_invocable_v<decltype(keeps), accept_coin, double>);
  static_assert(!std::is_invocable_v<decltype(keeps), residual_draw, double>);
  static_assert(!std::is_invocable_v<decltype(keeps), bonus_draw, double>);
  static_assert(!std::is_invocable_v<decltype(keeps), draft_draw, double>);
  static_assert(!std::is_invocable_v<decltype(keeps), float, double>);
  static_assert(!std::is_convertible_v<accept_coin, residual_draw>);
  static_assert(!std::is_constructible_v<residual_draw, accept_coin>);
  static_assert(accept_coin::purpose != residual_draw::purpose &&
                accept_coin::purpose != draft_draw::purpose);
  const random_stream from{1, 2};
  CHECK(accept_coin(from, 5, 1).uniform() != residual_draw(from, 5, 1).uniform());
  CHECK(accept_coin(from, 5, 1).uniform() != draft_draw(from, 5, 1).uniform());
  CHECK(bonus_draw(from, 5, 1).uniform() != residual_draw(from, 5, 1).uniform());
}

TEST_CASE("coin-one: an accept of probability 0 is never made, one of probability 1 always") {
  int low = 0;
  for (std::uint32_t position = 0; position < 100000; ++position) {
    const accept_coin coin({3, 4}, position, 1);
    CHECK_FALSE(keeps(coin, 0.0));
    if (!keeps(coin, 1.0)) FAIL("a coin of 1");
    low += coin.uniform() < 0.25f ? 1 : 0;
  }
  CHECK(low > 24000);
  CHECK(low < 26000);
}
