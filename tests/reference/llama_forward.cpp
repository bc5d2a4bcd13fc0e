#include "tests/reference/llama_forward.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "graphs/thread_pool.hpp"

namespace stepgraph::reference {

llama_reference::llama_reference(const llama::llama_weights& weights)
    : config_(weights.config), embedding_(widen(weights.token_embedding)), output_norm_(weights.output_norm) {
  if (weights.output.data.data() != weights.token_embedding.data.data()) output_ = widen(weights.output);
  if (weights.fusion) {
    embedding_norm_ = weights.fusion->embedding_norm;
    state_norm_ = weights.fusion->hidden_norm;
    fusion_ = widen(weights.fusion->weight);
  }
  for (const llama::llama_layer_weights& from : weights.layers) {
    layer& to = layers_.emplace_back();
    to.attention_norm = from.attention_norm;
    to.ffn_norm = from.ffn_norm;
    to.query = widen(from.query);
    to.key = widen(from.key);
    to.value = widen(from.value);
    to.attention_output = widen(from.attention_output);
    to.gate = widen(from.gate);
    to.up = widen(from.up);
    to.down = widen(from.down);
  }
}

void llama_reference::reset() {
  for (layer& layer : layers_) {
    layer.keys.clear();
    layer.values.clear();
  }
  length_ = 0;
}

std::vector<double> llama_reference::embed(int token) const {
  if (token < 0 || token >= embedding_.rows) throw std::out_of_range("llama_reference: token");
  const float* row = &embedding_.values[static_cast<std::size_t>(token * embedding_.columns)];
  return std::vector<double>(row, row + embedding_.columns);
}

std::vector<float> llama_reference::forward(int token) {
  return run(embed(token));
}

std::vector<float> llama_reference::forward(int token, std::span<const float> state) {
  std::vector<double> pair = normalize(embed(token), embedding_norm_);
  for (std::size_t at = 0, width = pair.size(); at < state.size(); at += width) {
    const std::span<const float> one = state.subspan(at, width);
    const auto gain = state_norm_.begin() + static_cast<std::ptrdiff_t>(at);
    const std::vector<double> next =
        normalize(std::vector<double>(one.begin(), one.end()),
                  std::vector<float>(gain, gain + static_cast<std::ptrdiff_t>(width)));
    pair.insert(pair.end(), next.begin(), next.end());
  }
  return run(multiply(fusion_, pair));
}

std::vector<float> llama_reference::run(std::vector<double> x) {
  for (layer& layer : layers_) {
    const std::vector<double> before_attention = normalize(x, layer.attention_norm);
    std::vector<double> query = multiply(layer.query, before_attention);
    std::vector<double> key = multiply(layer.key, before_attention);
    const std::vector<double> value = multiply(layer.value, before_attention);
    rotate(query);
    rotate(key);
    layer.keys.insert(layer.keys.end(), key.begin(), key.end());
    layer.values.insert(layer.values.end(), value.begin(), value.end());
    const std::vector<double> attended = multiply(layer.attention_output, attend(layer, query));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += attended[i];

    const std::vector<double> before_ffn = normalize(x, layer.ffn_norm);
    std::vector<double> gate = multiply(layer.gate, before_ffn);
    const std::vector<double> up = multiply(layer.up, before_ffn);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const std::vector<double> down = multiply(layer.down, gate);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += down[i];
  }
  ++length_;
  hidden_ = x;
  const std::vector<double> logits =
      multiply(output_.values.empty() ? embedding_ : output_, normalize(x, output_norm_));
  return std::vector<float>(logits.begin(), logits.end());
}

llama_reference::matrix llama_reference::widen(const llama::tensor& weight) {
  matrix wide{weight.rows, weight.columns, {}};
  wide.values.resize(static_cast<std::size_t>(weight.rows * weight.columns));
  for (std::int64_t row = 0; row < weight.rows; ++row) {
    const std::span<float> out(&wide.values[static_cast<std::size_t>(row * weight.columns)],
                               static_cast<std::size_t>(weight.columns));
    llama::dequantize_row(weight, row, out);
  }
  return wide;
}

// the eight sums are there for speed: one alone would wait for each addition
std::vector<double> llama_reference::multiply(const matrix& weight, const std::vector<double>& x) {
  std::vector<double> y(static_cast<std::size_t>(weight.rows));
  thread_pool::shared().parallel_for(weight.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* w = &weight.values[static_cast<std::size_t>(row * weight.columns)];
      double sums[8] = {};
      std::int64_t i = 0;
      for (; i + 8 <= weight.columns; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += w[i + j] * x[static_cast<std::size_t>(i + j)];
      }
      for (; i < weight.columns; ++i) sums[0] += w[i] * x[static_cast<std::size_t>(i)];
      for (int j = 1; j < 8; ++j) sums[0] += sums[j];
      y[static_cast<std::size_t>(row)] = sums[0];
    }
  });
  return y;
}

std::vector<double> llama_reference::normalize(const std::vector<double>& x,
                                               const std::vector<float>& gain) const {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_epsilon);
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * gain[i];
  return y;
}

/// Turns the pair (2i, 2i + 1) of each head by position * base^(-2i / head_size).
void llama_reference::rotate(std::vector<double>& heads) const {
  const auto size = static_cast<std::size_t>(config_.head_size);
  for (std::size_t head = 0; head < heads.size(); head += size) {
    for (std::size_t i = 0; i < size; i += 2) {
      const double angle = length_ * std::pow(static_cast<double>(config_.rope_base),
                                              -static_cast<double>(i) / static_cast<double>(size));
      const double even = heads[head + i];
      const double odd = heads[head + i + 1];
      heads[head + i] = even * std::cos(angle) - odd * std::sin(angle);
      heads[head + i + 1] = even * std::sin(angle) + odd * std::cos(angle);
    }
  }
}

std::vector<double> llama_reference::attend(const layer& layer, const std::vector<double>& query) const {
  const auto size = static_cast<std::size_t>(config_.head_size);
  const std::size_t line = size * static_cast<std::size_t>(config_.kv_heads);
  const std::size_t positions = layer.keys.size() / line;
  const std::size_t group = static_cast<std::size_t>(config_.heads / config_.kv_heads);
  std::vector<double> out(query.size(), 0.0);
  std::vector<double> scores(positions);
  for (std::size_t head = 0; head < static_cast<std::size_t>(config_.heads); ++head) {
    const std::size_t kv = head / group * size;
    double largest = -INFINITY;
    for (std::size_t p = 0; p < positions; ++p) {
      double dot = 0;
      for (std::size_t i = 0; i < size; ++i) dot += query[head * size + i] * layer.keys[p * line + kv + i];
      scores[p] = dot / std::sqrt(static_cast<double>(size));
      largest = std::max(largest, scores[p]);
    }
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - largest);
    for (std::size_t p = 0; p < positions; ++p) {
      const double share = scores[p] / total;
      for (std::size_t i = 0; i < size; ++i) out[head * size + i] += share * layer.values[p * line + kv + i];
    }
  }
  return out;
}

}  // namespace stepgraph::reference
