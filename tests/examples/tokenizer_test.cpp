#include "examples/llama/tokenizer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "examples/llama/utf8.hpp"
#include "graphs/error.hpp"
#include "tests/examples/tokenizer_files.hpp"

using namespace stepgraph::llama;

namespace {

tokenizer make_tiny() {
  gguf_writer writer;
  write_tiny_tokenizer(writer);
  const auto bytes = writer.finish();
  return tokenizer(gguf_file(bytes, "memory"));
}

void check_cases(const tokenizer& subject, std::span<const tokenizer_case> cases) {
  for (const auto& each : cases) {
    INFO("text ", quoted(each.text), " parse_special ", each.parse_special);
    const auto ids = subject.encode(each.text, each.parse_special);
    CHECK(ids == std::vector<std::int32_t>(each.ids));
    if (subject.unencodable_bytes(each.text) == 0) CHECK(subject.decode(ids, true) == each.text);
  }
}

/// One word by the definition: merge the leftmost pair of lowest rank until none is left. Works on texts, not
/// ids.
std::vector<std::int32_t> merge_slowly(const tokenizer& subject, std::string_view word) {
  // the tokens here are ASCII letters, which the byte alphabet leaves as they are
  std::vector<std::string> parts;
  for (char each : word) parts.emplace_back(1, each);
  std::map<std::string, std::size_t> ranks;
  for (std::size_t i = 0; i < std::size(tiny_merges); ++i) ranks.emplace(tiny_merges[i], i);
  while (true) {
    std::size_t best = std::size(tiny_merges), at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      auto found = ranks.find(parts[i] + " " + parts[i + 1]);
      if (found != ranks.end() && found->second < best) best = found->second, at = i;
    }
    if (best == std::size(tiny_merges)) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const auto& each : parts) ids.push_back(*subject.find(each));
  return ids;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const utf8_step step = utf8_next(text);
    if (!step.whole) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

/// The message of what making a tokenizer throws, or "" if nothing.
std::string refusal(const gguf_writer& writer) {
  const auto bytes = writer.finish();
  try {
    tokenizer made(gguf_file(bytes, "memory"));
  } catch (const stepgraph::invalid_argument& caught) {
    return caught.what();
  }
  return {};
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

}  // namespace

TEST_CASE("split_words: pieces follow the pattern") {
  using words = std::vector<std::string_view>;
  CHECK(split_words("").empty());
  CHECK(split_words("Hello, world!") == words{"Hello", ",", " world", "!"});
  CHECK(split_words("it's '90s") == words{"it", "'s", " '", "9", "0", "s"});
  CHECK(split_words("a  b \n\n c  ") == words{"a", " ", " b", " \n\n", " c", "  "});
  CHECK(split_words("x  7  ") == words{"x", "  ", "7", "  "});
  CHECK(split_words("x 7") == words{"x", " ", "7"});
  CHECK(split_words("a\nb") == words{"a", "\n", "b"});
  CHECK(split_words("'ll''t") == words{"'ll", "''", "t"});
  CHECK(split_words("\xc2\xbd\xe4\xb8\x89\xd9\xa3") == words{"\xc2\xbd", "\xe4\xb8\x89", "\xd9\xa3"});
  CHECK(split_words("a\xc2\xa0\xc2\xa0z") == words{"a", "\xc2\xa0", "\xc2\xa0", "z"});
}

TEST_CASE("split_words: pieces of any bytes join to the text") {
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (unsigned left = random() % 40; left > 0; --left) {
      text += random() % 2 == 0 ? static_cast<char>(random() & 0xff) : "a '1\n\xc3\xe4\x80\xbf"[random() % 9];
    }
    std::string joined;
    for (auto word : split_words(text)) {
      CHECK(!word.empty());
      joined += word;
    }
    CHECK(joined == text);
  }
}

TEST_CASE("tokenizer: the reference's ids of a small vocabulary") {
  check_cases(make_tiny(), tiny_cases);
}

TEST_CASE("tokenizer: the heap merges as the definition does") {
  const auto subject = make_tiny();
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    for (unsigned left = 1 + random() % 30; left > 0; --left) word += "aehilnorst"[random() % 10];
    INFO("word ", word);
    CHECK(subject.encode(word, false) == merge_slowly(subject, word));
  }
}

