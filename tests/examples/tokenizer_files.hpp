#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <vector>

#include "tests/examples/gguf_writer.hpp"

namespace stepgraph::llama {

/// What the reference made of `text`.
struct tokenizer_case {
  std::string_view text;
  bool parse_special;
  std::initializer_list<std::int32_t> ids;
};

using namespace std::string_view_literals;
#include "tests/examples/tokenizer_cases.inc"

constexpr int tiny_specials = 3;  // control tokens at the front of tiny_tokens

constexpr std::string_view tiny_chat_template =
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Writes a tokenizer of the given lists into `writer`.
inline void write_tokenizer(gguf_writer& writer, const std::vector<std::string_view>& tokens,
                            const std::vector<std::int32_t>& types,
                            const std::vector<std::string_view>& merges) {
  writer.key("tokenizer.ggml.model", "gpt2");
  writer.key("tokenizer.ggml.pre", "smollm");
  writer.array("tokenizer.ggml.tokens", tokens);
  writer.array("tokenizer.ggml.token_type", types);
  writer.array("tokenizer.ggml.merges", merges);
}

/// Writes the small vocabulary of tokenizer_cases.inc, with special ids and a chat template.
inline void write_tiny_tokenizer(gguf_writer& writer) {
  std::vector<std::string_view> tokens(std::begin(tiny_tokens), std::end(tiny_tokens));
  std::vector<std::string_view> merges(std::begin(tiny_merges), std::end(tiny_merges));
  std::vector<std::int32_t> types(tokens.size(), 1);
  for (int i = 0; i < tiny_specials; ++i) types[static_cast<std::size_t>(i)] = 3;
  write_tokenizer(writer, tokens, types, merges);
  writer.key("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  writer.key("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  writer.key("tokenizer.chat_template", tiny_chat_template);
}

}  // namespace stepgraph::llama
