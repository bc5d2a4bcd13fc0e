#include "tests/reference/llama_forward.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <span>
#include <vector>

#include "examples/llama/load_weights.hpp"
#include "graphs/error.hpp"

namespace {

using namespace stepgraph;
using reference::llama_reference;

int largest(const std::vector<float>& logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<int> greedy(llama_reference& model, std::initializer_list<int> prompt, int tokens) {
  std::vector<float> logits;
  for (const int token : prompt) logits = model.forward(token);
  std::vector<int> text;
  for (int i = 0; i < tokens; ++i) {
    text.push_back(largest(logits));
    logits = model.forward(text.back());
  }
  return text;
}

TEST_CASE("tiny model: the same seed makes the same weights, another seed others") {
  const auto a = llama::make_tiny_weights(7, llama::tiny_config());
  const auto b = llama::make_tiny_weights(7, llama::tiny_config());
  const auto c = llama::make_tiny_weights(8, llama::tiny_config());
  CHECK(std::ranges::equal(a.layers[1].down.data, b.layers[1].down.data));
  CHECK_FALSE(std::ranges::equal(a.layers[1].down.data, c.layers[1].down.data));
  CHECK_FALSE(std::ranges::equal(a.layers[1].key.data, a.layers[1].value.data));
  CHECK(a.output.data.data() == a.token_embedding.data.data());
  std::vector<float> row(128);
  llama::dequantize_row(a.layers[0].query, 0, row);
  // what any compiler makes of seed 7
  CHECK(row[0] == -0x1.b6bef40000000p-3f);
  CHECK_THROWS_AS(llama::make_tiny_weights(7, llama::llama_config{}), invalid_argument);
}

TEST_CASE("tiny model: greedy text is varied and does not cycle") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    llama_reference model(llama::make_tiny_weights(seed, llama::tiny_config()));
    const std::vector<int> text = greedy(model, {1, 2, 3}, 200);
    CHECK(std::set<int>(text.begin(), text.end()).size() > 80);
    for (std::size_t period = 1; period <= 50; ++period) {
      CHECK_FALSE(
          std::equal(text.end() - 50, text.end(), text.end() - 50 - static_cast<std::ptrdiff_t>(period)));
    }
    CHECK(model.length() == 203);
  }
}

TEST_CASE("llama_reference: reset forgets, and the past matters") {
  llama_reference model(llama::make_tiny_weights(5, llama::tiny_config()));
  const std::vector<float> first = model.forward(11);
  CHECK(std::ranges::all_of(first, [](float value) { return std::isfinite(value); }));
  model.forward(5);
  CHECK(model.forward(11) != first);
  model.reset();
  CHECK(model.length() == 0);
  CHECK(model.forward(11) == first);
}

TEST_CASE("dequantize_row: blocks written by hand") {
  std::vector<float> out(32);
  std::vector<std::byte> bytes(34);
  const auto put = [&](std::size_t at, std::initializer_list<int> values) {
    for (const int value : values) bytes[at++] = std::byte(value);
  };
  put(0, {0x00, 0x40, 0x00, 0xbc, 0x21, 0xf0});  // scale 2, minimum -1, elements 0: 1, 16: 2, 1: 0, 17: 15
  llama::dequantize_row({llama::tensor_type::q4_1, 1, 32, std::span(bytes).first(20)}, 0, out);
  CHECK((out[0] == 1 && out[16] == 3 && out[1] == -1 && out[17] == 29 && out[31] == -1));
  put(0, {0x01, 0x00, 0x21, 0xf0, 0, 0});  // the smallest subnormal half
  llama::dequantize_row({llama::tensor_type::q4_0, 1, 32, std::span(bytes).first(18)}, 0, out);
  CHECK((out[0] == -7 * 0x1p-24f && out[16] == -6 * 0x1p-24f && out[1] == -8 * 0x1p-24f &&
         out[17] == 7 * 0x1p-24f));
  put(0, {0x00, 0xb8, 0x80, 0x7f});  // -0.5
  llama::dequantize_row({llama::tensor_type::q8_0, 1, 32, bytes}, 0, out);
  CHECK((out[0] == 64 && out[1] == -63.5f));
  put(0, {0x00, 0x7c, 0x01, 0x80, 0xff, 0x7b});
  llama::dequantize_row({llama::tensor_type::f16, 1, 3, std::span(bytes).first(6)}, 0,
                        std::span(out).first(3));
  CHECK((std::isinf(out[0]) && out[1] == -0x1p-24f && out[2] == 65504));
  put(0, {0x80, 0x3f});
  llama::dequantize_row({llama::tensor_type::bf16, 1, 1, std::span(bytes).first(2)}, 0,
                        std::span(out).first(1));
  CHECK(out[0] == 1);
  CHECK_THROWS_AS(llama::row_bytes(llama::tensor_type::q4_0, 33), invalid_argument);
  const llama::tensor small{llama::tensor_type::q8_0, 1, 32, bytes};
  CHECK_THROWS_AS(llama::dequantize_row(small, 1, out), invalid_argument);
  CHECK_THROWS_AS(llama::dequantize_row(small, 0, std::span(out).first(31)), invalid_argument);
}

// for SmolLM2-135M-Instruct only: its tokens and what it says of Paris
TEST_CASE("model: the reference predicts sensibly") {
  const char* path = std::getenv("STEPGRAPH_MODEL");
  if (path == nullptr || *path == '\0') {
    MESSAGE("STEPGRAPH_MODEL is not set");
    return;
  }
  const auto weights = llama::load_llama_weights(std::filesystem::path(path));
  if (weights.config.vocab_size != 49152 || weights.config.hidden_size != 576) {
    MESSAGE("STEPGRAPH_MODEL is another model");
    return;
  }
  llama_reference model(weights);
  // "The capital of France is", then " Paris"
  CHECK(greedy(model, {504, 3575, 282, 4649, 314}, 1) == std::vector<int>{7042});
}

}  // namespace
