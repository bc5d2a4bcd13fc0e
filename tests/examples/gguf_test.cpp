#include "examples/llama/gguf.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <random>
#include <utility>

#include "examples/llama/load_weights.hpp"
#include "graphs/error.hpp"
#include "tests/examples/gguf_writer.hpp"

using namespace stepgraph::llama;

namespace {

constexpr std::uint32_t f32 = 0, f16 = 1, q4_1 = 3, q8_0 = 8, q6_k = 14;

/// The message of what parsing `bytes` throws, or "" if nothing.
std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    gguf_file file(bytes, "memory");
  } catch (const stepgraph::invalid_argument& caught) {
    return caught.what();
  }
  return {};
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

/// Reads every value of `file` through every getter: all must answer or throw invalid_argument.
void read_everything(const gguf_file& file) {
  auto attempt = [](auto&& read) {
    try {
      read();
    } catch (const stepgraph::invalid_argument&) {
    }
  };
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
  unsigned sum = 0;
  for (const auto& tensor : file.tensors()) {
    for (std::byte each : tensor.data) sum += std::to_integer<unsigned>(each);
  }
  CHECK(sum + 1 > 0);
}

gguf_writer small_file() {
  gguf_writer writer;
  writer.key("a.u8", std::uint8_t{200});
  writer.key("a.i8", std::int8_t{-100});
  writer.key("a.u16", std::uint16_t{60000});
  writer.key("a.i16", std::int16_t{-30000});
  writer.key("a.u32", std::uint32_t{4000000000u});
  writer.key("a.i32", std::int32_t{-2000000000});
  writer.key("a.u64", std::uint64_t{1} << 62);
  writer.key("a.i64", -(std::int64_t{1} << 62));
  writer.key("a.f32", 1.5f);
  writer.key("a.f64", 2.25);
  writer.key("a.yes", true);
  writer.key("a.no", false);
  writer.key("a.text", "some text");
  writer.key("a.huge", ~std::uint64_t{0});
  writer.array("b.numbers", std::vector<std::int16_t>{1, -2, 3});
  writer.array("b.reals", std::vector<float>{0.5f, -0.25f});
  writer.array("b.words", std::vector<std::string_view>{"one", "", "three"});
  std::string nested;  // [[7], []] of uint8
  gguf_writer::put(nested, std::uint32_t{9});
  gguf_writer::put(nested, std::uint64_t{2});
  gguf_writer::put(nested, std::uint32_t{0});
  gguf_writer::put(nested, std::uint64_t{1});
  nested += '\7';
  gguf_writer::put(nested, std::uint32_t{0});
  gguf_writer::put(nested, std::uint64_t{0});
  writer.raw_key("b.nested", 9, nested);
  writer.tensor("first", {3, 2}, f32, std::string(24, 'f'));
  writer.tensor("second", {32, 2}, q4_1, std::string(40, 'q'));
  writer.tensor("third", {2, 2, 2, 2}, f16, std::string(32, 'h'));
  return writer;
}

}  // namespace

TEST_CASE("gguf: values and tensors come back as they were written") {
  const auto bytes = small_file().finish();
  gguf_file opened(bytes, "memory");
  const gguf_file file = std::move(opened);
  CHECK(file.integer("a.u8") == 200);
  CHECK(file.integer("a.i8") == -100);
  CHECK(file.integer("a.u16") == 60000);
  CHECK(file.integer("a.i16") == -30000);
  CHECK(file.integer("a.u32") == 4000000000);
  CHECK(file.integer("a.i32") == -2000000000);
  CHECK(file.integer("a.u64") == std::int64_t{1} << 62);
  CHECK(file.integer("a.i64") == -(std::int64_t{1} << 62));
  CHECK(file.real("a.f32") == 1.5);
  CHECK(file.real("a.f64") == 2.25);
  CHECK(file.boolean("a.yes"));
  CHECK(!file.boolean("a.no"));
  CHECK(file.string("a.text") == "some text");
  CHECK(file.integers("b.numbers") == std::vector<std::int64_t>{1, -2, 3});
  CHECK(file.reals("b.reals") == std::vector<double>{0.5, -0.25});
  CHECK(file.strings("b.words") == std::vector<std::string_view>{"one", "", "three"});
  CHECK(file.metadata().at("b.nested").count == 2);
  CHECK(file.integer_or("none", 5) == 5);
  CHECK(file.real_or("none", 0.5) == 0.5);
  CHECK(file.boolean_or("none", true));
  CHECK(file.string_or("none", "x") == "x");

  REQUIRE(file.tensors().size() == 3);
  const auto& second = file.tensor("second");
  CHECK(second.dimension_count == 2);
  CHECK(second.shape == std::array<std::uint64_t, 4>{32, 2, 1, 1});
  CHECK(second.type == q4_1);
  CHECK(second.data.size() == 40);
  CHECK(second.data[39] == std::byte{'q'});
  CHECK(file.tensor("third").data[0] == std::byte{'h'});
  CHECK(file.find_tensor("fourth") == nullptr);
  read_everything(file);
}

