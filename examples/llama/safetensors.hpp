#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stepgraph::llama {

/// A tensor of the file; `data` lies in the file.
struct safetensors_tensor {
  std::string type;                 // as the file has it: "F32", "BF16", "I32"
  std::vector<std::int64_t> shape;  // elements, slowest first: a matrix is [rows, columns]
  std::span<const std::byte> data;
};

/// A safetensors file: 8 bytes of header length, little-endian, a header in JSON, then the tensors' bytes. Everything
/// is checked when it is opened: the lengths against the bytes that are there, each tensor's shape and type against
/// its place. What is wrong throws invalid_argument with the file's name, the thing and the numbers.
///
/// All views handed out stay valid while this object, what it was moved to, or a copy of `storage()` lives.
class safetensors_file {
 public:
  /// Reads the file at `path`.
  explicit safetensors_file(const std::filesystem::path& path);

  /// Takes the bytes of a file; `name` stands for its name in messages.
  safetensors_file(std::vector<std::byte> bytes, std::string name);

  const std::string& name() const noexcept { return name_; }
  std::shared_ptr<const void> storage() const noexcept { return bytes_; }

  /// The texts under '__metadata__' by key.
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  const std::map<std::string, safetensors_tensor>& tensors() const noexcept { return tensors_; }

  /// The tensor called `name`; throws invalid_argument if there is none.
  const safetensors_tensor& tensor(const std::string& name) const;

 private:
  void parse();

  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::string name_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, safetensors_tensor> tensors_;
};

/// "[576, 1152]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace stepgraph::llama
