#include "bench/round_head.hpp"

#include <random>
#include <vector>

#include "examples/llama/ranked_head.hpp"
#include "examples/llama/skinny_matmul.hpp"

namespace stepgraph::bench {

round_head::round_head(device where, int lines, int vocab_size)
    : vocab_size_(vocab_size),
      weight_(device_memory(where), sizeof(bf16) * std::size_t(vocab_size) * hidden_size),
      x_(device_memory(where), sizeof(bf16) * std::size_t(lines) * hidden_size),
      logits_(device_memory(where), sizeof(float) * std::size_t(lines) * vocab_size),
      cublas_(where) {
  std::minstd_rand random(7);
  const auto some = [&] { return from_float<bf16>(static_cast<float>(random() % 2001) * 1e-3f - 1.0f); };
  static std::vector<bf16> weight;
  if (weight.size() != std::size_t(vocab_size) * hidden_size) {
    weight.resize(std::size_t(vocab_size) * hidden_size);
    for (bf16& value : weight) value = some();
  }
  std::vector<bf16> x(hidden_size), lines_of_x;
  for (bf16& value : x) value = some();
  for (int line = 0; line < lines; ++line) lines_of_x.insert(lines_of_x.end(), x.begin(), x.end());
  const stream loading(where);
  loading.ref().copy(weight_.data(), weight.data(), weight_.bytes());
  loading.ref().copy(x_.data(), lines_of_x.data(), x_.bytes());
  loading.synchronize();
}

void round_head::enqueue(const step_context& step, head_output output) const {
  const int lines = step.key.kind == step_kind::target_verify ? step.key.tokens : step.key.rows;
  const auto* const weight = weight_.as<const bf16>();
  const auto* const x = x_.as<const bf16>();
  if (output != head_output::logits)
    return llama::multiply(step.stream,
                           {.weight = weight,
                            .rows = vocab_size_,
                            .columns = hidden_size,
                            .x = x,
                            .tokens = lines,
                            .ranked = output == head_output::largest ? step.ranked_argmax : nullptr,
                            .line = output == head_output::largest ? step.out_line : nullptr});
  if (lines <= llama::skinny_tokens)
    return llama::skinny_matmul(
        step.stream,
        llama::plain_product{
            .in = {.weight = weight, .rows = vocab_size_, .columns = hidden_size, .x = x, .tokens = lines},
            .out = logits_.as<float>()});
  cublas_.use(step.stream);
  cublas_.multiply(weight, x, logits_.as<float>(), vocab_size_, hidden_size, lines, false);
}

}  // namespace stepgraph::bench