TEST_CASE("gguf: getters name the key, what it is and what was expected") {
  const auto bytes = small_file().finish();
  gguf_file file(bytes, "memory");
  CHECK_THROWS_WITH_AS(file.integer("absent"), doctest::Contains("memory: key 'absent' is missing"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.integer("a.text"),
                       doctest::Contains("'a.text' is of type string, expected integers"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.integer("a.huge"), doctest::Contains("18446744073709551615, beyond"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.real("a.u8"), doctest::Contains("is of type uint8, expected float"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.string("a.yes"), doctest::Contains("is of type boolean, expected string"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.boolean("a.i32"), doctest::Contains("is of type int32, expected boolean"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.strings("b.numbers"), doctest::Contains("is an array of int16, expected strings"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.integers("b.words"),
                       doctest::Contains("is of type array of string, expected integers"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.integers("a.u8"), doctest::Contains("is of type uint8, expected an array"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(file.tensor("fourth"), doctest::Contains("tensor 'fourth' is missing"),
                       stepgraph::invalid_argument);
}

TEST_CASE("gguf: a file cut at any byte is refused") {
  const auto bytes = small_file().finish();
  REQUIRE(refusal(bytes).empty());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // a copy of exactly this size, so that a sanitizer sees reads past it
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    INFO("cut to ", size, " of ", bytes.size());
    CHECK(has(refusal(cut), "the file ends at "));
  }
}

TEST_CASE("gguf: a truncated tensor is named with its range and the file's end") {
  gguf_writer writer;
  writer.tensor("blk.3.ffn_up.weight", {250}, f32, std::string(1000, 'x'));
  auto bytes = writer.finish();
  bytes.resize(bytes.size() - 500);
  CHECK(
      has(refusal(bytes),
          "tensor 'blk.3.ffn_up.weight' needs 1000 bytes from 0 of the data section, the file ends at 500"));
}

TEST_CASE("gguf: random corruption is refused or read, never followed out of the file") {
  const auto good = small_file().finish();
  const auto seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  int refused = 0;
  constexpr int rounds = 4000;
  for (int round = 0; round < rounds; ++round) {
    auto bytes = good;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = std::byte(random() % 3 == 0 ? 0xff : random() & 0xff);
    }
    try {
      gguf_file file(bytes, "memory");
      read_everything(file);
    } catch (const stepgraph::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > rounds / 10);
}

TEST_CASE("gguf: foreign and unsupported files are told apart") {
  gguf_writer writer;
  writer.magic = "PK\3\4";
  CHECK(has(refusal(writer.finish()), "is not a GGUF file: it begins with 'PK\\x03\\x04', expected 'GGUF'"));
  writer.magic = "FUGG";
  CHECK(has(refusal(writer.finish()), "big-endian"));
  writer.magic = "GGUF";
  writer.version = 0x03000000;
  CHECK(has(refusal(writer.finish()), "is big-endian (version field 50331648)"));
  for (std::uint32_t version : {1u, 2u, 4u}) {
    writer.version = version;
    CHECK(has(refusal(writer.finish()),
              stepgraph::message("has version ", version, ", only version 3 is read")));
  }
}

TEST_CASE("gguf: counts beyond the file are refused before anything is allocated") {
  std::string header = "GGUF";
  gguf_writer::put(header, std::uint32_t{3});
  auto with_counts = [&](std::uint64_t tensors, std::uint64_t keys) {
    std::string all = header;
    gguf_writer::put(all, tensors);
    gguf_writer::put(all, keys);
    const auto* begin = reinterpret_cast<const std::byte*>(all.data());
    return refusal({begin, begin + all.size()});
  };
  CHECK(with_counts(0, 0).empty());
  CHECK(has(with_counts(0, ~std::uint64_t{0}), "the metadata has 18446744073709551615 elements"));
  CHECK(has(with_counts(~std::uint64_t{0}, 0), "the list of tensors has 18446744073709551615 elements"));
  CHECK(has(with_counts(1, 0),
            "the list of tensors has 1 elements of at least 33 bytes at 24, the file ends at 24"));

  for (std::uint32_t element : {0u, 6u, 8u, 9u, 12u}) {
    gguf_writer writer;
    std::string array;
    gguf_writer::put(array, element);
    gguf_writer::put(array, std::uint64_t{1} << 61);
    writer.raw_key("k", 9, array);
    CHECK(has(refusal(writer.finish()), "key 'k' has 2305843009213693952 elements"));
  }
  gguf_writer writer;
  std::string text;
  gguf_writer::put(text, ~std::uint64_t{0});
  writer.raw_key("k", 8, text);
  CHECK(has(refusal(writer.finish()), "key 'k' needs 18446744073709551615 bytes"));
}

TEST_CASE("gguf: malformed metadata is refused") {
  {
    gguf_writer writer;
    writer.key("twice", 1);
    writer.key("twice", 2);
    CHECK(has(refusal(writer.finish()), "key 'twice' is there twice"));
  }
  {
    gguf_writer writer;
    writer.raw_key("odd", 13, "xxxxxxxx");
    CHECK(has(refusal(writer.finish()), "key 'odd' has value type 13"));
  }
  {
    gguf_writer writer;
    writer.raw_key("flag", 7, "\2");
    CHECK(has(refusal(writer.finish()), "key 'flag' holds a boolean of value 2"));
  }
  {
    gguf_writer writer;
    std::string nested;
    for (int i = 0; i < 5; ++i) {
      gguf_writer::put(nested, std::uint32_t{9});
      gguf_writer::put(nested, std::uint64_t{1});
    }
    writer.raw_key("deep", 9, nested + std::string(64, '\0'));
    CHECK(has(refusal(writer.finish()), "key 'deep' nests arrays deeper than 4"));
  }
  for (std::uint32_t alignment : {0u, 4u, 24u, 0x80000000u}) {
    gguf_writer writer;
    writer.key("general.alignment", alignment);
    CHECK(has(refusal(writer.finish()), stepgraph::message("general.alignment is ", alignment)));
  }
  {
    gguf_writer writer;
    writer.key("general.alignment", "32");
    CHECK(has(refusal(writer.finish()), "'general.alignment' is of type string"));
  }
}

TEST_CASE("gguf: malformed tensors are refused") {
  auto refused = [](auto&& describe) {
    gguf_writer writer;
    describe(writer);
    return refusal(writer.finish());
  };
  const std::uint64_t half = std::uint64_t{1} << 32;
  CHECK(has(refused([&](gguf_writer& w) { w.tensor("", {1}, f32, "1234"); }), "tensor 0 has no name"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor("t", {}, f32, "1234567890"); }), "'t' has 0 dimensions"));
  CHECK(has(refused([&](gguf_writer& w) {
              w.tensor("t", {1, 1, 1, 1, 1}, f32, "1234");
            }),
            "'t' has 5 dimensions"));
  CHECK(has(refused([&](gguf_writer& w) {
              w.tensor("t", {1, 0}, f32, "1234");
            }),
            "0 elements in dimension 1"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor("t", {1}, 77, "1234"); }), "element type 77"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor("t", {33}, q8_0, "1234"); }),
            "rows of 33 elements, Q8_0 stores blocks of 32"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor("t", {half, half, half}, f32, "1234"); }), "63 bits"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor("t", {half, half / 8}, f32, "1234"); }), "63 bits"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor_at("t", {1}, f32, 8); }),
            "not a multiple of the alignment 32"));
  CHECK(has(refused([&](gguf_writer& w) { w.tensor_at("t", {1}, f32, ~std::uint64_t{31}); }),
            "needs 4 bytes from 18446744073709551584"));
  CHECK(has(refused([&](gguf_writer& w) {
              w.tensor("t", {1}, f32, "1234");
              w.tensor("t", {1}, f32, "1234");
            }),
            "tensor 't' is there twice"));
  CHECK(has(refused([&](gguf_writer& w) {
              w.tensor("t", {16}, f32, std::string(64, 'x'));
              w.tensor_at("u", {1}, f32, 32);
            }),
            "tensors 't' and 'u' overlap"));
}

