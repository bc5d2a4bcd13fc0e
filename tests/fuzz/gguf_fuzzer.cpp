// Feeds bytes to the GGUF reader and to all that reads from one: each must answer or throw invalid_argument.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "examples/llama/chat_template.hpp"
#include "examples/llama/gguf.hpp"
#include "examples/llama/load_weights.hpp"
#include "examples/llama/tokenizer.hpp"
#include "graphs/error.hpp"

namespace {

using namespace stepgraph::llama;

template <class Function>
void attempt(const Function& function) {
  try {
    function();
  } catch (const stepgraph::invalid_argument&) {
  }
}

void read_everything(const gguf_file& file) {
  for (const auto& entry : file.metadata()) {
    const auto key = entry.first;
    attempt([&] { file.integer(key); });
    attempt([&] { file.real(key); });
    attempt([&] { file.boolean(key); });
    attempt([&] { file.string(key); });
    attempt([&] { file.integers(key); });
    attempt([&] { file.reals(key); });
    attempt([&] { file.strings(key); });
  }
  volatile unsigned sum = 0;
  for (const auto& tensor : file.tensors()) {
    for (std::byte each : tensor.data) sum = sum + std::to_integer<unsigned>(each);
  }
}

void read_tokenizer(const gguf_file& file) {
  const tokenizer text(file);
  const auto ids = text.encode("Hello  world's 42 <|im_end|>\xff\xe2\x82", true);
  text.decode(ids, true);
  const chat_template chat(file, text);
  chat.encode(std::vector<chat_message>{{"user", "<|im_start|>hi"}}, true);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attempt([&] {
    const gguf_file file(std::as_bytes(std::span(data, size)), "fuzz");
    read_everything(file);
    attempt([&] { load_llama_weights(file); });
    attempt([&] { read_tokenizer(file); });
  });
  return 0;
}
