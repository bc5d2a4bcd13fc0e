#include "examples/llama/load_weights.hpp"

#include <initializer_list>
#include <string>

#include "graphs/error.hpp"

namespace stepgraph::llama {
namespace {

constexpr std::int64_t largest_dimension = 1 << 26;

int read_dimension(const gguf_file& file, std::string_view key) {
  const std::int64_t found = file.integer(key);
  STEPGRAPH_EXPECTS(found >= 1 && found <= largest_dimension, "load_llama_weights ", file.name(), ": ", key,
                    " is ", found, ", expected 1..", largest_dimension);
  return static_cast<int>(found);
}

/// A number that the file may state or leave to be derived; stated otherwise than derived is refused.
void check_stated(const gguf_file& file, std::string_view key, std::int64_t derived, std::string_view from) {
  const std::int64_t stated = file.integer_or(key, derived);
  STEPGRAPH_EXPECTS(stated == derived, "load_llama_weights ", file.name(), ": ", key, " is ", stated, ", ",
                    from, " gives ", derived);
}

float read_positive(const gguf_file& file, std::string_view key, double found) {
  const auto narrowed = static_cast<float>(found);
  // note: written so that NaN fails too
  STEPGRAPH_EXPECTS(narrowed > 0 && narrowed <= 1e30f, "load_llama_weights ", file.name(), ": ", key, " is ",
                    found, ", expected a positive number");
  return narrowed;
}

tensor_type read_type(const gguf_file& file, const gguf_tensor& found) {
  switch (found.type) {
    case 0:
      return tensor_type::f32;
    case 1:
      return tensor_type::f16;
    case 2:
      return tensor_type::q4_0;
    case 3:
      return tensor_type::q4_1;
    case 8:
      return tensor_type::q8_0;
    case 30:
      return tensor_type::bf16;
    default:
      detail::throw_invalid_argument(
          message("load_llama_weights ", file.name(), ": tensor ", found.name, " is ",
                  gguf_type_name(found.type), ", supported are F32, F16, BF16, Q4_0, Q4_1 and Q8_0"),
          detail::source_place::current());
  }
}

std::string shape_text(std::initializer_list<std::uint64_t> shape) {
  std::string out = "[";
  for (std::uint64_t each : shape) out += message(out.size() > 1 ? ", " : "", each);
  return out + "]";
}

std::string shape_text(const gguf_tensor& found) {
  // note: the file lists the fastest dimension first, messages list rows first
  std::string out = "[";
  for (int i = found.dimension_count - 1; i >= 0; --i) out += message(found.shape[i], i > 0 ? ", " : "");
  return out + "]";
}

/// Hands out tensors by name and counts them, so that one left unread is noticed.
class tensor_reader {
 public:
  explicit tensor_reader(const gguf_file& file) : file_(file), read_(file.tensors().size(), false) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  tensor matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const gguf_tensor& found = take(name);
    STEPGRAPH_EXPECTS(found.dimension_count == 2 && found.shape[0] == static_cast<std::uint64_t>(columns) &&
                          found.shape[1] == static_cast<std::uint64_t>(rows),
                      "load_llama_weights ", file_.name(), ": tensor ", name, " has shape ",
                      shape_text(found), ", expected ",
                      shape_text({static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)}));
    return view(found, rows, columns);
  }

  std::vector<float> vector(const std::string& name, std::int64_t size) {
    const gguf_tensor& found = take(name);
    STEPGRAPH_EXPECTS(found.dimension_count == 1 && found.shape[0] == static_cast<std::uint64_t>(size),
                      "load_llama_weights ", file_.name(), ": tensor ", name, " has shape ",
                      shape_text(found), ", expected ", shape_text({static_cast<std::uint64_t>(size)}));
    std::vector<float> out(static_cast<std::size_t>(size));
    dequantize_row(view(found, 1, size), 0, out);
    return out;
  }

  void check_all_read() const {
    for (std::size_t i = 0; i < read_.size(); ++i) {
      STEPGRAPH_EXPECTS(
          read_[i], "load_llama_weights ", file_.name(), ": tensor ", quoted(file_.tensors()[i].name),
          " has no place in the model that this loader knows; leaving it out would change results");
    }
  }

 private:
  const gguf_tensor& take(const std::string& name) {
    const gguf_tensor& found = file_.tensor(name);
    read_[static_cast<std::size_t>(&found - file_.tensors().data())] = true;
    return found;
  }

  tensor view(const gguf_tensor& found, std::int64_t rows, std::int64_t columns) const {
    tensor out{.type = read_type(file_, found), .rows = rows, .columns = columns, .data = found.data};
    const std::size_t expected = static_cast<std::size_t>(rows) * row_bytes(out.type, columns);
    STEPGRAPH_EXPECTS(found.data.size() == expected, "load_llama_weights ", file_.name(), ": tensor ",
                      found.name, " takes ", found.data.size(), " bytes, expected ", expected);
    return out;
  }

  const gguf_file& file_;
  std::vector<bool> read_;
};

}  // namespace

