#include "examples/llama/draft_head.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "examples/llama/gguf.hpp"
#include "examples/llama/llama_model.hpp"
#include "graphs/error.hpp"
#include "graphs/memory_resource.hpp"
#include "runtime/choose_tokens.hpp"

namespace stepgraph::llama {
namespace {

constexpr const char* format = "stepgraph draft head 1";

/// Hands out what a head consists of, and remembers what nobody asked for.
class head_reader {
 public:
  explicit head_reader(const safetensors_file& file) : file_(file) {
    for (const auto& [name, tensor] : file.tensors()) unread_.insert(name);
  }

  template <class Number>
  Number number(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    STEPGRAPH_EXPECTS(found != file_.metadata().end(), where(), "metadata lacks ", llama::quoted(key));
    const std::string& text = found->second;
    Number value{};
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    STEPGRAPH_EXPECTS(failed == std::errc{} && end == text.data() + text.size() && value > 0, where(), key,
                      " is ", llama::quoted(text), ", expected a positive number");
    return value;
  }

  /// Layers of the target whose states the head is fed; none are named where it is the last alone.
  std::vector<int> taps(int layers) const {
    const auto found = file_.metadata().find("taps");
    std::vector<int> out;
    if (found == file_.metadata().end()) return out;
    const std::string& text = found->second;
    const char* at = text.data();
    for (const char* const stop = at + text.size();; ++at) {
      int layer = 0;
      const auto [end, failed] = std::from_chars(at, stop, layer);
      STEPGRAPH_EXPECTS(failed == std::errc{} && (end == stop || *end == ',') &&
                            layer > (out.empty() ? 0 : out.back()) && layer <= layers,
                        where(), "taps is ", llama::quoted(text), ", expected ascending layers up to ",
                        layers);
      out.push_back(layer);
      if ((at = end) == stop) return out;
    }
  }

  tensor matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const safetensors_tensor& found = take(name, {rows, columns});
    return {.type = read_type(name, found), .rows = rows, .columns = columns, .data = found.data};
  }

  std::vector<float> vector(const std::string& name, std::int64_t size) {
    const safetensors_tensor& found = take(name, {size});
    std::vector<float> out(static_cast<std::size_t>(size));
    dequantize_row({.type = read_type(name, found), .rows = 1, .columns = size, .data = found.data}, 0, out);
    return out;
  }

  /// Tokens of the target: ascending, so that the lowest of equal logits is the same in either numbering.
  std::vector<std::int32_t> tokens(const std::string& name, int vocab_size) {
    const auto entry = file_.tensors().find(name);
    const std::int64_t size =
        entry != file_.tensors().end() && entry->second.shape.size() == 1 ? entry->second.shape[0] : 0;
    const safetensors_tensor& found = take(name, {size});
    STEPGRAPH_EXPECTS(found.type == "I32", where(), "tensor ", name, " is of type ",
                      llama::quoted(found.type), ", expected 'I32'");
    std::vector<std::int32_t> out(static_cast<std::size_t>(size));
    std::memcpy(out.data(), found.data.data(), found.data.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      STEPGRAPH_EXPECTS(out[i] >= 0 && out[i] < vocab_size && (i == 0 || out[i] > out[i - 1]), where(), name,
                        "[", i, "] is ", out[i], ", expected ascending tokens below ", vocab_size);
    return out;
  }

  void check_all_read() const {
    STEPGRAPH_EXPECTS(unread_.empty(), where(), "tensor ", llama::quoted(*unread_.begin()),
                      " has no place in a draft head; leaving it out would change results");
  }

  std::string where() const { return message("load_draft_head ", file_.name(), ": "); }

 private:
  const safetensors_tensor& take(const std::string& name, const std::vector<std::int64_t>& shape) {
    const safetensors_tensor& found = file_.tensor(name);
    STEPGRAPH_EXPECTS(found.shape == shape, where(), "tensor ", name, " has shape ", shape_text(found.shape),
                      ", expected ", shape_text(shape));
    unread_.erase(name);
    return found;
  }

  tensor_type read_type(const std::string& name, const safetensors_tensor& found) const {
    if (found.type == "F32") return tensor_type::f32;
    if (found.type == "F16") return tensor_type::f16;
    STEPGRAPH_EXPECTS(found.type == "BF16", where(), "tensor ", name, " is of type ",
                      llama::quoted(found.type), ", expected 'F32', 'F16' or 'BF16'");
    return tensor_type::bf16;
  }

  const safetensors_file& file_;
  std::set<std::string> unread_;
};

/// What the head's views lie in: its file, the target's, and the rows taken from the target's output.
struct head_storage {
  std::shared_ptr<const void> file, target;
  std::vector<std::byte> output;
};

std::vector<std::byte> take_rows(const tensor& from, std::span<const std::int32_t> rows) {
  const std::size_t bytes = row_bytes(from.type, from.columns);
  std::vector<std::byte> out;
  out.reserve(rows.size() * bytes);
  for (const std::int32_t row : rows) {
    const auto line = from.data.subspan(static_cast<std::size_t>(row) * bytes, bytes);
    out.insert(out.end(), line.begin(), line.end());
  }
  return out;
}

class draft_head final : public draft_model {
 public:
  draft_head(device where, const draft_head_weights& weights)
      : model_(make_llama(where, weights.model)),
        states_(weights.model.fusion->states),
        target_ids_(upload(where, weights.target_ids)) {
    std::vector<std::int32_t> draft_ids(static_cast<std::size_t>(weights.target_vocab_size), -1);
    for (std::size_t i = 0; i < weights.target_ids.size(); ++i)
      draft_ids[static_cast<std::size_t>(weights.target_ids[i])] = static_cast<std::int32_t>(i);
    draft_ids_ = upload(where, draft_ids);
  }

