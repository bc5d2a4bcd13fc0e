#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "examples/llama/draft_head.hpp"
#include "kernels/element_type.hpp"
#include "tests/reference/random_batch.hpp"

namespace stepgraph::llama {

/// Builds safetensors files in memory, for tests. Checks nothing: tests want wrong files too.
class safetensors_writer {
 public:
  struct entry {
    std::string type;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, entry> tensors;

  template <class T>
  void tensor(const std::string& name, const char* type, std::vector<std::int64_t> shape,
              const std::vector<T>& values) {
    std::vector<std::byte> data(values.size() * sizeof(T));
    std::memcpy(data.data(), values.data(), data.size());
    tensors[name] = {type, std::move(shape), std::move(data)};
  }

  std::vector<std::byte> file() const {
    std::string header = R"({"__metadata__":{)", data;
    for (const auto& [key, value] : metadata)
      header += (header.back() == '{' ? "\"" : ",\"") + key + "\":\"" + value + "\"";
    header += "}";
    for (const auto& [name, each] : tensors) {
      header += ",\"" + name + R"(":{"dtype":")" + each.type + R"(","shape":)" + shape_text(each.shape) +
                R"(,"data_offsets":[)" + std::to_string(data.size()) + ",";
      data.append(reinterpret_cast<const char*>(each.data.data()), each.data.size());
      header += std::to_string(data.size()) + "]}";
    }
    return bytes(header + "}", data);
  }

  /// A file of any header.
  static std::vector<std::byte> bytes(const std::string& header, const std::string& data) {
    std::string all(8, '\0');
    for (int i = 0; i < 8; ++i) all[i] = static_cast<char>(header.size() >> (8 * i));
    all += header + data;
    const auto* const begin = reinterpret_cast<const std::byte*>(all.data());
    return {begin, begin + all.size()};
  }
};

/// A head of random weights for `target`, whose taps it is fed, which drafts `ids`; matrices float32 or bfloat16.
inline safetensors_writer random_head(reference::random_integers& random, const llama_config& target,
                                      const std::vector<std::int32_t>& ids, element_type type) {
  safetensors_writer out;
  const std::int64_t hidden = target.hidden_size, query = std::int64_t{target.heads} * target.head_size,
                     kv = std::int64_t{target.kv_heads} * target.head_size, ffn = target.ffn_size;
  out.metadata = {{"format", "stepgraph draft head 1"},
                  {"hidden_size", std::to_string(hidden)},
                  {"heads", std::to_string(target.heads)},
                  {"kv_heads", std::to_string(target.kv_heads)},
                  {"head_size", std::to_string(target.head_size)},
                  {"ffn_size", std::to_string(ffn)},
                  {"target_vocab_size", std::to_string(target.vocab_size)},
                  {"rope_base", "10000.0"},
                  {"norm_epsilon", "1e-05"}};
  const auto values = [&](std::int64_t count, float scale, float centre) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& value : made)
      value = centre + scale * (static_cast<float>(random.below(2001)) / 1000.0f - 1.0f);
    return made;
  };
  std::string taps;
  for (const int tap : target.taps) taps += (taps.empty() ? "" : ",") + std::to_string(tap);
  if (!taps.empty()) out.metadata["taps"] = taps;
  for (const char* name : {"embedding_norm", "attention_norm", "ffn_norm", "output_norm"})
    out.tensor(name, "F32", {hidden}, values(hidden, 0.5f, 1.0f));
  const std::int64_t states = states_of(target);
  out.tensor("hidden_norm", "F32", {states * hidden}, values(states * hidden, 0.5f, 1.0f));
  const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    const std::vector<float> made =
        values(rows * columns, 2.0f / std::sqrt(static_cast<float>(columns)), 0.0f);
    if (type == element_type::f32) return out.tensor(name, "F32", {rows, columns}, made);
    std::vector<bf16> rounded;
    for (const float value : made) rounded.push_back(from_float<bf16>(value));
    out.tensor(name, "BF16", {rows, columns}, rounded);
  };
  matrix("fc", hidden, (1 + states) * hidden);
  matrix("query", query, hidden);
  matrix("key", kv, hidden);
  matrix("value", kv, hidden);
  matrix("attention_output", hidden, query);
  matrix("gate", ffn, hidden);
  matrix("up", ffn, hidden);
  matrix("down", hidden, ffn);
  out.tensor("draft_to_target", "I32", {std::ssize(ids)}, ids);
  return out;
}

}  // namespace stepgraph::llama
