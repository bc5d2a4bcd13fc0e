// Writes seeds for the fuzzers: make_seeds FOLDER fills FOLDER/gguf and FOLDER/tokenizer.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/examples/tokenizer_files.hpp"

namespace {

using namespace stepgraph::llama;

void write(const std::filesystem::path& path, const void* bytes, std::size_t size) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
}

void write(const std::filesystem::path& path, const gguf_writer& writer) {
  const auto bytes = writer.finish();
  write(path, bytes.data(), bytes.size());
}

gguf_writer values() {
  gguf_writer writer;
  writer.key("general.alignment", std::uint32_t{32});
  writer.key("a", std::uint8_t{1});
  writer.key("b", std::int64_t{-1});
  writer.key("c", 1.0f);
  writer.key("d", true);
  writer.array("e", std::vector<std::string_view>{"x", "yz"});
  writer.array("f", std::vector<std::int16_t>{1, 2, 3});
  std::string nested;
  for (std::uint32_t element : {9u, 8u}) {
    gguf_writer::put(nested, element);
    gguf_writer::put(nested, std::uint64_t{1});
  }
  gguf_writer::put_string(nested, "deep");
  writer.raw_key("g", 9, nested);
  writer.tensor("t", {2, 2}, 0, std::string(16, 't'));
  writer.tensor("u", {32}, 3, std::string(20, 'u'));
  return writer;
}

/// One layer of hidden 2, one head of 2, ffn 2 and one token: as small as a model gets.
gguf_writer model() {
  gguf_writer writer;
  writer.key("general.architecture", "llama");
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.attention.head_count"}) {
    writer.key(key, std::uint32_t{1});
  }
  writer.key("llama.embedding_length", std::uint32_t{2});
  writer.key("llama.feed_forward_length", std::uint32_t{2});
  writer.key("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.tensor("token_embd.weight", {2, 1}, 0, std::string(8, '\1'));
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    writer.tensor("blk.0." + std::string(name) + ".weight", {2, 2}, 1, std::string(8, '\1'));
  }
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}) {
    writer.tensor(name, {2}, 30, std::string(4, '\1'));
  }
  return writer;
}

gguf_writer vocabulary() {
  gguf_writer writer;
  write_tokenizer(writer, {"a", "b", "ab", "\xc4\xa0", "<|im_start|>", "<|im_end|>"}, {1, 1, 1, 1, 3, 3},
                  {"a b"});
  writer.key("tokenizer.ggml.eos_token_id", std::uint32_t{5});
  writer.key("tokenizer.chat_template", tiny_chat_template);
  return writer;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path folder(arguments[1]);
  std::filesystem::create_directories(folder / "gguf");
  std::filesystem::create_directories(folder / "tokenizer");
  write(folder / "gguf" / "empty", gguf_writer());
  write(folder / "gguf" / "values", values());
  write(folder / "gguf" / "model", model());
  write(folder / "gguf" / "vocabulary", vocabulary());
  int number = 0;
  for (const auto& each : tiny_cases) {
    write(folder / "tokenizer" / std::to_string(number++), each.text.data(), each.text.size());
  }
  // long sequences of calls; the fuzzers find short ones by themselves
  std::minstd_rand random(1);
  for (const char* calls : {"executor", "rounds", "tree"}) {
    std::filesystem::create_directories(folder / calls);
    for (int seed = 0; seed < 16; ++seed) {
      std::string bytes(600, '\0');
      for (char& each : bytes) each = static_cast<char>(random() >> 8);
      write(folder / calls / std::to_string(seed), bytes.data(), bytes.size());
    }
  }
}