TEST_CASE("tokenizer: a word of a megabyte is no trap") {
  const auto subject = make_tiny();
  std::mt19937 random(3);
  std::string word(1 << 20, 'a');
  CHECK(subject.decode(subject.encode(word, true)) == word);
  for (char& each : word) each = "aehilnorst"[random() % 10];
  CHECK(subject.decode(subject.encode(word, true)) == word);
  std::string brackets;
  for (int i = 0; i < 50000; ++i) brackets += "<|im_";
  CHECK(subject.decode(subject.encode(brackets, true)) == brackets);
}

TEST_CASE("tokenizer: control tokens come from text only when asked for") {
  const auto subject = make_tiny();
  const auto end = subject.find("<|im_end|>").value();
  CHECK(subject.is_control(end));
  CHECK(!subject.is_control(subject.find("a").value()));
  CHECK(!subject.find("no such token").has_value());
  CHECK(subject.bos() == 1);
  CHECK(subject.eos() == 2);
  CHECK(subject.encode("<|im_end|>", true) == std::vector{end});
  const auto plain = subject.encode("<|im_end|>", false);
  CHECK(std::ranges::none_of(plain, [&](auto id) { return subject.is_control(id); }));
  CHECK(subject.decode(plain) == "<|im_end|>");
  const std::vector<std::int32_t> mixed = {subject.find("a").value(), end, subject.find("b").value()};
  CHECK(subject.decode(mixed) == "ab");
  CHECK(subject.decode(mixed, true) == "a<|im_end|>b");
}

TEST_CASE("tokenizer: of several special tokens the longest that fits is taken, user-defined ones always") {
  gguf_writer writer;
  write_tokenizer(writer, {"a", "<", ">", "<a", "<a>", "<a>>", "<u>", "<un>"}, {1, 1, 1, 3, 3, 3, 4, 5}, {});
  const auto bytes = writer.finish();
  const tokenizer subject(gguf_file(bytes, "memory"));
  CHECK(subject.encode("<a", true) == std::vector{3});
  CHECK(subject.encode("<a>", true) == std::vector{4});
  CHECK(subject.encode("<a>>>", true) == std::vector{5, 2});
  CHECK(subject.encode("<<a>a", true) == std::vector{1, 4, 0});
  CHECK(subject.encode("<a>", false) == std::vector{1, 0, 2});
  CHECK(subject.encode("<u>", false) == std::vector{6});
  CHECK(subject.encode("<un>", true) == std::vector{1, 2});  // this vocabulary lacks u and n
  CHECK(subject.unencodable_bytes("<un>") == 2);
}

TEST_CASE("tokenizer: bytes outside UTF-8 survive") {
  const auto subject = make_tiny();
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    std::string text;
    for (unsigned left = random() % 30; left > 0; --left) text += static_cast<char>(random() & 0xff);
    if (subject.unencodable_bytes(text) != 0) continue;
    CHECK(subject.decode(subject.encode(text, true), true) == text);
  }
  CHECK(subject.decode(subject.encode("a\x06z", false)) == "az");
  CHECK(subject.unencodable_bytes("a\x06z") == 1);
}

TEST_CASE("tokenizer: ids outside the vocabulary are refused") {
  const auto subject = make_tiny();
  for (std::int32_t id : {-1, subject.vocab_size()}) {
    CHECK_THROWS_WITH_AS(subject.decode(std::vector{id}), doctest::Contains("outside the vocabulary of"),
                         stepgraph::invalid_argument);
    CHECK_THROWS_AS(subject.is_control(id), stepgraph::invalid_argument);
    stream_decoder stream(subject);
    CHECK_THROWS_AS(stream.push(id), stepgraph::invalid_argument);
  }
}

TEST_CASE("stream_decoder: pieces are whole characters and join to the text") {
  const auto subject = make_tiny();
  for (const auto& each : tiny_cases) {
    stream_decoder stream(subject, true);
    std::string joined;
    for (std::int32_t id : each.ids) {
      const std::string piece = stream.push(id);
      if (subject.unencodable_bytes(each.text) == 0) CHECK(is_utf8(piece));
      joined += piece;
    }
    joined += stream.finish();
    CHECK(joined == subject.decode(std::vector<std::int32_t>(each.ids), true));
  }
}

