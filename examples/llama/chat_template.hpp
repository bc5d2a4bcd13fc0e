#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/llama/gguf.hpp"
#include "examples/llama/tokenizer.hpp"

namespace stepgraph::llama {

/// One turn of a conversation.
struct chat_message {
  std::string role;     // "system", "user" or "assistant": letters, digits, '_' and '-' only
  std::string content;  // any text, never read as control tokens
};

/// The ChatML format: every message is <|im_start|>role, a newline, the content, <|im_end|> and a newline.
class chat_template {
 public:
  /// Reads the default system prompt from the file's tokenizer.chat_template. Throws invalid_argument if that
  /// is missing or not ChatML, or if `text_tokenizer` lacks the control tokens. `text_tokenizer` must outlive
  /// the template.
  chat_template(const gguf_file& file, const tokenizer& text_tokenizer);

  /// What the model is told if a conversation does not begin with a system message; empty if the file gives
  /// nothing.
  const std::string& default_system_prompt() const noexcept { return default_system_prompt_; }

  /// Id of <|im_end|>, which ends a turn.
  std::int32_t end_of_turn() const noexcept { return end_; }

  /// Token ids of `messages`, and with `open_answer` of the beginning of the assistant's turn. Control tokens
  /// come from the format alone: text that spells one is encoded as text. Throws invalid_argument for no
  /// messages or a role of other characters.
  std::vector<std::int32_t> encode(std::span<const chat_message> messages, bool open_answer) const;

 private:
  void append(std::vector<std::int32_t>& out, std::string_view role, std::string_view content) const;

  const tokenizer& tokenizer_;
  std::string default_system_prompt_;
  std::int32_t start_ = 0;
  std::int32_t end_ = 0;
};

}  // namespace stepgraph::llama
