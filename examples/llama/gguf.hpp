#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stepgraph::llama {

/// Type of a metadata value, numbered as in the file.
enum class gguf_value_type : std::uint32_t {
  uint8 = 0,
  int8 = 1,
  uint16 = 2,
  int16 = 3,
  uint32 = 4,
  int32 = 5,
  float32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  uint64 = 10,
  int64 = 11,
  float64 = 12,
};

/// A metadata value, checked but not copied: `bytes` lie in the file.
struct gguf_value {
  gguf_value_type type = gguf_value_type::uint8;
  gguf_value_type element_type = gguf_value_type::uint8;  // of an array
  std::uint64_t count = 1;                                // elements of an array, else 1
  std::span<const std::byte>
      bytes;  // scalar: its bytes; string: its characters; array: all elements as stored
};

/// A tensor of the file; `name` and `data` lie in the file.
struct gguf_tensor {
  std::string_view name;
  std::uint32_t type = 0;                             // the file's number for the element type
  int dimension_count = 0;                            // 1..4
  std::array<std::uint64_t, 4> shape = {1, 1, 1, 1};  // elements, fastest first: a matrix is [columns, rows]
  std::span<const std::byte> data;
};

/// Name of an element type, as "Q4_1"; "type 77" for a number this reader does not know.
std::string gguf_type_name(std::uint32_t type);

/// Version 3, little-endian GGUF file: metadata and tensors. Everything is checked when it is opened: each
/// count, size and offset against the bytes that are there, before anything is allocated for it; keys and
/// tensor names are unique, tensors do not overlap. What is wrong throws invalid_argument with the file's
/// name, the thing and the numbers.
///
/// All views handed out stay valid while this object, what it was moved to, or a copy of `storage()` lives.
class gguf_file {
 public:
  /// Maps the file at `path`. It must not be truncated by others while mapped.
  explicit gguf_file(const std::filesystem::path& path);

  /// Reads `bytes`, which the caller keeps; `name` stands for the file's name in messages.
  gguf_file(std::span<const std::byte> bytes, std::string name);

  gguf_file(gguf_file&&) = default;
  gguf_file& operator=(gguf_file&&) = default;
  gguf_file(const gguf_file&) = delete;
  gguf_file& operator=(const gguf_file&) = delete;

  const std::string& name() const noexcept { return name_; }

  /// What keeps the mapped bytes alive; null if the caller keeps them.
  std::shared_ptr<const void> storage() const noexcept { return storage_; }

  /// Bytes that tensors' offsets are multiples of.
  std::uint64_t alignment() const noexcept { return alignment_; }

  /// All metadata by key.
  const std::unordered_map<std::string_view, gguf_value>& metadata() const noexcept { return metadata_; }

  bool contains(std::string_view key) const { return metadata_.contains(key); }

  /// Typed values. A missing key or another type throws invalid_argument. `integer` takes every integer type
  /// whose value fits, `real` both floating-point types; the plural forms read arrays.
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::string_view string(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> reals(std::string_view key) const;
  std::vector<std::string_view> strings(std::string_view key) const;

  /// The same with a value for a missing key; another type still throws.
  std::int64_t integer_or(std::string_view key, std::int64_t fallback) const;
  double real_or(std::string_view key, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string_view string_or(std::string_view key, std::string_view fallback) const;

  /// All tensors, in the file's order.
  std::span<const gguf_tensor> tensors() const noexcept { return tensors_; }

  /// The tensor called `name`, or null.
  const gguf_tensor* find_tensor(std::string_view name) const;

  /// The tensor called `name`; throws invalid_argument if there is none.
  const gguf_tensor& tensor(std::string_view name) const;

 private:
  void parse(std::span<const std::byte> bytes);
  void check_overlap() const;
  const gguf_value& value(std::string_view key) const;
  const gguf_value& array(std::string_view key) const;

  std::string name_;
  std::shared_ptr<const void> storage_;
  std::uint64_t alignment_ = 32;
  std::unordered_map<std::string_view, gguf_value> metadata_;
  std::vector<gguf_tensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
};

/// `text` in quotes for a message: shortened, with anything unprintable as \xNN.
std::string quoted(std::string_view text);

}  // namespace stepgraph::llama
