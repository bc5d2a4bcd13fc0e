#include "examples/llama/llama_weights.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "examples/llama/half.hpp"
#include "graphs/error.hpp"

namespace stepgraph::llama {
namespace {

constexpr std::int64_t block_size = 32;  // elements of a quantised block

// GGUF's blocks; of a byte of `nibbles`, low bits are element i, high bits element i + 16
struct q4_0_block {
  std::uint16_t scale;  // half
  std::uint8_t nibbles[block_size / 2];
};
struct q4_1_block {
  std::uint16_t scale;    // half
  std::uint16_t minimum;  // half
  std::uint8_t nibbles[block_size / 2];
};
struct q8_0_block {
  std::uint16_t scale;  // half
  std::int8_t values[block_size];
};
static_assert(sizeof(q4_0_block) == 18 && sizeof(q4_1_block) == 20 && sizeof(q8_0_block) == 34);

/// Element `index` of the packed bytes, which need not be aligned.
template <class Element>
Element load(const std::byte* bytes, std::int64_t index) {
  Element element;
  std::memcpy(&element, bytes + index * static_cast<std::int64_t>(sizeof element), sizeof element);
  return element;
}

// note: a 4 or 8 bit number times a half is exact in float, so a fused multiply-add changes nothing here
void dequantize_nibbles(const std::uint8_t* nibbles, float scale, float minimum, int zero, float* out) {
  for (int i = 0; i < block_size / 2; ++i) {
    out[i] = static_cast<float>((nibbles[i] & 15) - zero) * scale + minimum;
    out[i + block_size / 2] = static_cast<float>((nibbles[i] >> 4) - zero) * scale + minimum;
  }
}

/// splitmix64: integers only, so every compiler makes the same weights.
class random_stream {
 public:
  random_stream(std::uint64_t seed, std::uint64_t stream) : state_(seed) {
    state_ = next() ^ (stream * 0xd1342543de82ef95u);
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// Uniform in [-1, 1), a multiple of 2^-23.
  float next_float() {
    return static_cast<float>(static_cast<std::int32_t>(next() >> 40) - (1 << 23)) * 0x1p-23f;
  }

 private:
  std::uint64_t state_;
};

void check_config(const llama_config& c) {
  STEPGRAPH_EXPECTS(
      c.layers > 0 && c.hidden_size > 0 && c.heads > 0 && c.kv_heads > 0 && c.ffn_size > 0 &&
          c.vocab_size > 0 && c.heads % c.kv_heads == 0 && c.head_size > 0 && c.head_size % 2 == 0,
      "make_tiny_weights: needs positive sizes, KV heads that divide heads and an even head size; "
      "got layers ",
      c.layers, ", hidden ", c.hidden_size, ", heads ", c.heads, ", KV heads ", c.kv_heads, ", head size ",
      c.head_size, ", ffn ", c.ffn_size, ", vocab ", c.vocab_size);
}

}  // namespace

std::size_t row_bytes(tensor_type type, std::int64_t columns) {
  const bool in_blocks = type == tensor_type::q4_0 || type == tensor_type::q4_1 || type == tensor_type::q8_0;
  STEPGRAPH_EXPECTS(columns >= 0 && (!in_blocks || columns % block_size == 0),
                    "row_bytes: columns must be a multiple of 32 for a quantised type, got ", columns);
  const auto elements = static_cast<std::size_t>(columns);
  const std::size_t blocks = elements / block_size;
  switch (type) {
    case tensor_type::f32:
      return elements * sizeof(float);
    case tensor_type::f16:
    case tensor_type::bf16:
      return elements * sizeof(std::uint16_t);
    case tensor_type::q4_0:
      return blocks * sizeof(q4_0_block);
    case tensor_type::q4_1:
      return blocks * sizeof(q4_1_block);
    case tensor_type::q8_0:
      return blocks * sizeof(q8_0_block);
  }
  throw invalid_argument(message("row_bytes: unknown tensor type ", static_cast<int>(type)));
}

void dequantize_row(const tensor& weight, std::int64_t row, std::span<float> out) {
  STEPGRAPH_EXPECTS(row >= 0 && row < weight.rows && std::ssize(out) == weight.columns,
                    "dequantize_row: tensor [", weight.rows, ", ", weight.columns, "], asked for row ", row,
                    " into ", out.size(), " floats");
  const std::size_t stride = row_bytes(weight.type, weight.columns);
  STEPGRAPH_EXPECTS(weight.data.size() >= stride * static_cast<std::size_t>(weight.rows),
                    "dequantize_row: tensor [", weight.rows, ", ", weight.columns, "] needs ",
                    stride * static_cast<std::size_t>(weight.rows), " bytes, has ", weight.data.size());
  const std::byte* bytes = weight.data.data() + stride * static_cast<std::size_t>(row);
  const std::int64_t blocks = weight.columns / block_size;
  switch (weight.type) {
    case tensor_type::f32:
      std::memcpy(out.data(), bytes, stride);
      break;
    case tensor_type::f16:
      for (std::int64_t i = 0; i < weight.columns; ++i) out[i] = half_to_float(load<std::uint16_t>(bytes, i));
      break;
    case tensor_type::bf16:
      for (std::int64_t i = 0; i < weight.columns; ++i) {
        out[i] = bfloat16_to_float(load<std::uint16_t>(bytes, i));
      }
      break;
    case tensor_type::q4_0:
      for (std::int64_t b = 0; b < blocks; ++b) {
        const auto block = load<q4_0_block>(bytes, b);
        dequantize_nibbles(block.nibbles, half_to_float(block.scale), 0, 8, &out[b * block_size]);
      }
      break;
    case tensor_type::q4_1:
      for (std::int64_t b = 0; b < blocks; ++b) {
        const auto block = load<q4_1_block>(bytes, b);
        dequantize_nibbles(block.nibbles, half_to_float(block.scale), half_to_float(block.minimum), 0,
                           &out[b * block_size]);
      }
      break;
    case tensor_type::q8_0:
      for (std::int64_t b = 0; b < blocks; ++b) {
        const auto block = load<q8_0_block>(bytes, b);
        const float scale = half_to_float(block.scale);
        for (int i = 0; i < block_size; ++i) {
          out[b * block_size + i] = static_cast<float>(block.values[i]) * scale;
        }
      }
      break;
  }
}

llama_config tiny_config() {
  return {.layers = 2,
          .hidden_size = 128,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 64,
          .ffn_size = 256,
          .vocab_size = 509,
          .max_context = 512};
}

// note: greedy text of random weights must not repeat one token or fall into a short cycle. So what the
// layers add outweighs the embedding, queries and keys are large (attention picks few positions, not the mean
// of all), and the output norm has random signs, for a tied output would otherwise favour the token just
// read.
llama_weights make_tiny_weights(std::uint64_t seed, const llama_config& config) {
  check_config(config);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query_size = std::int64_t{config.heads} * config.head_size;
  const std::int64_t kv_size = std::int64_t{config.kv_heads} * config.head_size;
  const std::int64_t layer_floats =
      hidden * (2 * query_size + 2 * kv_size) + 3 * hidden * std::int64_t{config.ffn_size};
  auto storage = std::make_shared<std::vector<float>>(
      static_cast<std::size_t>(config.vocab_size * hidden + config.layers * layer_floats));

  std::size_t used = 0;
  std::uint64_t stream = 0;
  // `gain` is the size of an output for inputs of size one: uniform numbers have a variance of a third
  const auto matrix = [&](std::int64_t rows, std::int64_t columns, float gain) {
    const std::span<float> values(storage->data() + used, static_cast<std::size_t>(rows * columns));
    used += values.size();
    random_stream random(seed, ++stream);
    const float scale = gain * std::sqrt(3.0f / static_cast<float>(columns));
    for (float& value : values) value = random.next_float() * scale;
    return tensor{tensor_type::f32, rows, columns, std::as_bytes(values)};
  };
  const auto norm = [&](bool random_signs) {
    std::vector<float> values(static_cast<std::size_t>(hidden));
    random_stream random(seed, ++stream);
    for (float& value : values) {
      value = 1.0f + 0.25f * random.next_float();
      if (random_signs && (random.next() >> 63) != 0) value = -value;
    }
    return values;
  };

  llama_weights weights;
  weights.config = config;
  weights.token_embedding = matrix(config.vocab_size, hidden, 3.0f);
  for (int i = 0; i < config.layers; ++i) {
    llama_layer_weights& layer = weights.layers.emplace_back();
    layer.attention_norm = norm(false);
    layer.query = matrix(query_size, hidden, 1.6f);
    layer.key = matrix(kv_size, hidden, 1.6f);
    layer.value = matrix(kv_size, hidden, 1.0f);
    layer.attention_output = matrix(hidden, query_size, 2.0f);
    layer.ffn_norm = norm(false);
    layer.gate = matrix(config.ffn_size, hidden, 2.0f);
    layer.up = matrix(config.ffn_size, hidden, 1.0f);
    layer.down = matrix(hidden, config.ffn_size, 1.0f);
  }
  weights.output_norm = norm(true);
  weights.output = weights.token_embedding;
  weights.storage = std::move(storage);
  return weights;
}

}  // namespace stepgraph::llama
