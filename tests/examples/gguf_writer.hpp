#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "examples/llama/gguf.hpp"

namespace stepgraph::llama {

/// Builds GGUF files in memory, for tests. Checks nothing: tests want wrong files too.
class gguf_writer {
 public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of the data section; the key is the caller's to write

  template <class Number>
  requires std::is_arithmetic_v<Number>
  void key(std::string_view name, Number value) {
    begin_key(name, type_of<Number>());
    put(metadata_, value);
  }

  void key(std::string_view name, std::string_view value) {
    begin_key(name, gguf_value_type::string);
    put_string(metadata_, value);
  }
  void key(std::string_view name, const char* value) { key(name, std::string_view(value)); }

  template <class Number>
  requires std::is_arithmetic_v<Number>
  void array(std::string_view name, const std::vector<Number>& values) {
    begin_array(name, type_of<Number>(), values.size());
    for (Number each : values) put(metadata_, each);
  }

  void array(std::string_view name, const std::vector<std::string_view>& values) {
    begin_array(name, gguf_value_type::string, values.size());
    for (std::string_view each : values) put_string(metadata_, each);
  }

  /// A key whose value is whatever bytes are given, of any type number.
  void raw_key(std::string_view name, std::uint32_t type, std::string_view bytes) {
    begin_key(name, static_cast<gguf_value_type>(type));
    metadata_ += bytes;
  }

  /// A tensor of `type`, the file's number, with `bytes` zero bytes of data or as many as `data` has.
  void tensor(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
              std::string_view data) {
    tensor_at(name, shape, type, align(data_).size());
    data_ += data;
  }

  /// A tensor's description alone, pointing anywhere.
  void tensor_at(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                 std::uint64_t offset) {
    put_string(infos_, name);
    put(infos_, static_cast<std::uint32_t>(shape.size()));
    for (std::uint64_t each : shape) put(infos_, each);
    put(infos_, type);
    put(infos_, offset);
    ++tensors_;
  }

  std::vector<std::byte> finish() const {
    std::string out = magic;
    put(out, version);
    put(out, tensors_);
    put(out, keys_);
    out += metadata_;
    out += infos_;
    if (!data_.empty()) align(out) += data_;
    std::vector<std::byte> bytes(out.size());
    if (!out.empty()) std::memcpy(bytes.data(), out.data(), out.size());
    return bytes;
  }

  template <class Number>
  static void put(std::string& to, Number value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    to.append(bytes, sizeof(value));
  }
  static void put_string(std::string& to, std::string_view value) {
    put(to, std::uint64_t{value.size()});
    to += value;
  }

 private:
  template <class Number>
  static constexpr gguf_value_type type_of() {
    if constexpr (std::is_same_v<Number, bool>) return gguf_value_type::boolean;
    if constexpr (std::is_same_v<Number, float>) return gguf_value_type::float32;
    if constexpr (std::is_same_v<Number, double>) return gguf_value_type::float64;
    constexpr bool is_signed = std::is_signed_v<Number>;
    if constexpr (sizeof(Number) == 1) return is_signed ? gguf_value_type::int8 : gguf_value_type::uint8;
    if constexpr (sizeof(Number) == 2) return is_signed ? gguf_value_type::int16 : gguf_value_type::uint16;
    if constexpr (sizeof(Number) == 4) return is_signed ? gguf_value_type::int32 : gguf_value_type::uint32;
    return is_signed ? gguf_value_type::int64 : gguf_value_type::uint64;
  }

  void begin_key(std::string_view name, gguf_value_type type) {
    put_string(metadata_, name);
    put(metadata_, static_cast<std::uint32_t>(type));
    ++keys_;
  }
  void begin_array(std::string_view name, gguf_value_type element, std::uint64_t count) {
    begin_key(name, gguf_value_type::array);
    put(metadata_, static_cast<std::uint32_t>(element));
    put(metadata_, count);
  }
  std::string& align(std::string& bytes) const {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes;
  }

  std::string metadata_;
  std::string infos_;
  std::string data_;
  std::uint64_t keys_ = 0;
  std::uint64_t tensors_ = 0;
};

}  // namespace stepgraph::llama