TEST_CASE("gguf: a wider alignment moves the data section") {
  gguf_writer writer;
  writer.alignment = 256;
  writer.key("general.alignment", std::uint32_t{256});
  writer.tensor("t", {2}, f32, "abcdefgh");
  const auto bytes = writer.finish();
  gguf_file file(bytes, "memory");
  CHECK(file.alignment() == 256);
  CHECK(file.tensor("t").data.data() == bytes.data() + 256);
}

TEST_CASE("gguf: files are mapped, and what cannot be opened says why") {
  const auto folder = std::filesystem::temp_directory_path();
  const auto path = folder / stepgraph::message("stepgraph_gguf_test_", std::random_device{}(), ".gguf");
  CHECK_THROWS_WITH_AS(gguf_file{path}, doctest::Contains("cannot be opened: No such file"),
                       stepgraph::invalid_argument);
  CHECK_THROWS_WITH_AS(gguf_file{folder}, doctest::Contains("is not a regular file"),
                       stepgraph::invalid_argument);
  std::ofstream(path).flush();
  CHECK_THROWS_WITH_AS(gguf_file{path}, doctest::Contains("the magic needs 4 bytes at 0, the file ends at 0"),
                       stepgraph::invalid_argument);
  const auto bytes = small_file().finish();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::shared_ptr<const void> storage;
  std::span<const std::byte> data;
  {
    gguf_file file(path);
    storage = file.storage();
    data = file.tensor("second").data;
  }
  CHECK(data[0] == std::byte{'q'});  // the mapping outlives the reader
  std::filesystem::remove(path);
}

