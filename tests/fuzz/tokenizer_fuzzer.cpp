// Feeds text, any bytes, to the tokenizer of the small vocabulary and checks what must hold for all of it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "examples/llama/chat_template.hpp"
#include "examples/llama/tokenizer.hpp"
#include "examples/llama/utf8.hpp"
#include "tests/examples/tokenizer_files.hpp"

namespace {

using namespace stepgraph::llama;

struct subject {
  std::vector<std::byte> bytes = [] {
    gguf_writer writer;
    write_tiny_tokenizer(writer);
    return writer.finish();
  }();
  gguf_file file{bytes, "memory"};
  tokenizer text{file};
  chat_template chat{file, text};
};

void require(bool condition) {
  if (!condition) std::abort();
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const utf8_step step = utf8_next(text);
    if (!step.whole) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const subject tiny;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string joined;
  for (auto word : split_words(input)) {
    require(!word.empty());
    joined += word;
  }
  require(joined == input);

  // what the vocabulary lacks is left out, and nothing else
  std::string kept;
  for (char each : input) {
    if (tiny.text.unencodable_bytes({&each, 1}) == 0) kept += each;
  }
  for (bool parse_special : {false, true}) {
    const auto ids = tiny.text.encode(input, parse_special);
    require(tiny.text.decode(ids, true) == kept);
    stream_decoder stream(tiny.text, true);
    std::string streamed;
    for (auto id : ids) {
      require(parse_special || !tiny.text.is_control(id));
      const auto piece = stream.push(id);
      if (is_utf8(kept)) require(is_utf8(piece));
      streamed += piece;
    }
    require(streamed + stream.finish() == kept);
  }

  const auto ids = tiny.chat.encode(std::vector<chat_message>{{"user", std::string(input)}}, true);
  int controls = 0;
  for (auto id : ids) controls += tiny.text.is_control(id);
  require(controls == 5);  // two messages' starts and ends, one open answer
  return 0;
}
