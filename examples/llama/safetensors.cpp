#include "examples/llama/safetensors.hpp"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/llama/gguf.hpp"
#include "graphs/error.hpp"

namespace stepgraph::llama {
namespace {

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  STEPGRAPH_EXPECTS(file.is_open(), "safetensors ", path.string(), ": cannot be opened");
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0)));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  STEPGRAPH_EXPECTS(file.gcount() == std::ssize(bytes), "safetensors ", path.string(), ": ", file.gcount(),
                    " bytes could be read of ", bytes.size());
  return bytes;
}

/// Bytes of an element, 0 for a type that this reader does not know.
std::uint64_t element_bytes(const std::string& type) {
  if (type == "F64" || type == "I64" || type == "U64") return 8;
  if (type == "F32" || type == "I32" || type == "U32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 2;
  return type == "I8" || type == "U8" || type == "BOOL" ? 1 : 0;
}

safetensors_tensor read_tensor(const nlohmann::json& entry, std::span<const std::byte> data,
                               const std::string& what) {
  safetensors_tensor out;
  std::vector<std::uint64_t> range;
  try {
    out.type = entry.at("dtype").get<std::string>();
    out.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    range = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  } catch (const nlohmann::json::exception& wrong) {
    STEPGRAPH_EXPECTS(false, what, " has an entry that is none: ", wrong.what());
  }
  STEPGRAPH_EXPECTS(range.size() == 2 && range[0] <= range[1] && range[1] <= data.size(), what,
                    " does not lie in the file's ", data.size(), " bytes of tensors");
  out.data = data.subspan(range[0], range[1] - range[0]);
  std::uint64_t bytes = element_bytes(out.type);
  STEPGRAPH_EXPECTS(bytes > 0, what, " is of type ", llama::quoted(out.type),
                    ", which this reader does not know");
  for (const std::int64_t size : out.shape) {
    STEPGRAPH_EXPECTS(size > 0 && static_cast<std::uint64_t>(size) <= data.size(), what, " has shape ",
                      shape_text(out.shape), ", more than the file holds, or nothing");
    bytes *= static_cast<std::uint64_t>(size);
    STEPGRAPH_EXPECTS(bytes <= out.data.size(), what, " of shape ", shape_text(out.shape), " has ",
                      out.data.size(), " bytes, fewer than it needs");
  }
  STEPGRAPH_EXPECTS(bytes == out.data.size(), what, " takes ", out.data.size(), " bytes, expected ", bytes);
  return out;
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

safetensors_file::safetensors_file(const std::filesystem::path& path)
    : safetensors_file(read_file(path), path.string()) {}

safetensors_file::safetensors_file(std::vector<std::byte> bytes, std::string name)
    : bytes_(std::make_shared<std::vector<std::byte>>(std::move(bytes))), name_(std::move(name)) {
  parse();
}

void safetensors_file::parse() {
  constexpr std::size_t prefix = 8;
  STEPGRAPH_EXPECTS(bytes_->size() >= prefix, "safetensors ", name_, ": ", bytes_->size(),
                    " bytes are no file of tensors");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < prefix; ++i) length |= std::to_integer<std::uint64_t>((*bytes_)[i]) << (8 * i);
  STEPGRAPH_EXPECTS(length <= bytes_->size() - prefix, "safetensors ", name_, ": a header of ", length,
                    " bytes does not fit into a file of ", bytes_->size());
  const auto* const text = reinterpret_cast<const char*>(bytes_->data() + prefix);
  const auto header = nlohmann::json::parse(text, text + length, nullptr, false);
  STEPGRAPH_EXPECTS(header.is_object(), "safetensors ", name_, ": the header is no JSON object");
  const std::span<const std::byte> data = std::span(*bytes_).subspan(prefix + length);
  for (const auto& [key, value] : header.items()) {
    if (key != "__metadata__") {
      tensors_[key] =
          read_tensor(value, data, message("safetensors ", name_, ": tensor ", llama::quoted(key)));
      continue;
    }
    STEPGRAPH_EXPECTS(value.is_object(), "safetensors ", name_, ": __metadata__ is no object");
    for (const auto& [name, content] : value.items()) {
      STEPGRAPH_EXPECTS(content.is_string(), "safetensors ", name_, ": metadata ", llama::quoted(name),
                        " is no text");
      metadata_[name] = content.get<std::string>();
    }
  }
}

const safetensors_tensor& safetensors_file::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  STEPGRAPH_EXPECTS(found != tensors_.end(), "safetensors ", name_, ": there is no tensor ",
                    llama::quoted(name));
  return found->second;
}

}  // namespace stepgraph::llama