namespace {

/// A file of one layer: hidden 32, 4 heads and 2 KV heads of 8, ffn 64, 50 tokens. `change` may rewrite a
/// tensor's shape and type.
template <class Change>
gguf_writer model_file(const Change& change, std::string_view skip = "") {
  gguf_writer writer;
  auto number = [&](std::string_view key, std::uint32_t value) {
    if (key != skip) writer.key(key, value);
  };
  if (skip != "general.architecture") writer.key("general.architecture", "llama");
  number("llama.block_count", 1);
  number("llama.context_length", 128);
  number("llama.embedding_length", 32);
  number("llama.feed_forward_length", 64);
  number("llama.attention.head_count", 4);
  number("llama.attention.head_count_kv", 2);
  writer.key("llama.rope.freq_base", 100000.0f);
  writer.key("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  number("llama.vocab_size", 50);
  auto tensor = [&](std::string_view name, std::vector<std::uint64_t> shape, std::uint32_t type) {
    if (name == skip) return;
    change(name, shape, type);
    std::uint64_t elements = 1;
    for (auto each : shape) elements *= each;
    const std::uint64_t bytes = type == f32    ? elements * 4
                                : type == f16  ? elements * 2
                                : type == q4_1 ? elements / 32 * 20
                                : type == q8_0 ? elements / 32 * 34
                                               : elements / 256 * 210;
    std::string data(bytes, '\0');
    if (type == f32) {
      const float value = 0.5f;
      for (std::uint64_t i = 0; i < elements; ++i) std::memcpy(data.data() + i * 4, &value, 4);
    }
    writer.tensor(name, shape, type, data);
  };
  tensor("token_embd.weight", {32, 50}, q8_0);
  tensor("blk.0.attn_norm.weight", {32}, f32);
  tensor("blk.0.attn_q.weight", {32, 32}, q4_1);
  tensor("blk.0.attn_k.weight", {32, 16}, q4_1);
  tensor("blk.0.attn_v.weight", {32, 16}, f16);
  tensor("blk.0.attn_output.weight", {32, 32}, q4_1);
  tensor("blk.0.ffn_norm.weight", {32}, f32);
  tensor("blk.0.ffn_gate.weight", {32, 64}, q4_1);
  tensor("blk.0.ffn_up.weight", {32, 64}, q4_1);
  tensor("blk.0.ffn_down.weight", {64, 32}, q4_1);
  tensor("output_norm.weight", {32}, f32);
  return writer;
}

constexpr auto unchanged = [](std::string_view, std::vector<std::uint64_t>&, std::uint32_t&) {};

std::string load_refusal(const gguf_writer& writer) {
  const auto bytes = writer.finish();
  try {
    load_llama_weights(gguf_file(bytes, "memory"));
  } catch (const stepgraph::invalid_argument& caught) {
    return caught.what();
  }
  return {};
}

}  // namespace

TEST_CASE("load_llama_weights: a model loads as views of the file with copied norms") {
  const auto bytes = model_file(unchanged).finish();
  const gguf_file file(bytes, "memory");
  const auto weights = load_llama_weights(file);
  CHECK(weights.config.layers == 1);
  CHECK(weights.config.head_size == 8);
  CHECK(weights.config.kv_heads == 2);
  CHECK(weights.config.vocab_size == 50);
  CHECK(weights.config.rope_base == 100000.0f);
  REQUIRE(weights.layers.size() == 1);
  CHECK(weights.layers[0].ffn_norm == std::vector<float>(32, 0.5f));
  CHECK(weights.layers[0].key.rows == 16);
  CHECK(weights.layers[0].key.columns == 32);
  CHECK(weights.layers[0].key.type == tensor_type::q4_1);
  CHECK(weights.layers[0].down.data.data() == file.tensor("blk.0.ffn_down.weight").data.data());
  CHECK(weights.output.data.data() == weights.token_embedding.data.data());
}

TEST_CASE("load_llama_weights: wrong shapes, types and missing parts are named") {
  auto changed = [](std::string_view which, std::vector<std::uint64_t> shape, std::uint32_t type) {
    return load_refusal(
        model_file([&](std::string_view name, std::vector<std::uint64_t>& s, std::uint32_t& t) {
          if (name != which) return;
          s = shape;
          t = type;
        }));
  };
  CHECK(has(changed("blk.0.attn_k.weight", {32, 32}, q4_1),
            "tensor blk.0.attn_k.weight has shape [32, 32], expected [16, 32]"));
  CHECK(has(changed("blk.0.ffn_down.weight", {32, 64}, q4_1), "has shape [64, 32], expected [32, 64]"));
  CHECK(has(changed("output_norm.weight", {33}, f32),
            "tensor output_norm.weight has shape [33], expected [32]"));
  CHECK(has(changed("output_norm.weight", {1, 32}, f32), "has shape [32, 1], expected [32]"));
  CHECK(has(changed("token_embd.weight", {32, 51}, q8_0),
            "llama.vocab_size is 50, token_embd.weight gives 51"));
  CHECK(has(changed("blk.0.ffn_up.weight", {256, 8}, q6_k), "has shape [8, 256], expected [64, 32]"));
  for (std::string_view gone : {"general.architecture", "llama.block_count", "llama.context_length"}) {
    CHECK(has(load_refusal(model_file(unchanged, gone)), "key " + quoted(gone) + " is missing"));
  }
  CHECK(has(load_refusal(model_file(unchanged, "output_norm.weight")),
            "tensor 'output_norm.weight' is missing"));

  auto with = [](auto&& add, std::string_view skip = "") {
    gguf_writer writer = model_file(unchanged, skip);
    add(writer);
    return load_refusal(writer);
  };
  using writer = gguf_writer;
  CHECK(has(with([](writer& w) { w.key("general.architecture", "qwen2"); }, "general.architecture"),
            "general.architecture is 'qwen2', expected 'llama'"));
  CHECK(has(with([](writer& w) { w.key("llama.block_count", 1u << 25); }, "llama.block_count"),
            "33554432 layers need 301989888 tensors, the file has 11"));
  CHECK(has(with([](writer& w) { w.key("llama.attention.head_count", 3u); }, "llama.attention.head_count"),
            "3 query heads are no multiple of 2"));
  CHECK(has(with([](writer& w) { w.key("llama.rope.dimension_count", 4u); }), "is 4, the head size gives 8"));
  CHECK(has(with([](writer& w) { w.key("llama.rope.scaling.type", "yarn"); }), "is 'yarn', expected 'none'"));
  CHECK(has(with([](writer& w) { w.tensor("blk.0.attn_q.bias", {32}, f32, std::string(128, '\0')); }),
            "tensor 'blk.0.attn_q.bias' has no place"));
}

TEST_CASE("model: the real file loads with its known shapes") {
  const char* path = std::getenv("STEPGRAPH_MODEL");
  if (path == nullptr) {
    MESSAGE("STEPGRAPH_MODEL is not set: skipped");
    return;
  }
  const auto weights = load_llama_weights(std::filesystem::path(path));
  CHECK(weights.config.layers == 30);
  CHECK(weights.config.hidden_size == 576);
  CHECK(weights.config.heads == 9);
  CHECK(weights.config.kv_heads == 3);
  CHECK(weights.config.head_size == 64);
  CHECK(weights.config.ffn_size == 1536);
  CHECK(weights.config.vocab_size == 49152);
  CHECK(weights.config.max_context == 8192);
  CHECK(weights.config.rope_base == 100000.0f);
  CHECK(weights.config.norm_epsilon == 1e-5f);
  REQUIRE(weights.layers.size() == 30);
  CHECK(weights.layers[29].down.data.size() == 552960);
  CHECK(weights.token_embedding.type == tensor_type::q8_0);
  CHECK(weights.storage != nullptr);
  float sum = 0;
  for (const auto& layer : weights.layers) {
    for (float each : layer.attention_norm) sum += each;
  }
  CHECK(sum == sum);
  CHECK(sum != 0);
}