TEST_CASE("stream_decoder: an unfinished character is held back, a hopeless one is not") {
  const auto subject = make_tiny();
  const auto byte = [&](char value) { return subject.find(std::string(1, value)).value(); };
  stream_decoder stream(subject);
  CHECK(stream.push(byte('\xf0')) == "");
  CHECK(stream.push(byte('\x9f')) == "");
  CHECK(stream.push(byte('\x98')) == "");
  CHECK(stream.push(byte('\x80')) == "\xf0\x9f\x98\x80");
  CHECK(stream.push(byte('\xe2')) == "");
  CHECK(stream.push(byte('x')) == "\xe2x");
  CHECK(stream.push(byte('\xe0')) == "");
  CHECK(stream.push(byte('\x80')) == "\xe0\x80");  // an overlong form cannot become whole
  CHECK(stream.push(byte('\xff')) == "\xff");
  CHECK(stream.push(byte('\xc3')) == "");
  CHECK(stream.finish() == "\xc3");
  CHECK(stream.finish() == "");
}

TEST_CASE("tokenizer: what the file has wrong is named") {
  auto changed = [](auto&& change) {
    std::vector<std::string_view> tokens = {"a", "b", "ab", "<s>"};
    std::vector<std::int32_t> types = {1, 1, 1, 3};
    std::vector<std::string_view> merges = {"a b"};
    gguf_writer writer;
    change(tokens, types, merges, writer);
    write_tokenizer(writer, tokens, types, merges);
    return refusal(writer);
  };
  CHECK(changed([](auto&, auto&, auto&, auto&) {}).empty());
  CHECK(has(changed([](auto&, auto& types, auto&, auto&) { types.pop_back(); }),
            "4 tokens have 3 token types"));
  CHECK(has(changed([](auto& tokens, auto& types, auto&, auto&) { tokens.clear(), types.clear(); }),
            "has 0 tokens"));
  CHECK(has(changed([](auto&, auto& types, auto&, auto&) { types[1] = 6; }), "token 1 has token type 6"));
  CHECK(has(changed([](auto& tokens, auto&, auto&, auto&) { tokens[1] = "a"; }),
            "token 1, 'a', is there twice"));
  CHECK(has(changed([](auto& tokens, auto&, auto&, auto&) { tokens[3] = ""; }), "token 3 is empty"));
  CHECK(has(changed([](auto& tokens, auto&, auto&, auto&) { tokens[1] = "x y"; }),
            "outside the byte alphabet"));
  CHECK(has(changed([](auto&, auto&, auto& merges, auto&) { merges[0] = "ab"; }), "is not two parts"));
  CHECK(has(changed([](auto&, auto&, auto& merges, auto&) { merges[0] = "a b a"; }), "is not two parts"));
  CHECK(has(changed([](auto&, auto&, auto& merges, auto&) { merges[0] = "b a"; }), "that are no tokens"));
  CHECK(has(changed([](auto&, auto&, auto& merges, auto&) { merges.push_back("a b"); }),
            "merge 1, 'a b', is there twice"));
  CHECK(has(changed([](auto&, auto&, auto&, auto& writer) { writer.key("tokenizer.ggml.eos_token_id", 4u); }),
            "tokenizer.ggml.eos_token_id is 4, the vocabulary has 4 tokens"));
  CHECK(has(
      changed([](auto&, auto&, auto&, auto& writer) { writer.key("tokenizer.ggml.add_space_prefix", true); }),
      "add_space_prefix is true"));
  gguf_writer other;
  CHECK(has(refusal(other), "key 'tokenizer.ggml.model' is missing"));
  other.key("tokenizer.ggml.model", "llama");
  CHECK(has(refusal(other), "tokenizer.ggml.model is 'llama', expected 'gpt2'"));
}

TEST_CASE("model: the reference's ids of the real vocabulary") {
  const char* path = std::getenv("STEPGRAPH_MODEL");
  if (path == nullptr) {
    MESSAGE("STEPGRAPH_MODEL is not set: skipped");
    return;
  }
  const tokenizer subject{gguf_file(std::filesystem::path(path))};
  CHECK(subject.vocab_size() == 49152);
  check_cases(subject, model_cases);
}