  draft_shape shape() const override {
    return {.layout = model_->layout(),
            .hidden_size = states_ * model_->config().hidden_size,
            .vocab_size = model_->config().vocab_size,
            .target_ids = target_ids_.as<const std::int32_t>(),
            .draft_ids = draft_ids_.as<const std::int32_t>()};
  }

  std::size_t scratch_bytes(const step_key& key) const override { return model_->scratch_bytes(key); }

  void forward(const step_context& step) const override {
    model_->enqueue_logits(step);
    choose_tokens(step, {.data = llama_model::logits(step),
                         .stride = model_->config().vocab_size,
                         .vocab_size = model_->config().vocab_size,
                         .target_ids = target_ids_.as<const std::int32_t>(),
                         .ranked = model_->ranks(step),
                         .reads_ranked_feed = true});
  }

 private:
  static buffer upload(device where, std::span<const std::int32_t> values) {
    buffer made(device_memory(where), values.size_bytes());
    const stream loading(where);
    loading.ref().copy(made.data(), values.data(), made.bytes());
    loading.synchronize();
    return made;
  }

  std::unique_ptr<llama_model> model_;
  int states_;
  buffer target_ids_, draft_ids_;
};

}  // namespace

draft_head_weights load_draft_head(const safetensors_file& file, const llama_weights& target) {
  head_reader reader(file);
  const auto stated = file.metadata().find("format");
  STEPGRAPH_EXPECTS(
      stated != file.metadata().end() && stated->second == format, reader.where(), "format is ",
      stated == file.metadata().end() ? std::string("not stated") : message(llama::quoted(stated->second)),
      ", expected ", llama::quoted(format));
  draft_head_weights out;
  llama_config& config = out.model.config;
  config = {.layers = 1,
            .hidden_size = reader.number<int>("hidden_size"),
            .heads = reader.number<int>("heads"),
            .kv_heads = reader.number<int>("kv_heads"),
            .head_size = reader.number<int>("head_size"),
            .ffn_size = reader.number<int>("ffn_size"),
            .vocab_size = 0,
            .max_context = target.config.max_context,
            .rope_base = reader.number<float>("rope_base"),
            .norm_epsilon = reader.number<float>("norm_epsilon")};
  out.target_vocab_size = reader.number<int>("target_vocab_size");
  STEPGRAPH_EXPECTS(config.hidden_size == target.config.hidden_size, reader.where(), "hidden_size is ",
                    config.hidden_size, ", the target's is ", target.config.hidden_size);
  STEPGRAPH_EXPECTS(out.target_vocab_size == target.config.vocab_size, reader.where(),
                    "target_vocab_size is ", out.target_vocab_size, ", the target's vocabulary has ",
                    target.config.vocab_size);
  STEPGRAPH_EXPECTS(config.heads % config.kv_heads == 0 && config.head_size % 2 == 0, reader.where(),
                    config.heads, " query heads of size ", config.head_size, " do not go with ",
                    config.kv_heads, " key-value heads and rotary pairs");
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query_size = std::int64_t{config.heads} * config.head_size;
  const std::int64_t kv_size = std::int64_t{config.kv_heads} * config.head_size;
  out.taps = reader.taps(target.config.layers);
  const int states = out.taps.empty() ? 1 : static_cast<int>(out.taps.size());
  out.model.fusion = input_fusion{.embedding_norm = reader.vector("embedding_norm", hidden),
                                  .hidden_norm = reader.vector("hidden_norm", states * hidden),
                                  .weight = reader.matrix("fc", hidden, (1 + states) * hidden),
                                  .states = states};
  out.model.layers = {{.attention_norm = reader.vector("attention_norm", hidden),
                       .query = reader.matrix("query", query_size, hidden),
                       .key = reader.matrix("key", kv_size, hidden),
                       .value = reader.matrix("value", kv_size, hidden),
                       .attention_output = reader.matrix("attention_output", hidden, query_size),
                       .ffn_norm = reader.vector("ffn_norm", hidden),
                       .gate = reader.matrix("gate", config.ffn_size, hidden),
                       .up = reader.matrix("up", config.ffn_size, hidden),
                       .down = reader.matrix("down", hidden, config.ffn_size)}};
  out.model.output_norm = reader.vector("output_norm", hidden);
  out.target_ids = reader.tokens("draft_to_target", out.target_vocab_size);
  reader.check_all_read();
  config.vocab_size = static_cast<int>(out.target_ids.size());

  auto storage = std::make_shared<head_storage>(
      head_storage{file.storage(), target.storage, take_rows(target.output, out.target_ids)});
  out.model.token_embedding = target.token_embedding;
  out.model.output = {
      .type = target.output.type, .rows = config.vocab_size, .columns = hidden, .data = storage->output};
  out.model.storage = std::move(storage);
  return out;
}

draft_head_weights load_draft_head(const std::filesystem::path& path, const llama_weights& target) {
  return load_draft_head(safetensors_file(path), target);
}

std::unique_ptr<draft_model> make_draft_head(device where, const draft_head_weights& weights) {
  return std::make_unique<draft_head>(where, weights);
}

}  // namespace stepgraph::llama
