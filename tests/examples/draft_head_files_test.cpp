// The file of a draft head: what is read, and that whatever is wrong with it is refused by name.
#include <doctest/doctest.h>

#include <functional>

#include "graphs/error.hpp"
#include "tests/examples/draft_head_files.hpp"

using namespace stepgraph;
using namespace stepgraph::llama;

namespace {

const std::vector<std::int32_t> ids{0, 3, 4, 17, 250};

safetensors_writer good_head() {
  reference::random_integers random(11);
  return random_head(random, tiny_config(), ids, element_type::bf16);
}

/// The message with which opening `bytes` as a head for `target` is refused; empty if it is not.
std::string refusal(std::vector<std::byte> bytes, const llama_weights& target) {
  try {
    (void)load_draft_head(safetensors_file(std::move(bytes), "a file"), target);
  } catch (const invalid_argument& refused) {
    return refused.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a draft head is read with its numbers, its matrices and the output rows of its tokens") {
  const llama_weights target = make_tiny_weights(7, tiny_config());
  const draft_head_weights head = load_draft_head(safetensors_file(good_head().file(), "a file"), target);
  CHECK(head.target_ids == ids);
  CHECK(head.target_vocab_size == target.config.vocab_size);
  CHECK(head.model.config.vocab_size == 5);
  CHECK(head.model.config.layers == 1);
  CHECK(head.model.config.max_context == target.config.max_context);
  CHECK(head.model.fusion->weight.columns == 2 * target.config.hidden_size);
  const auto line = [](const tensor& from, std::int64_t row) {
    std::vector<float> values(static_cast<std::size_t>(from.columns));
    dequantize_row(from, row, values);
    return values;
  };
  for (std::size_t i = 0; i < ids.size(); ++i)
    CHECK(line(head.model.output, static_cast<std::int64_t>(i)) == line(target.output, ids[i]));
}

TEST_CASE("a draft head that does not go with the target, or is none, is refused by name") {
  const llama_weights target = make_tiny_weights(7, tiny_config());
  const auto changed = [&](const std::function<void(safetensors_writer&)>& change) {
    safetensors_writer file = good_head();
    change(file);
    return refusal(file.file(), target);
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != text.npos);
  };
  has(changed([](auto& file) { file.metadata["hidden_size"] = "64"; }),
      "hidden_size is 64, the target's is 128");
  has(changed([](auto& file) { file.metadata["target_vocab_size"] = "49152"; }),
      "target_vocab_size is 49152");
  has(changed([](auto& file) { file.metadata["format"] = "another"; }), "format is 'another'");
  has(changed([](auto& file) { file.metadata.erase("format"); }), "format is not stated");
  has(changed([](auto& file) { file.metadata["heads"] = "4x"; }), "heads is '4x'");
  has(changed([](auto& file) { file.metadata["heads"] = "-4"; }), "heads is '-4'");
  has(changed([](auto& file) { file.metadata["kv_heads"] = "3"; }), "do not go with 3");
  has(changed([](auto& file) { file.metadata.erase("rope_base"); }), "lacks 'rope_base'");
  has(changed([](auto& file) { file.tensors.erase("query"); }), "there is no tensor 'query'");
  has(changed([](auto& file) { file.tensors["bias"] = file.tensors["query"]; }), "'bias' has no place");
  has(changed([](auto& file) { file.tensors["fc"].type = "I16"; }), "fc is of type 'I16'");
  has(changed([](auto& file) { file.tensors["up"].shape = {128, 256}; }), "up has shape [128, 256]");
  has(changed([](auto& file) { file.tensors["draft_to_target"].type = "F32"; }), "expected 'I32'");
  for (const char* taps : {"", "0", "1,", "2,1", "1,1", "1;2", "3", "1, 2"})
    has(changed([&](auto& file) { file.metadata["taps"] = taps; }), "expected ascending layers up to 2");
  has(changed([](auto& file) { file.metadata["taps"] = "1,2"; }),
      "hidden_norm has shape [128], expected [256]");
  const auto with_ids = [&](std::vector<std::int32_t> wrong) {
    return changed([&](auto& file) { file.tensor("draft_to_target", "I32", {std::ssize(wrong)}, wrong); });
  };
  has(with_ids({0, 3, 3}), "draft_to_target[2] is 3, expected ascending");
  has(with_ids({0, 5, 2}), "draft_to_target[2] is 2");
  has(with_ids({-1, 5}), "draft_to_target[0] is -1");
  has(with_ids({0, 1 << 20}), "draft_to_target[1] is 1048576");
  CHECK(refusal(good_head().file(), target).empty());
}

TEST_CASE("a safetensors file that is cut or contradicts itself is refused") {
  const llama_weights target = make_tiny_weights(7, tiny_config());
  const std::vector<std::byte> whole = good_head().file();
  for (std::size_t size = 0; size < whole.size(); size += size < 2000 ? 1 : 4999) {
    CAPTURE(size);
    CHECK_FALSE(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, target).empty());
  }
  for (const char* header : {"", "[]", "{", R"({"x": 1})", R"({"__metadata__": []})",
                             R"({"__metadata__": {"a": 1}})", R"({"x": {"dtype": "F32", "shape": [4]}})",
                             R"({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0]}})",
                             R"({"x": {"dtype": "F32", "shape": [4], "data_offsets": [8, 4]}})",
                             R"({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 32]}})",
                             R"({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 16]}})",
                             R"({"x": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}})",
                             R"({"x": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}})",
                             R"({"x": {"dtype": "F32", "shape": [16, 16, 16, 16], "data_offsets": [0, 16]}})",
                             R"({"x": {"dtype": "F37", "shape": [4], "data_offsets": [0, 16]}})"}) {
    CAPTURE(header);
    CHECK_THROWS_AS(safetensors_file(safetensors_writer::bytes(header, std::string(16, 'x')), "a file"),
                    invalid_argument);
  }
  const std::string good = R"({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})";
  CHECK_NOTHROW(safetensors_file(safetensors_writer::bytes(good, std::string(16, 'x')), "a file"));
  CHECK_THROWS_AS(safetensors_file("/nowhere/at.all"), invalid_argument);
}