llama_config read_llama_config(const gguf_file& file) {
  const auto architecture = file.string("general.architecture");
  STEPGRAPH_EXPECTS(architecture == "llama", "load_llama_weights ", file.name(), ": general.architecture is ",
                    quoted(architecture), ", expected 'llama'");
  llama_config config;
  config.layers = read_dimension(file, "llama.block_count");
  config.hidden_size = read_dimension(file, "llama.embedding_length");
  config.heads = read_dimension(file, "llama.attention.head_count");
  config.kv_heads = file.contains("llama.attention.head_count_kv")
                        ? read_dimension(file, "llama.attention.head_count_kv")
                        : config.heads;
  STEPGRAPH_EXPECTS(config.heads % config.kv_heads == 0, "load_llama_weights ", file.name(), ": ",
                    config.heads, " query heads are no multiple of ", config.kv_heads, " key-value heads");
  if (file.contains("llama.attention.key_length")) {
    config.head_size = read_dimension(file, "llama.attention.key_length");
  } else {
    STEPGRAPH_EXPECTS(config.hidden_size % config.heads == 0, "load_llama_weights ", file.name(),
                      ": hidden size ", config.hidden_size, " is no multiple of ", config.heads, " heads");
    config.head_size = config.hidden_size / config.heads;
  }
  STEPGRAPH_EXPECTS(config.head_size % 2 == 0, "load_llama_weights ", file.name(), ": head size ",
                    config.head_size, " is odd, rotary embedding needs pairs");
  check_stated(file, "llama.attention.value_length", config.head_size, "the key length");
  check_stated(file, "llama.rope.dimension_count", config.head_size, "the head size");
  config.ffn_size = read_dimension(file, "llama.feed_forward_length");
  config.max_context = read_dimension(file, "llama.context_length");
  config.rope_base =
      read_positive(file, "llama.rope.freq_base", file.real_or("llama.rope.freq_base", config.rope_base));
  config.norm_epsilon = read_positive(file, "llama.attention.layer_norm_rms_epsilon",
                                      file.real("llama.attention.layer_norm_rms_epsilon"));

  const auto scaling = file.string_or("llama.rope.scaling.type", "none");
  STEPGRAPH_EXPECTS(scaling == "none", "load_llama_weights ", file.name(), ": llama.rope.scaling.type is ",
                    quoted(scaling), ", expected 'none'");
  const auto experts = file.integer_or("llama.expert_count", 0);
  STEPGRAPH_EXPECTS(experts == 0, "load_llama_weights ", file.name(), ": llama.expert_count is ", experts,
                    ", expected 0");

  const gguf_tensor& embedding = file.tensor("token_embd.weight");
  STEPGRAPH_EXPECTS(embedding.dimension_count == 2 && embedding.shape[1] <= std::uint64_t{largest_dimension},
                    "load_llama_weights ", file.name(), ": tensor token_embd.weight has shape ",
                    shape_text(embedding), ", expected [vocabulary, ", config.hidden_size, "]");
  config.vocab_size = static_cast<int>(embedding.shape[1]);
  check_stated(file, "llama.vocab_size", config.vocab_size, "token_embd.weight");
  return config;
}

llama_weights load_llama_weights(const gguf_file& file) {
  constexpr std::size_t tensors_per_layer = 9;
  llama_weights weights;
  weights.config = read_llama_config(file);
  weights.storage = file.storage();
  const llama_config& config = weights.config;
  const auto layers = static_cast<std::size_t>(config.layers);
  STEPGRAPH_EXPECTS(layers <= file.tensors().size() / tensors_per_layer, "load_llama_weights ", file.name(),
                    ": ", layers, " layers need ", layers * tensors_per_layer, " tensors, the file has ",
                    file.tensors().size());

  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query_size = std::int64_t{config.heads} * config.head_size;
  const std::int64_t kv_size = std::int64_t{config.kv_heads} * config.head_size;
  tensor_reader reader(file);
  weights.token_embedding = reader.matrix("token_embd.weight", config.vocab_size, hidden);
  weights.layers.resize(layers);
  for (std::size_t i = 0; i < layers; ++i) {
    llama_layer_weights& layer = weights.layers[i];
    const std::string prefix = message("blk.", i, ".");
    layer.attention_norm = reader.vector(prefix + "attn_norm.weight", hidden);
    layer.query = reader.matrix(prefix + "attn_q.weight", query_size, hidden);
    layer.key = reader.matrix(prefix + "attn_k.weight", kv_size, hidden);
    layer.value = reader.matrix(prefix + "attn_v.weight", kv_size, hidden);
    layer.attention_output = reader.matrix(prefix + "attn_output.weight", hidden, query_size);
    layer.ffn_norm = reader.vector(prefix + "ffn_norm.weight", hidden);
    layer.gate = reader.matrix(prefix + "ffn_gate.weight", config.ffn_size, hidden);
    layer.up = reader.matrix(prefix + "ffn_up.weight", config.ffn_size, hidden);
    layer.down = reader.matrix(prefix + "ffn_down.weight", hidden, config.ffn_size);
  }
  weights.output_norm = reader.vector("output_norm.weight", hidden);
  // a model without its own output matrix ties it to the embedding
  weights.output = reader.has("output.weight") ? reader.matrix("output.weight", config.vocab_size, hidden)
                                               : weights.token_embedding;
  reader.check_all_read();
  return weights;
}

llama_weights load_llama_weights(const std::filesystem::path& path) {
  return load_llama_weights(gguf_file(path));
}

}  // namespace stepgraph::llama
