#include "examples/llama/chat_template.hpp"

#include <algorithm>

#include "graphs/error.hpp"

namespace stepgraph::llama {
namespace {

constexpr std::string_view key = "tokenizer.chat_template";
constexpr std::string_view start_text = "<|im_start|>";
constexpr std::string_view end_text = "<|im_end|>";

/// The text between the first literal system header and its end; the newline may be itself or an escape.
std::string find_system_prompt(std::string_view source, const gguf_file& file) {
  for (std::string_view newline : {"\n", "\\n"}) {
    const std::string header = message(start_text, "system", newline);
    const auto at = source.find(header);
    if (at == source.npos) continue;
    const auto begin = at + header.size();
    const auto end = source.find(end_text, begin);
    STEPGRAPH_EXPECTS(end != source.npos, "chat_template ", file.name(),
                      ": the system prompt that begins at byte ", begin, " of ", key, " has no end");
    auto prompt = source.substr(begin, end - begin);
    STEPGRAPH_EXPECTS(prompt.find_first_of("'{}\\") == prompt.npos, "chat_template ", file.name(),
                      ": the system prompt in ", key,
                      " is an expression, expected plain text: ", quoted(prompt));
    return std::string(prompt);
  }
  return {};
}

void check_role(std::string_view role) {
  const bool good = !role.empty() && std::ranges::all_of(role, [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
           each == '_' || each == '-';
  });
  STEPGRAPH_EXPECTS(good, "chat_template: role ", quoted(role),
                    " must consist of letters, digits, '_' and '-'");
}

}  // namespace

chat_template::chat_template(const gguf_file& file, const tokenizer& text_tokenizer)
    : tokenizer_(text_tokenizer) {
  const auto source = file.string(key);
  for (std::string_view needed : {start_text, end_text, std::string_view("role"), std::string_view("content"),
                                  std::string_view("add_generation_prompt")}) {
    STEPGRAPH_EXPECTS(source.find(needed) != source.npos, "chat_template ", file.name(), ": ", key,
                      " is not ChatML, it lacks ", quoted(needed));
  }
  default_system_prompt_ = find_system_prompt(source, file);
  auto control = [&](std::string_view text) {
    const auto id = tokenizer_.find(text);
    STEPGRAPH_EXPECTS(id && tokenizer_.is_control(*id), "chat_template ", file.name(),
                      ": the vocabulary lacks control token ", quoted(text));
    return *id;
  };
  start_ = control(start_text);
  end_ = control(end_text);
}

std::vector<std::int32_t> chat_template::encode(std::span<const chat_message> messages,
                                                bool open_answer) const {
  STEPGRAPH_EXPECTS(!messages.empty(), "chat_template: a conversation needs a message");
  for (const auto& each : messages) check_role(each.role);
  std::vector<std::int32_t> out;
  if (messages.front().role != "system" && !default_system_prompt_.empty()) {
    append(out, "system", default_system_prompt_);
  }
  for (const auto& each : messages) append(out, each.role, each.content);
  if (open_answer) {
    out.push_back(start_);
    std::ranges::copy(tokenizer_.encode("assistant\n", false), std::back_inserter(out));
  }
  return out;
}

void chat_template::append(std::vector<std::int32_t>& out, std::string_view role,
                           std::string_view content) const {
  out.push_back(start_);
  // role and content are one text, so that pieces may span the newline between as they do for the model's own
  // tokenizer
  std::ranges::copy(tokenizer_.encode(message(role, '\n', content), false), std::back_inserter(out));
  out.push_back(end_);
  std::ranges::copy(tokenizer_.encode("\n", false), std::back_inserter(out));
}

}  // namespace stepgraph::llama
